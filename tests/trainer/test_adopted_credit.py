"""Credit from twins of adopted episodes, in a game small enough to know every advantage exactly."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import norm

from tests.trainer.conftest import log_of
from trainer.config import ModelConfig
from trainer.engines.hf import HfEngine
from trainer.policy import build_model
from trainer.rollout import Rollout
from trainer.rollout.play import Limits
from trainer.tasks import Step
from twinstats.credit import assign, make
from twinstats.episodes import KEEP, Fork, Task, group_by_task
from twinstats.rows import is_equal_decision, null_disagreements

WORDS, STOP, TEMPERATURE = "ab.?", 2, 0.8
GAME = Task("game")


class Few:
    """A policy of four words."""

    vocabulary = len(WORDS)

    def __init__(self, model=None):
        self.model = model

    def encode(self, text):
        return [WORDS.index(letter) for letter in text]

    def decode(self, ids):
        return "".join(WORDS[token] for token in ids)


class Game:
    """Two turns if one of them has a `b`, else three; every turn with an `a` earns a third."""

    stop, max_turns = (".",), 3

    def reset(self, row, noise):
        self.said = []
        return "?"

    def step(self, text, noise):
        self.said.append(text)
        count = len(self.said)
        done = count == 3 or (count == 2 and "b" in "".join(self.said))
        shown = "" if done else "?b" if "." in text else "?a"
        return Step(shown, ("a" in text) / 3, done, {"won": done, "truncated": False})

    def slot(self, history):
        return len(history)


class Truth:
    """Exact values: every turn the policy can draw, weighted by the model's own probability."""

    def __init__(self, model):
        self.model, self.laws, self.values = model.eval(), {}, {}

    @torch.inference_mode()
    def law(self, ids):
        if ids not in self.laws:
            logits = self.model(torch.tensor([ids])).logits[0, -1].double()
            self.laws[ids] = torch.softmax(logits / TEMPERATURE, -1).tolist()
        return self.laws[ids]

    def turns(self, ids):
        """Every turn of one or two tokens, and its probability."""
        for first, p in enumerate(self.law(ids)):
            if first == STOP:
                yield (first,), p
                continue
            for second, q in enumerate(self.law((*ids, first))):
                yield (first, second), p * q

    def value(self, *texts):
        """The mean outcome after these turns."""
        if texts not in self.values:
            game, words = Game(), Few()
            ids, total, done = tuple(words.encode(game.reset({}, None))), 0.0, False
            for text in texts:
                step = game.step(text, None)
                ids += (*words.encode(text), *words.encode(step.observation))
                total, done = total + step.reward, step.done
            self.values[texts] = (
                total
                if done
                else sum(p * self.value(*texts, words.decode(a)) for a, p in self.turns(ids))
            )
        return self.values[texts]

    def advantages(self, episode):
        said = [Few().decode(turn.action) for turn in episode.turns]
        values = [self.value(*said[:count]) for count in range(len(said) + 1)]
        return np.diff(values)


@pytest.fixture(scope="module")
def model():
    config = ModelConfig(
        layers=1, hidden=16, intermediate=32, heads=2, kv_heads=1, vocabulary=4, max_length=64
    )
    made = build_model(config, seed=6)
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(3 if weight.ndim == 2 else 1)
    return made


def game(model, seed, **options):
    engine = HfEngine(model, stop=frozenset({STOP}), max_turn_tokens=2, max_batch=256, **options)
    limits = Limits(max_context=60, max_turns=3)
    return Rollout(Few(model), engine, Game, seed=seed, temperature=TEMPERATURE, limits=limits)


@pytest.fixture(scope="module")
def adopted(model, dice):
    """A rollout, and episodes of the game that torch sampled, adopted by it."""
    away = game(model, 0, sampler=dice(5)).play([GAME], 1000, 0)
    here = game(model, 9)
    return here, here.adopt([log_of(one) for one in away], 1)


@pytest.fixture(scope="module")
def truth(model):
    return Truth(model)


@pytest.fixture(scope="module")
def found(adopted, truth):
    return biases(*adopted, truth)


def told(episode, change):
    """The episode with the noise of every turn changed."""
    turns = [
        dataclasses.replace(turn, info=turn.info | {"noise": change(turn.info["noise"])})
        for turn in episode.turns
    ]
    return dataclasses.replace(episode, turns=tuple(turns))


def biases(here, episodes, truth):
    """Mean of credit - A over all turns of a kind and over episodes, and its standard error.

    A turn's kind is its number and whether it has an `a`: a function of its history and action.
    """
    (credit,) = assign(here, group_by_task(episodes, seed=9, step=1), make("twice"))
    found = {}
    for episode, values in zip(episodes, credit.values, strict=True):
        error = values - truth.advantages(episode)
        found.setdefault("episode", []).append(error.sum())
        for turn, one in enumerate(error):
            found.setdefault((turn, 0 in episode.turns[turn].action), []).append(one)
    assert len(found) == 7 and min(map(len, found.values())) > 50
    means = np.array([np.mean(one) for one in found.values()])
    stderr = np.array([np.std(one, ddof=1) / np.sqrt(len(one)) for one in found.values()])
    return means, stderr, credit


RARE = norm.isf(1e-6 / 2 / 7)  # standard errors that a right answer exceeds once in a million


def test_the_game_is_what_it_is_for(truth):
    assert 0.1 < truth.value() < 0.9
    law = dict(truth.turns((3,)))
    assert len(law) == 13 and sum(law.values()) == pytest.approx(1)
    assert max(law.values()) < 0.5  # luck matters
    assert truth.value("a.") - truth.value("b.") > 0.2  # and so do decisions


def test_credit_from_retrofitted_twins_is_unbiased(adopted, found):
    assert {episode.num_turns for episode in adopted[1]} == {2, 3}
    means, stderr, _ = found
    assert np.all(RARE * stderr < 0.1)  # what the bound could hide
    assert np.all(np.abs(means) < RARE * stderr)


def test_noise_that_explains_other_tokens_is_biased(adopted, truth):
    here, episodes = adopted
    wrong = [
        told(one, lambda n: dataclasses.replace(n, tokens=(0,) * len(n.tokens)))
        for one in episodes[:500]
    ]
    means, stderr, _ = biases(here, wrong, truth)
    assert np.any(np.abs(means) > RARE * stderr)


def test_prior_noise_is_unbiased_too_but_not_coupled(adopted, truth, found):
    here, episodes = adopted
    prior = [told(one, lambda noise: noise.key) for one in episodes]
    means, stderr, independent = biases(here, prior, truth)
    assert np.all(np.abs(means) < RARE * stderr)
    assert spread(found[2]) < 0.85 * spread(independent)
    kept = here.fork([Fork(one, 0, KEEP) for one in prior[:100]])
    assert null_disagreements(kept)[1] > 50


def test_with_the_decision_kept_the_pair_is_identical(adopted):
    here, episodes = adopted
    kept = here.fork([Fork(one, 0, KEEP) for one in episodes[:300]])
    assert null_disagreements(kept) == (300, 0, 0)


def spread(credit):
    """Mean square of factual - twin over the decisions that came out otherwise."""
    forks = [one for one in credit.info["forks"] if not is_equal_decision(one)]
    return np.mean([(one.fork.episode.outcome - one.outcome) ** 2 for one in forks])


@pytest.mark.parametrize("method", ["twice", "independent", "vine", "rloo"])
def test_every_method_credits_adopted_episodes(adopted, method):
    here, episodes = adopted
    (credit,) = assign(here, group_by_task(episodes[:6], seed=9, step=1), make(method))
    assert all(np.isfinite(values).all() for values in credit.values)
