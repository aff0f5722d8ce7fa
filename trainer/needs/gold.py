"""How likely the right answer is in each state: the need `gold_logprob`.

Under the weights of now, at the sampling temperature. A failed episode has nulls only.
"""

from collections.abc import Sequence

import numpy as np

from trainer.needs.answered import answers_of
from trainer.needs.provider import Computed, Setup
from trainer.policy import Policy
from trainer.policy.passes import Passage, logprobs
from trainer.tasks.answers import Answers
from twinstats.episodes import Episode
from twinstats.errors import UsageError


def gold_logprob(setup: Setup) -> Computed:
    """Mean log-probability of the right answer's tokens before each turn and at the end, nats.

    What opens an answer (`<answer>`) stands before the right answer and is not counted. Of several
    right answers the likeliest counts. In a task of several parts it is the answer to the part in
    play before that turn, so a turn that ends a part compares two questions; at the end, where no
    part is in play, it is the last one's.
    One passage a state and answer: as if the episode was encoded half as often as it has turns.

    Raises:
        UsageError: The task does not tell its right answers, or (when it provides) one is empty.

    Source: Wang et al., arXiv 2510.14967, and github.com/GuoqingWang1/IGPO, which also counts
        the answer's tokens alone.
    """
    task = answers_of("gold_logprob", setup.config, setup.environment())
    policy = setup.policy
    temperature = setup.config.rollout.temperature

    def compute(episodes: Sequence[Episode]) -> list[np.ndarray]:
        asked = [_gold_passages(policy, task, episode) for episode in episodes]
        passages = [one for states in asked for golds in states for one in golds]
        found = iter(logprobs(policy, passages, temperature=temperature))
        return [
            np.array([max(float(next(found).mean()) for _ in golds) for golds in states])
            for states in asked
        ]

    return Computed("gold_logprob", compute, lambda e: np.full(e.num_turns + 1, np.nan))


def _gold_passages(policy: Policy, task: Answers, episode: Episode) -> list[list[Passage]]:
    """For each state of an episode, every right answer where a turn would give it."""
    context: list[int] = []
    texts: list[str] = []
    found = []
    for turn in episode.turns:
        context += turn.info["shown"]
        found.append(_golds(policy, task, episode, context, texts))
        context += turn.action
        texts.append(policy.decode(turn.action))
    context += policy.encode(str(episode.final_state))
    found.append(_golds(policy, task, episode, context, texts))
    return found


def _golds(
    policy: Policy, task: Answers, episode: Episode, context: Sequence[int], texts: Sequence[str]
) -> list[Passage]:
    found = []
    for opening, text in task.answers(episode.task.info, texts):
        before, gold = [*context, *policy.encode(opening)], policy.encode(text)
        if not gold:
            raise UsageError(f"Task {episode.task.id!r} has an empty right answer.")
        places = range(len(before), len(before) + len(gold))
        found.append(Passage([*before, *gold], places))
    return found
