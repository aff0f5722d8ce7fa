"""Whether methods are unbiased on the leaderboard, shown as equivalence.

A place is all turns, or the turns with one action. The bias of a place is the mean error of a
group there over the mean number of its turns, in units of the root mean square advantage. Groups
are the independent units; bounds hold for all places of a method and setting at once.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulations.measure import Scored
from simulations.studies._equivalence import simultaneous
from twinstats.board import FLAGS, IDENTITY

MARGIN = 0.25
"""Of the root mean square advantage."""


def place_sums(scored: Scored, num_actions: int) -> dict[str, list[float]]:
    """Sums over groups of a group's error in each place and of its square, and turns there.

    Actions first, all turns last.
    """
    error = np.zeros((scored.num_groups, num_actions + 1))
    turns = np.zeros(num_actions + 1)
    action = scored.place[2]
    np.add.at(error, (scored.group, action), scored.error)
    np.add.at(turns, action, 1.0)
    error[:, -1], turns[-1] = error.sum(axis=1), turns.sum()
    return {
        "place_error": error.sum(axis=0).tolist(),
        "place_square": (error**2).sum(axis=0).tolist(),
        "place_turns": turns.tolist(),
    }


def biases(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `leaderboard_bias`: each method at the last value of its knob."""
    own: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["estimates_advantage"] and row["reason"] is None:
            own[row["setting"], row["method"]].append(row)
    return [row for points in own.values() for row in _method_rows(points)]


def _method_rows(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    last = max(point["knob"] for point in points)
    points = [point for point in points if point["knob"] == last]
    known = {name: points[0][name] for name in (*IDENTITY, "method", *FLAGS, "knob")}
    groups = round(sum(point["num_groups"] * _num_steps(point) for point in points))
    total, square, turns = (
        np.sum([point[name] for point in points], axis=0)
        for name in ("place_error", "place_square", "place_turns")
    )
    size = sum(p["truth_square"] for p in points) / sum(p["num_turns"] for p in points)
    met = np.flatnonzero(turns)
    rows = []
    for place in met.tolist():
        mean, stderr, half = simultaneous(total[place], square[place], groups, len(met))
        unit = turns[place] / groups * np.sqrt(size)
        bias, half = float(mean / unit), float(half / unit)
        rows.append(
            {
                "place": "all" if place == len(turns) - 1 else f"action {place}",
                "bias": bias,
                "stderr": float(stderr / unit),
                "low": bias - half,
                "high": bias + half,
                "margin": MARGIN,
                "equivalent": bool(abs(bias) + half < MARGIN),
                "excludes_zero": bool(abs(bias) > half),
                "claimed": points[0]["claims_unbiased"],
                "num_groups": groups,
            }
        )
    return [known | row for row in rows]


def _num_steps(point: dict[str, Any]) -> float:
    """Steps of a row: sums by place are over all of them, the other numbers are means."""
    return float(point["place_turns"][-1] / point["num_turns"])
