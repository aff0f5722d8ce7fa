"""What the policy would have said had it been told more: needs `teacher_gap`, `hindsight_logprob`.

What it is told, in the task's own wording, is put before the episode, which makes a passage longer
than any episode: positions must go on that far, as rotary ones do; nothing is cut.
Log-probabilities are those of the weights of now, at the sampling temperature. A failed episode
has nulls only.
"""

from collections.abc import Sequence

import numpy as np

from trainer.needs.answered import answers_of
from trainer.needs.provider import Computed, Setup, null_turns
from trainer.policy.passes import actions, by_turn, logprobs
from twinstats.episodes import Episode


def teacher_gap(setup: Setup) -> Computed:
    """The gap log pi(token | right answers, context) - log pi(token | context), an array a turn.

    In nats. The teacher is the policy itself, with the right answers of the whole task put before
    the episode. Positive: who knows the answers would rather say the token.

    Raises:
        UsageError: The task does not tell its right answers.

    Source: METHODS 5b, 8 and 14 (CRAFT, SHARPO, FACTOR).
    """
    task = answers_of("teacher_gap", setup.config, setup.environment())
    policy = setup.policy
    temperature = setup.config.rollout.temperature

    def compute(episodes: Sequence[Episode]) -> list[list[np.ndarray]]:
        told = [policy.encode(task.privileged(episode.task.info)) for episode in episodes]
        informed = [actions(e, before) for e, before in zip(episodes, told, strict=True)]
        teacher = logprobs(policy, informed, temperature=temperature)
        student = logprobs(policy, [actions(e) for e in episodes], temperature=temperature)
        return [
            by_turn(one - other, episode)
            for one, other, episode in zip(teacher, student, episodes, strict=True)
        ]

    return Computed("teacher_gap", compute, _null_tokens)


def hindsight_logprob(setup: Setup) -> Computed:
    """Mean log-probability of each turn's tokens given how the episode ended, nats.

    The policy itself looks back: the ending, in the task's wording, is put before the episode.

    Raises:
        UsageError: The task does not tell its right answers.

    Source: HCAPO, arXiv 2603.08754, known to us from notes on it.
    """
    task = answers_of("hindsight_logprob", setup.config, setup.environment())
    policy = setup.policy
    temperature = setup.config.rollout.temperature

    def compute(episodes: Sequence[Episode]) -> list[np.ndarray]:
        endings = [
            policy.encode(task.ending(e.task.info, [turn.info["step"] for turn in e.turns]))
            for e in episodes
        ]
        passages = [actions(e, before) for e, before in zip(episodes, endings, strict=True)]
        found = logprobs(policy, passages, temperature=temperature)
        return [
            np.array([turn.mean() for turn in by_turn(own, episode)])
            for own, episode in zip(found, episodes, strict=True)
        ]

    return Computed("hindsight_logprob", compute, null_turns)


def _null_tokens(episode: Episode) -> list[np.ndarray]:
    return [np.full(turn.num_tokens, np.nan) for turn in episode.turns]
