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


def exact_mean(values: np.ndarray) -> float:
    """Mean of the entries that are not NaN; NaN where there are none.

    The sum is exactly rounded, and equal values have that value as their mean.

    >>> exact_mean(np.array([0.1, np.nan, 0.1, 0.1]))
    0.1
    """
    kept = values[~np.isnan(values)]
    if not len(kept):
        return math.nan
    return float(kept[0] if kept.max() == kept.min() else math.fsum(kept) / len(kept))


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


def centred(values: np.ndarray) -> np.ndarray:
    """Each value minus the mean of all: (n - 1) / n of the `leave_one_out` difference.

    Equal values give exactly 0, and so does one scored member of a larger group; a group of one is
    undefined. NaN entries (failed) are left out and stay NaN.

    >>> centred(np.array([1.0, 0.0, np.nan])).tolist()
    [0.5, -0.5, nan]
    """
    scored = ~np.isnan(values)
    if len(values) > 1 and scored.all():
        return _deviations(values)
    result = np.full(len(values), np.nan)
    kept = values[scored]
    if len(kept) < 2:
        # One scored member of a larger group has no signal; a group of one is undefined.
        result[scored] = 0.0 if len(values) > 1 else np.nan
        return result
    result[scored] = _deviations(kept)
    return result


def _deviations(values: np.ndarray) -> np.ndarray:
    """Of at least two values, none of them NaN."""
    listed = values.tolist()
    if min(listed) == max(listed):
        return np.zeros(len(values))
    result: np.ndarray = values - math.fsum(listed) / len(listed)
    return result


def standardised(values: np.ndarray, *, ddof: int = 1, epsilon: float = 1e-6) -> np.ndarray:
    """(value - mean) / (standard deviation + epsilon), as `centred` treats the edge cases.

    >>> standardised(np.array([1.0, 0.0]), epsilon=0.0).round(6).tolist()
    [0.707107, -0.707107]
    """
    deviations = centred(values)
    kept = [value for value in deviations.tolist() if value == value]
    if not any(kept):
        return deviations
    square = math.fsum(value * value for value in kept)
    return deviations / (math.sqrt(square / (len(kept) - ddof)) + epsilon)


def standardised_turns(
    turns: Sequence[np.ndarray], *, ddof: int = 1, epsilon: float = 1e-6
) -> list[np.ndarray]:
    """`standardised` over the turns of all episodes together, one array an episode.

    The only turn that several episodes have between them gives exactly 0.
    """
    together = np.concatenate(turns)
    scaled = standardised(together, ddof=ddof, epsilon=epsilon)
    if len(turns) > len(together) == 1:
        scaled = together * 0.0
    return np.split(scaled, np.cumsum([len(own) for own in turns])[:-1])


def standardised_by_index(
    turns: Sequence[np.ndarray], *, ddof: int = 1, epsilon: float = 1e-6
) -> list[np.ndarray]:
    """`standardised` over turns of the same index, one array an episode.

    An index that one of several episodes has gives exactly 0.
    """
    table = np.full((len(turns), max(map(len, turns), default=0)), np.nan)
    for row, own in zip(table, turns, strict=True):
        row[: len(own)] = own
    for column in table.T:
        column[:] = standardised(column, ddof=ddof, epsilon=epsilon)
    return [row[: len(own)] for row, own in zip(table, turns, strict=True)]


def uncomparable(group: Group) -> Credit | None:
    """The credit of a group with fewer than two scored episodes, where turns are compared.

    Null for a group of one, and exactly 0 for the one scored of several; null (no credit) where
    there is something to compare.
    """
    scored = outcomes(group.episodes)
    if (~np.isnan(scored)).sum() > 1:
        return None
    return broadcast(group, centred(scored))


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
