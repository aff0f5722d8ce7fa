"""Reads learning curves at fixed totals of tokens, and compares methods seed by seed.

Leaves out training (`_learner`).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from twinstats.corrections import holm
from twinstats.pairs import paired

NUM_MARKS = 48
"""Evenly spaced totals of tokens at which curves are read."""

BUDGETS = (1, 2, 3, 6, 9, 12, 18, 24, 36, 48)
"""The marks of which the tables tell."""

READINGS = {"end": "return", "mean": "mean"}
"""The policy that a budget pays for, and the mean over the marks up to there."""

CONTROLS = {
    "twice": "independent",
    "twice_budget": "independent_budget",
    "twice_two_sided": "independent_two_sided",
    "vine_coupled": "vine",
}
"""For each method with shared luck the same one without; equal decisions count as 0 in both."""

_BASELINE = "rloo"
_DIGITS = 9  # returns that differ by rounding alone are equal
_FIELDS = ("update", "auxiliary_tokens", "tokens", "return")
_Row = dict[str, Any]
_Curve = list[_Row]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """A method in a setting, each seed at the step size that the other seeds chose.

    Attributes:
        first: One of its rows.
        seeds: The seeds.
        budgets: Tokens at which the curves are read.
        steps: The step size of each seed; null with one seed, which has no others.
        grid: All step sizes.
        table: For each field, and `mean`, a table (seed, budget).
    """

    first: _Row
    seeds: tuple[int, ...]
    budgets: np.ndarray
    steps: tuple[float, ...] | None
    grid: tuple[float, ...]
    table: dict[str, np.ndarray]


def readings(rows: Sequence[_Row]) -> dict[tuple[str, str], Reading]:
    """Every method by (setting, method), in the rows' order."""
    curves: dict[tuple[str, str], dict[tuple[float, int], _Curve]] = {}
    for row in rows:
        own = curves.setdefault((row["setting"], row["method"]), defaultdict(list))
        own[row["step_size"], row["seed"]].append(row)
    return {key: _reading(own) for key, own in curves.items()}


def returns(read: dict[tuple[str, str], Reading]) -> list[_Row]:
    """The table `learning`."""
    return [
        _return_row(reading, kind, place)
        for reading in read.values()
        for kind in READINGS
        for place in range(len(reading.budgets))
    ]


def differences(read: dict[tuple[str, str], Reading]) -> list[_Row]:
    """The table `learning_differences`, Holm-corrected within each of its families.

    A family is a setting, a reading, a budget and a kind of comparison.
    """
    families: dict[tuple[str, str, float, bool], list[_Row]] = defaultdict(list)
    for (setting, method), reading in read.items():
        for against in (_BASELINE, CONTROLS.get(method)):
            if against == method or (setting, against) not in read:
                continue
            other = read[setting, str(against)]
            for kind, place in product(READINGS, range(len(reading.budgets))):
                row = _difference_row(reading, other, kind, place) | {"against": against}
                families[setting, kind, row["budget"], against == _BASELINE].append(row)
    return [row for family in families.values() for row in _corrected(family)]


def chosen(scores: np.ndarray) -> np.ndarray:
    """For each seed the step size with the best mean score on the other seeds (step, seed).

    The smaller one where two are equal.
    """
    others = scores.sum(axis=1, keepdims=True) - scores
    return np.asarray(np.round(others, _DIGITS).argmax(axis=0))


def read_curve(curve: Sequence[_Row], budgets: np.ndarray) -> np.ndarray:
    """The fields of the last point that each budget pays for (field, budget)."""
    points = sorted(curve, key=lambda point: int(point["update"]))
    last = np.searchsorted([point["tokens"] for point in points], budgets, side="right") - 1
    columns = np.array([[point[name] for point in points] for name in _FIELDS], np.float64)
    return columns[:, last]


def _reading(curves: dict[tuple[float, int], _Curve]) -> Reading:
    first = next(iter(curves.values()))[0]
    grid = tuple(sorted({step for step, _ in curves}))
    seeds = tuple(dict.fromkeys(seed for _, seed in curves))
    marks = first["total_tokens"] * np.arange(1, NUM_MARKS + 1) / NUM_MARKS
    read = {key: read_curve(curve, marks) for key, curve in curves.items()}
    best = chosen(np.array([[read[step, seed][-1].mean() for seed in seeds] for step in grid]))
    steps = tuple(grid[place] for place in best.tolist())
    fields = np.stack([read[key] for key in zip(steps, seeds, strict=True)], axis=1)
    table = dict(zip(_FIELDS, fields, strict=True))
    table["mean"] = table["return"].cumsum(axis=1) / np.arange(1, NUM_MARKS + 1)
    told = np.array(BUDGETS) - 1
    return Reading(
        first=first,
        seeds=seeds,
        budgets=marks[told],
        steps=steps if len(seeds) > 1 else None,
        grid=grid,
        table={name: column[:, told] for name, column in table.items()},
    )


def _return_row(reading: Reading, kind: str, place: int) -> _Row:
    first = reading.first
    kept = ("setting", "world", "method", "best_return")
    flags = ("estimates_advantage", "reconstructed", "helpers")
    row = {name: first[name] for name in (*kept, *flags)}
    row |= _place(reading, kind, place)
    empty = ("return", "low", "high", "updates", "auxiliary_share", "step_size", "is_edge")
    if reading.steps is None:
        return row | dict.fromkeys(empty) | {"reason": "one seed: no other chose its step size"}
    value, low, high, _ = _mean(
        reading.table[READINGS[kind]][:, place], np.zeros(len(reading.seeds))
    )
    (step, _), *_ = Counter(reading.steps).most_common(1)
    tokens, auxiliary = (reading.table[name][:, place] for name in ("tokens", "auxiliary_tokens"))
    return row | {
        "return": value,
        "low": low,
        "high": high,
        "updates": float(reading.table["update"][:, place].mean()),
        "auxiliary_share": float(auxiliary.sum() / tokens.sum()) if tokens.any() else None,
        "step_size": step,
        "is_edge": step in (reading.grid[0], reading.grid[-1]),
        "reason": None,
    }


def _place(reading: Reading, kind: str, place: int) -> _Row:
    budget = float(reading.budgets[place])
    return {"reading": kind, "budget": budget, "num_seeds": len(reading.seeds)}


def _difference_row(reading: Reading, other: Reading, kind: str, place: int) -> _Row:
    first = reading.first
    row = {name: first[name] for name in ("setting", "world", "method")}
    row |= _place(reading, kind, place)
    if reading.steps is None or reading.seeds != other.seeds:
        empty = dict.fromkeys(("difference", "low", "high", "pvalue"))
        return row | empty | {"reason": "one seed, or other seeds than the other method's"}
    own, others = (one.table[READINGS[kind]][:, place] for one in (reading, other))
    value, low, high, pvalue = _mean(own, others)
    return row | {
        "difference": value,
        "low": low,
        "high": high,
        "pvalue": pvalue,
        "reason": "the difference does not vary over seeds" if pvalue is None else None,
    }


def _mean(
    values: np.ndarray, others: np.ndarray
) -> tuple[float | None, float | None, float | None, float | None]:
    """Mean difference with its 95% t interval and p-value; no interval where nothing varies."""
    values, others = np.round(values, _DIGITS), np.round(others, _DIGITS)
    result = paired(values, others, test="t")
    if np.ptp(np.round(values - others, _DIGITS)) == 0:
        return result.estimate, None, None, None
    low, high = result.confidence_interval(method="t") or (None, None)
    return result.estimate, low, high, result.pvalue


def _corrected(family: list[_Row]) -> list[_Row]:
    """Rows with their p-values corrected for the number of those that have one."""
    corrected = holm([row["pvalue"] for row in family])
    return [row | {"pvalue_holm": p} for row, p in zip(family, corrected, strict=True)]
