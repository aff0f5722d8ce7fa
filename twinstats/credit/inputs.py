"""What methods read from an episode besides its outcome, checked at the door.

Leaves out how worlds fill `Episode.info` (`World.provide`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from twinstats.episodes import Episode, Task

_SOURCES = {
    "value": "a critic",
    "teacher_gap": "a teacher pass with privileged context",
    "gold_logprob": "the mean log-probability of the gold answer's tokens before each turn",
    "hindsight_logprob": "the mean log-probability of each turn's tokens given the outcome",
    "first_entropy": "the entropies of each turn's first tokens",
    "segments": "a judge",
    "features": "features of each state",
    "predicates": "the predicates that hold in each state",
    "entities": "the target entities found so far",
    "tool": "the name of each turn's tool",
    "turn_reward": "a reward for each turn",
    "state_score": "a score of each state",
    "signature": "signatures of each turn's state and action",
}
_AFTER_LAST = {"value", "gold_logprob", "features", "predicates", "entities", "state_score"}


def needed(method: str, episode: Episode, need: str) -> Sequence[Any] | np.ndarray:
    """`episode.info[need]`, one entry a turn, or a state (one more) for what belongs to states.

    `segments` may have any number of entries.

    Raises:
        ValueError: It is missing (the sentence names method, need and where it comes from), or has
            another number of entries.
    """
    if need not in episode.info:
        raise lacking(method, need, episode)
    found: Sequence[Any] | np.ndarray = episode.info[need]
    wanted = episode.num_turns + (need in _AFTER_LAST)
    if need != "segments" and len(found) != wanted:
        raise ValueError(
            f"{need!r} of episode {episode.name} must have {wanted} entries "
            f"({episode.num_turns} turns), got {len(found)}."
        )
    return found


def lacking(method: str, need: str, episode: Episode) -> ValueError:
    """What a missing need raises; it says where a need of this house comes from."""
    source = f" ({_SOURCES[need]})" if need in _SOURCES else ""
    return ValueError(
        f"Method {method!r} needs {need!r}{source}, "
        f"which the world did not provide for episode {episode.name}."
    )


_CONSTANTS = {
    "entities": "the target entities",
    "predicate_graph": "pairs (u, v), u a precondition of v",
    "goal": "the goal predicates",
}


def task_constant(method: str, task: Task, key: str) -> Any:
    """`task.info[key]`, a constant of the task.

    Raises:
        ValueError: It is missing; the sentence names method, key and what it holds.
    """
    if key not in task.info:
        raise ValueError(
            f"Method {method!r} needs `task.info[{key!r}]` ({_CONSTANTS[key]}), "
            f"which task {task.id!r} does not have."
        )
    return task.info[key]


def step_rewards(episode: Episode) -> np.ndarray:
    """The reward of each turn; the last one's is what is left of the outcome.

    NaN throughout where the episode failed.
    """
    if episode.outcome is None:
        return np.full(episode.num_turns, np.nan)
    rewards = episode.column("reward").copy()
    rewards[-1] = episode.outcome - rewards[:-1].sum()
    return rewards


def returns_to_go(rewards: np.ndarray, discount: float = 1.0) -> np.ndarray:
    """Discounted returns: sum over k >= t of discount^(k - t) * reward_k, one entry a turn.

    >>> returns_to_go(np.array([1.0, 0.0, 4.0]), 0.5).tolist()
    [2.0, 2.0, 4.0]
    """
    result = np.array(rewards, np.float64)
    for turn in range(len(result) - 2, -1, -1):
        result[turn] += discount * result[turn + 1]
    return result
