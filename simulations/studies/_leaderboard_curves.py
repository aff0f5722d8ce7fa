"""The leaderboard's points as curves over tokens, one a setting and method, and their metrics.

Leaves out what is made of them (`_leaderboard_board`, `_leaderboard_tokens`).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

METRICS = (
    "bias",
    "variance",
    "mse",
    "mse_scaled",
    "sign_accuracy",
    "kendall",
    "cosine",
    "auxiliary_share",
)
IDENTITY = ("setting", "world", "horizon", "density")
FLAGS = ("reconstructed", "estimates_advantage")
_SQUARES = ("variance", "mse", "mse_scaled")
"""Metrics that are read on a log scale where they are positive."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """A method in a setting: its points by seed and knob, by rising knob.

    Attributes:
        known: The columns that all its rows share.
        seeds: Its seeds.
        knobs: Values of its knob; none where the world refused it.
        columns: The other columns, each (seed, knob).
        metrics: The metrics, each (seed, knob); NaN where undefined.
        reason: Why it was not played.
    """

    known: dict[str, Any]
    seeds: tuple[int, ...]
    knobs: tuple[float, ...]
    columns: dict[str, np.ndarray]
    metrics: dict[str, np.ndarray]
    reason: str | None

    @property
    def budget(self) -> np.ndarray:
        """Tokens over those of a base group (seed, knob)."""
        found: np.ndarray = self.columns["tokens"] / self.columns["base_tokens"]
        return found


def curves(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Curve]]:
    """All curves, by setting and method, in the order of the rows."""
    own: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        own[row["setting"], row["method"]].append(row)
    found: dict[str, dict[str, Curve]] = defaultdict(dict)
    for (setting, method), points in own.items():
        found[setting][method] = _curve(points)
    return dict(found)


def _curve(points: Sequence[dict[str, Any]]) -> Curve:
    first = points[0]
    known = {name: first[name] for name in (*IDENTITY, "method", *FLAGS, "claims_unbiased")}
    seeds = tuple(dict.fromkeys(point["seed"] for point in points))
    if first["reason"] is not None:
        return Curve(
            known=known, seeds=seeds, knobs=(), columns={}, metrics={}, reason=first["reason"]
        )
    knobs = tuple(dict.fromkeys(point["knob"] for point in points))
    at = {(point["seed"], point["knob"]): point for point in points}
    columns = {
        name: np.array([[at[seed, knob][name] for knob in knobs] for seed in seeds], np.float64)
        for name, value in first.items()
        if isinstance(value, float) and name not in ("knob", "density")
    }
    metrics = _metrics(columns, estimates=first["estimates_advantage"])
    return Curve(
        known=known, seeds=seeds, knobs=knobs, columns=columns, metrics=metrics, reason=None
    )


def _metrics(columns: dict[str, np.ndarray], *, estimates: bool) -> dict[str, np.ndarray]:
    count = columns["num_turns"]
    size, bias = columns["truth_square"] / count, columns["error"] / count
    squares, cross = columns["credit_square"] / count, columns["credit_truth"] / count
    scale = _scales(columns)
    mse = (squares - 2 * cross + size) / size
    scaled = (scale**2 * squares - 2 * scale * cross + size) / size
    blank = np.full_like(mse, np.nan)
    return {
        "bias": bias / np.sqrt(size) if estimates else blank,
        "variance": mse - bias**2 / size if estimates else blank,
        "mse": mse if estimates else scaled,
        "mse_scaled": scaled,
        "sign_accuracy": columns["sign_accuracy"],
        "kendall": columns["kendall"],
        "cosine": columns["cosine"],
        "auxiliary_share": columns["auxiliary_tokens"] / columns["tokens"],
    }


def _scales(columns: dict[str, np.ndarray]) -> np.ndarray:
    """The least-squares scale of each (seed, knob), from the other seeds at the same knob.

    NaN with one seed; 0 where the others' credit is 0 throughout.
    """
    squares, cross = columns["credit_square"], columns["credit_truth"]
    if len(squares) < 2:
        return np.full_like(squares, np.nan)
    others, crossed = squares.sum(axis=0) - squares, cross.sum(axis=0) - cross
    return np.where(others > 0, crossed / np.where(others > 0, others, 1.0), 0.0)


def read(curve: Curve, metric: str, budget: float) -> tuple[np.ndarray, str | None]:
    """A metric of every seed at a budget, or no seed and the reason.

    Read between the two points around it, straight in log tokens, and in the logarithm of
    squared errors; never beyond the sweep.
    """
    none = np.zeros(0)
    if curve.reason is not None:
        return none, curve.reason
    values = curve.metrics[metric]
    if np.isnan(values).any():
        return none, _undefined(curve, metric)
    places = curve.budget
    lowest, highest = places.min(axis=1).max(), places.max(axis=1).min()
    if budget < lowest:
        return none, f"starts at budget {lowest:.3g}"
    if budget > highest:
        return none, f"its sweep ends at budget {highest:.3g}"
    logs = metric in _SQUARES and bool((values > 0).all())
    pairs = zip(places, np.log(values) if logs else values, strict=True)
    found = np.array([_straight(budget, place, value) for place, value in pairs])
    return (np.exp(found) if logs else found), None


def _straight(budget: float, places: np.ndarray, values: np.ndarray) -> float:
    order = np.argsort(places, kind="stable")
    return float(np.interp(np.log(budget), np.log(places[order]), values[order]))


def _undefined(curve: Curve, metric: str) -> str:
    if metric in ("bias", "variance") and not curve.known["estimates_advantage"]:
        return "its scale does not estimate A"
    if metric in ("mse", "mse_scaled") and len(curve.seeds) < 2:
        return "one seed only: no other seed to fit a scale on"
    return "some turns or steps got no credit"
