"""How methods stand at equal tokens: every metric at a budget, and differences between methods.

Leaves out what a given error costs (`tokens`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from twinstats._numbers import Number
from twinstats.board.curves import FLAGS, IDENTITY, METRICS, Curve, read
from twinstats.corrections import holm
from twinstats.means import mean_interval
from twinstats.pairs import paired

REFERENCES = ("twice", "vine")
"""The methods that all others are compared with."""


def board(settings: dict[str, dict[str, Curve]], budgets: Sequence[Number]) -> list[dict[str, Any]]:
    """Every metric at every budget, with 95% t intervals over seeds.

    Args:
        settings: The curves, by setting and method.
        budgets: Tokens as multiples of a base group's.

    Returns:
        Rows of setting, world, horizon, density, method, reconstructed, estimates_advantage,
        budget, metric, value, low, high, num_seeds, reason (why `value` is null).
    """
    return [
        _board_row(curve, budget, metric)
        for own in settings.values()
        for curve in own.values()
        for budget in budgets
        for metric in METRICS
    ]


def _board_row(curve: Curve, budget: Number, metric: str) -> dict[str, Any]:
    values, reason = read(curve, metric, budget)
    names = (*IDENTITY, "method", *FLAGS)
    row = {name: curve.known[name] for name in names} | {"budget": budget, "metric": metric}
    low, high = mean_interval(values) or (None, None)
    return row | {
        "value": float(values.mean()) if len(values) else None,
        "low": low,
        "high": high,
        "num_seeds": len(values),
        "reason": reason,
    }


def differences(
    settings: dict[str, dict[str, Curve]], budgets: Sequence[Number]
) -> list[dict[str, Any]]:
    """Ratios of squared errors at equal tokens, of every method over each of `REFERENCES`.

    The logarithm's differences are paired over seeds; Holm's correction is over all comparisons of
    a setting.

    Args:
        settings: The curves, by setting and method.
        budgets: Tokens as multiples of a base group's.

    Returns:
        Rows as those of `board`, with reference, ratio, low, high (95% t), pvalue, pvalue_holm.
    """
    found = []
    for own in settings.values():
        rows = [
            _difference(curve, own[name], budget)
            for name in REFERENCES
            if name in own
            for curve in own.values()
            if curve.known["method"] != name
            for budget in budgets
        ]
        found += _corrected(rows)
    return found


def _difference(curve: Curve, reference: Curve, budget: Number) -> dict[str, Any]:
    """The mean difference of log squared errors at a budget, paired over seeds, as a ratio."""
    name = reference.known["method"]
    row = {key: curve.known[key] for key in (*IDENTITY, "method", *FLAGS)}
    row |= {"reference": name, "budget": budget, "num_seeds": 0, "reason": None}
    empty = dict.fromkeys(("ratio", "low", "high", "pvalue"))
    own, reason = read(curve, "mse", budget)
    other, missing = read(reference, "mse", budget)
    if reason is not None or missing is not None:
        return row | empty | {"reason": reason or f"{name}: {missing}"}
    if min(own.min(), other.min()) <= 0:
        return row | empty | {"reason": "an error of 0 or less has no ratio"}
    result = paired(np.log(own), np.log(other), test="t")
    ends = result.confidence_interval(method="t") or (None, None)
    low, high = (None if end is None else float(np.exp(end)) for end in ends)
    reason = None if result.pvalue is not None else "one seed, or the same in all seeds"
    return row | {
        "ratio": None if result.estimate is None else float(np.exp(result.estimate)),
        "low": low,
        "high": high,
        "pvalue": result.pvalue,
        "num_seeds": result.num_pairs,
        "reason": reason,
    }


def _corrected(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    corrected = holm([row["pvalue"] for row in rows])
    return [row | {"pvalue_holm": p} for row, p in zip(rows, corrected, strict=True)]
