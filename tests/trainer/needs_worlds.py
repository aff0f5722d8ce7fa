"""A model whose law can be worked out by hand, and episodes of letters for it to read."""

import dataclasses
import math
from types import SimpleNamespace

import torch

from tests.trainer.conftest import Letters
from trainer.needs import Setup
from trainer.policy import Policy
from trainer.tasks.answers import Answer
from twinstats.episodes import Episode, Task, Turn

VOCABULARY = 128


class Bag:
    """A language model of letters that looks at how often each stands before, and nothing else.

    The hidden state counts the letters so far; the logit of v is the sum of `gains[u, v]` over the
    letters u so far. Without gains every letter has probability 1/128.
    """

    device = torch.device("cpu")

    def __init__(self, gains=None):
        self.output = torch.nn.Linear(VOCABULARY, VOCABULARY, bias=False)
        torch.nn.init.zeros_(self.output.weight)
        for (before, after), gain in (gains or {}).items():
            self.output.weight.data[ord(after), ord(before)] = gain
        self.rows = []

    def base_model(self, input_ids, attention_mask, use_cache):
        self.rows.append(tuple(input_ids.shape))
        one_hot = torch.nn.functional.one_hot(input_ids, VOCABULARY) * attention_mask[..., None]
        return SimpleNamespace(last_hidden_state=one_hot.cumsum(1).float())

    def get_output_embeddings(self):
        return self.output

    def eval(self):
        return self


@dataclasses.dataclass(frozen=True)
class LetterPolicy(Letters):
    model: Bag


class Quiz:
    """A task that tells its answers: "X" before an episode, "=" before an answer, "E" an ending."""

    def privileged(self, row):
        return "X" * len(row["golds"])

    def answers(self, row, history):
        part = min(len(history), len(row["golds"]) - 1)
        return [Answer("=", gold) for gold in row["golds"][part]]

    def ending(self, row, steps):
        return "E" * sum(step["right"] for step in steps)


def letters(text):
    return tuple(ord(letter) for letter in text)


def episode(*turns, golds=(("x",),), end="", rewards=None, **fields):
    """An episode of (shown, action) pairs of letters."""
    rewards = rewards or [0.0] * len(turns)
    made = tuple(
        Turn(
            letters(action),
            None,
            None,
            len(action),
            shown,
            reward=reward,
            info={"shown": letters(shown), "step": {"right": reward > 0}},
        )
        for (shown, action), reward in zip(turns, rewards, strict=True)
    )
    plain = {"outcome": float(sum(rewards)), "terminated": True, "truncated": False}
    return Episode(
        Task("quiz", {"golds": golds}), 1, 0, made, **{"final_state": end} | plain | fields
    )


def failed(*turns):
    return episode(*turns, outcome=None, terminated=False, final_state=None)


def setup_of(policy, config, environment=Quiz):
    return Setup(policy=policy, environment=environment, config=config)


def gain_to(probability):
    """The gain that gives one letter a probability while the 127 others have gain 0."""
    return math.log(127 * probability / (1 - probability))


def naive_law(policy, ids, temperature):
    """Log-probabilities, row k what follows the first k + 1 ids: one sequence alone, float64."""
    with torch.no_grad():
        if isinstance(policy, Policy):
            logits = policy.model(torch.tensor([ids])).logits[0]
        else:
            one = torch.ones((1, len(ids)), dtype=torch.long)
            hidden = policy.model.base_model(torch.tensor([ids]), one, False).last_hidden_state
            logits = policy.model.output(hidden)[0]
    return torch.log_softmax(logits.double() / temperature, -1).numpy()
