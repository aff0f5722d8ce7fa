"""Baselines of a group: the one place where outcomes are centred.

Leaves out everything that looks inside an episode.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from twinstats.episodes import Credit, Episode, Group


def outcomes(episodes: Sequence[Episode]) -> np.ndarray:
    """Outcomes as float64; NaN marks a failed episode."""
    values = [np.nan if e.outcome is None else float(e.outcome) for e in episodes]
    return np.array(values, np.float64)


def leave_one_out(values: np.ndarray) -> np.ndarray:
    """Each value minus the mean of the others: n / (n - 1) * (value - mean).

    NaN entries (failed) are left out and stay NaN. Equal values give exactly 0. With fewer than
    two values there are no others: all NaN. Sums are exactly rounded, so that the order of the
    group changes no bit.

    >>> leave_one_out(np.array([1.0, 0.0, 0.0])).tolist()
    [1.0, -0.5, -0.5]
    """
    scored = ~np.isnan(values)
    result = np.full(len(values), np.nan)
    kept = values[scored]
    if len(kept) < 2:
        return result
    same = kept.max() == kept.min()
    result[scored] = 0.0 if same else kept - (math.fsum(kept) - kept) / (len(kept) - 1)
    return result


def standardised(values: np.ndarray, *, ddof: int = 1, epsilon: float = 1e-6) -> np.ndarray:
    """(value - mean) / (standard deviation + epsilon), as `leave_one_out` treats the edge cases.

    >>> standardised(np.array([1.0, 0.0]), epsilon=0.0).round(6).tolist()
    [0.707107, -0.707107]
    """
    scored = ~np.isnan(values)
    result = np.full(len(values), np.nan)
    kept = values[scored]
    if len(kept) < 2:
        # One scored member of a larger group has no signal; a group of one is undefined.
        result[scored] = 0.0 if len(values) > 1 else np.nan
        return result
    if kept.max() == kept.min():
        result[scored] = 0.0
        return result
    centred = kept - math.fsum(kept) / len(kept)
    spread = math.sqrt(math.fsum(centred**2) / (len(kept) - ddof)) + epsilon
    result[scored] = centred / spread
    return result


def broadcast(group: Group, advantages: np.ndarray) -> Credit:
    """Credit that gives every turn of an episode the episode's advantage."""
    values = [
        np.full(episode.num_turns, advantage)
        for episode, advantage in zip(group.episodes, advantages, strict=True)
    ]
    return Credit(episodes=group.episodes, values=values, info=group_info(group))


def group_info(group: Group) -> dict[str, Any]:
    """Counts that say how informative a group is, and why something in it is null."""
    scored = outcomes(group.episodes)
    scored = scored[~np.isnan(scored)]
    info: dict[str, Any] = {
        "unscored": len(group.episodes) - len(scored),
        "singleton_groups": int(len(scored) == 1),
        "zero_variance": bool(len(scored) > 1 and scored.max() == scored.min()),
    }
    if len(scored) < 2:
        info["reason"] = f"{len(scored)} scored episode: a group baseline needs at least 2"
    return info
