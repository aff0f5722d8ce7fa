"""Points of credit methods against the truth as curves over tokens, and their metrics.

A point is what one method at one value of its knob did on one seed, as sums over turns:

- setting, world, horizon, density: where it was played, told apart by `setting`; method, seed,
  knob; estimates_advantage, reconstructed, claims_unbiased: what is said of the method; reason: why
  it was not played or not measured (then the numbers are null).
- tokens, auxiliary_tokens (of forks alone), base_tokens (of a base group without forks), num_turns,
  error (credit minus truth), credit_square, credit_truth (products), truth_square: numbers.
- truth_noise, where the truth is itself an estimate: the sum of its squared standard errors. The
  estimate must be independent of the credit.
- sign_accuracy, kendall, cosine, where they were measured; other numbers are kept as they are.

Leaves out what is made of the curves (`standings`, `tokens`).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinstats._numbers import Number

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
"""What is read of curves; squares over the mean of A^2, bias over its root."""

IDENTITY = ("setting", "world", "horizon", "density")
"""What tells settings apart."""

FLAGS = ("reconstructed", "estimates_advantage")
"""What else is known of a method's curve."""

_LABELS = (*IDENTITY, *FLAGS, "claims_unbiased", "method", "seed", "knob", "reason")
_SQUARES = ("variance", "mse", "mse_scaled")  # read on a log scale where they are positive
_MEASURED = ("sign_accuracy", "kendall", "cosine")  # taken from the points as they are


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """A method in a setting: its points by seed and knob, by rising knob.

    Attributes:
        known: The columns that all its rows share.
        seeds: Its seeds.
        knobs: Values of its knob; none where the world refused it.
        columns: The other columns, each (seed, knob).
        metrics: The metrics, each (seed, knob); NaN where undefined.
        reason: Why it was not played, or not measured at one of its points.
    """

    known: dict[str, Any]
    seeds: tuple[int, ...]
    knobs: tuple[Number, ...]
    columns: dict[str, np.ndarray]
    metrics: dict[str, np.ndarray]
    reason: str | None

    @property
    def budget(self) -> np.ndarray:
        """Tokens over those of a base group (seed, knob)."""
        found: np.ndarray = self.columns["tokens"] / self.columns["base_tokens"]
        return found


def curves(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Curve]]:
    """All curves, by setting and method, in the order of the rows.

    A seed without numbers of any method, as where nothing of the truth is known, is left out of its
    setting. All other seeds count for every method, so that methods are compared on the same ones.

    Args:
        rows: Points, one a setting, method, seed and knob: see the module.

    Raises:
        KeyError: A point is missing: every seed of a method has each of its knobs.
    """
    own: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in _measured(rows):
        own[row["setting"], row["method"]].append(row)
    found: dict[str, dict[str, Curve]] = defaultdict(dict)
    for (setting, method), points in own.items():
        found[setting][method] = _curve(points)
    return dict(found)


def _measured(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points of the seeds that have numbers; of a setting without any, all points."""
    known = {(row["setting"], row["seed"]) for row in rows if row["reason"] is None}
    settings = {setting for setting, _ in known}
    return [
        row
        for row in rows
        if (row["setting"], row["seed"]) in known or row["setting"] not in settings
    ]


def _curve(points: Sequence[dict[str, Any]]) -> Curve:
    first = points[0]
    known = {name: first[name] for name in (*IDENTITY, "method", *FLAGS, "claims_unbiased")}
    seeds = tuple(dict.fromkeys(point["seed"] for point in points))
    reason = next((point["reason"] for point in points if point["reason"] is not None), None)
    if reason is not None:
        return Curve(known=known, seeds=seeds, knobs=(), columns={}, metrics={}, reason=reason)
    knobs = tuple(dict.fromkeys(point["knob"] for point in points))
    at = {(point["seed"], point["knob"]): point for point in points}
    columns = {
        name: np.array([[at[seed, knob][name] for knob in knobs] for seed in seeds], np.float64)
        for name, value in first.items()
        if isinstance(value, Number) and name not in _LABELS
    }
    metrics = _metrics(columns, estimates=first["estimates_advantage"])
    return Curve(
        known=known, seeds=seeds, knobs=knobs, columns=columns, metrics=metrics, reason=None
    )


def _metrics(columns: dict[str, np.ndarray], *, estimates: bool) -> dict[str, np.ndarray]:
    """The metrics of a method; mean squared error is (C^2 - 2 C A + A^2) / A^2, all as means.

    With a noisy truth A + e, E[(C - A - e)^2] and E[(A + e)^2] are both too large by E[e^2], which
    is subtracted from both; so an error can be negative.
    """
    count, noise = columns["num_turns"], columns.get("truth_noise", np.zeros(1))
    size, bias = _size(columns), columns["error"] / count
    true_square = (columns["truth_square"] - noise) / count
    squares, cross = columns["credit_square"] / count, columns["credit_truth"] / count
    scale = _scales(columns)
    mse = (squares - 2 * cross + true_square) / size
    scaled = (scale**2 * squares - 2 * scale * cross + true_square) / size
    blank = np.full_like(mse, np.nan)
    return {
        "bias": bias / np.sqrt(size) if estimates else blank,
        "variance": mse - bias**2 / size if estimates else blank,
        "mse": mse if estimates else scaled,
        "mse_scaled": scaled,
        "auxiliary_share": columns["auxiliary_tokens"] / columns["tokens"],
    } | {name: columns.get(name, blank) for name in _MEASURED}


def _size(columns: dict[str, np.ndarray]) -> np.ndarray:
    """The mean of A^2 of each (seed, knob), NaN where it is not positive.

    With a noisy truth that of all seeds together: a ratio to few turns' would be biased.
    """
    if "truth_noise" not in columns:
        size = columns["truth_square"] / columns["num_turns"]
    else:
        signal = (columns["truth_square"] - columns["truth_noise"]).sum(axis=0)
        mean = signal / columns["num_turns"].sum(axis=0)
        size = np.broadcast_to(mean, columns["num_turns"].shape)
    return np.where(size > 0, size, np.nan)


def _scales(columns: dict[str, np.ndarray]) -> np.ndarray:
    """The least-squares scale of each (seed, knob), from the other seeds at the same knob.

    NaN with one seed; 0 where the others' credit is 0 throughout.
    """
    squares, cross = columns["credit_square"], columns["credit_truth"]
    if len(squares) < 2:
        return np.full_like(squares, np.nan)
    others, crossed = squares.sum(axis=0) - squares, cross.sum(axis=0) - cross
    return np.where(others > 0, crossed / np.where(others > 0, others, 1.0), 0.0)


def read(curve: Curve, metric: str, budget: Number) -> tuple[np.ndarray, str | None]:
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


def _straight(budget: Number, places: np.ndarray, values: np.ndarray) -> float:
    order = np.argsort(places, kind="stable")
    return float(np.interp(np.log(budget), np.log(places[order]), values[order]))


def _undefined(curve: Curve, metric: str) -> str:
    if metric in ("bias", "variance") and not curve.known["estimates_advantage"]:
        return "its scale does not estimate A"
    if metric in _MEASURED and np.isnan(curve.metrics[metric]).all():
        return "not measured"
    if np.isnan(_size(curve.columns)).any():
        return "the truth does not differ from 0 by more than its noise"
    if metric in ("mse", "mse_scaled") and len(curve.seeds) < 2:
        return "one seed only: no other seed to fit a scale on"
    return "some turns or steps got no credit"
