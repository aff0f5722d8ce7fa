"""Tokens to equal error, and what equal decisions and shared luck each give of twins' advantage.

Curves are means over seeds. Intervals: Dirichlet(1) weights over seeds (the Bayesian bootstrap),
the same keyed draws for every method of a setting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinstats._numbers import Number
from twinstats.board.curves import FLAGS, IDENTITY, Curve, read
from twinstats.noise import generator

NUM_DRAWS = 2000
REFERENCE = ("vine", 9)
"""The method and its knob whose error others have to reach: VinePPO with 9 rollouts."""

ERRORS = ("mse", "mse_scaled")
"""As the methods give it, and after the best scale: free-scale methods have the second only."""
_ROUNDING = 1 + 1e-9
_LEAST = 1e-12  # an error of 0 has no logarithm
FORMS = {
    "twins": ("independent_raw", "independent", "twice"),
    "budget": ("independent_raw_budget", "independent_budget", "twice_budget"),
}
"""Of each form: every branch plays its tail, equal decisions are free, luck is shared too."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Needed:
    """What a method needs, with the plain mean over seeds first, then the draws.

    Attributes:
        tokens: Tokens beyond the base group; NaN where the target is not reached.
        is_bound: The method's cheapest point is already below the target: no more than that.
    """

    tokens: np.ndarray
    is_bound: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Target:
    """The error to be reached, and what the reference pays for it, over the same draws."""

    metric: str
    weights: np.ndarray
    error: np.ndarray
    tokens: np.ndarray


def equal_error(
    settings: dict[str, dict[str, Curve]], *, reference: tuple[str, Number] = REFERENCE
) -> list[dict[str, Any]]:
    """What each method spends on forks to reach the reference's error, over what that spends.

    Args:
        settings: The curves, by setting and method.
        reference: A method and a value of its knob.

    Returns:
        Rows of setting, world, horizon, density, method, reconstructed, estimates_advantage,
        metric (of `ERRORS`), target, reference_tokens, auxiliary_tokens (beyond the base group),
        ratio with low and high (95%), is_bound (already the cheapest point reaches it: at most
        that), floor (the error that no number of tokens undercuts: least squares on 1 / tokens),
        reason (not reached, and why; or how many draws did not reach it). One replicate (seed, or
        batch of episodes) has no interval.
    """
    return [
        _tokens_row(curve, _target(own, metric, reference), metric)
        for own in settings.values()
        for metric in ERRORS
        for curve in own.values()
    ]


def split(
    settings: dict[str, dict[str, Curve]],
    budgets: Sequence[Number],
    *,
    reference: tuple[str, Number] = REFERENCE,
) -> list[dict[str, Any]]:
    """What equal decisions and shared luck each give of twins' advantage over raw branches.

    Args:
        settings: The curves, by setting and method.
        budgets: Tokens as multiples of a base group's.
        reference: Whose error is to be reached.

    Returns:
        Rows of setting, world, horizon, density, form (of `FORMS`), quantity (mse at a budget, or
        tokens to equal error), budget, the factors deduplication, coupling and both with _low and
        _high (95%), is_bound (some form's cheapest point is below the target), reason. Settings in
        which not all forms were played have none.
    """
    found = []
    for own in settings.values():
        target = _target(own, "mse", reference)
        for form, names in FORMS.items():
            if not all(name in own for name in names):
                continue
            trio = [own[name] for name in names]
            known = {name: trio[-1].known[name] for name in IDENTITY} | {"form": form}
            found += [known | _error_split(trio, budget, target) for budget in budgets]
            found.append(known | _tokens_split(trio, target))
    return found


def _target(own: dict[str, Curve], metric: str, reference: tuple[str, Number]) -> _Target | str:
    """The target, or the reason why there is none: the reference was not played at its knob."""
    name, knob = reference
    curve = own.get(name)
    if curve is None or knob not in curve.knobs:
        return f"{name} was not played at {knob:g}"
    number = len(curve.seeds)
    drawn = generator(0, "bootstrap").dirichlet(np.ones(number), NUM_DRAWS)
    weights = np.vstack([np.full(number, 1 / number), drawn])
    at = curve.knobs.index(knob)
    if curve.metrics[metric][:, at].mean() < 0:
        return f"the error of {name} is below 0, less than the noise of the truth"
    return _Target(
        metric=metric,
        weights=weights,
        error=np.maximum(weights @ curve.metrics[metric][:, at], _LEAST),
        tokens=weights @ curve.columns["auxiliary_tokens"][:, at],
    )


def _needed(curve: Curve, target: _Target) -> _Needed:
    """Where each drawn curve first meets the target, straight in log tokens and log error."""
    columns = curve.columns
    order = np.argsort(columns["tokens"].mean(axis=0), kind="stable")
    tokens = target.weights @ columns["tokens"][:, order]
    base = target.weights @ columns["base_tokens"][:, order]
    error = np.maximum(target.weights @ curve.metrics[target.metric][:, order], _LEAST)
    meets = error <= _ROUNDING * target.error[:, None]
    first = meets.argmax(axis=1)
    row = np.arange(len(first))
    before = np.maximum(first - 1, 0)
    high, low = np.log(error[row, before]), np.log(error[row, first])
    gap = np.where(first > 0, high - low, 1.0)
    share = np.where(first > 0, (high - np.log(target.error)) / gap, 1.0)
    at = np.log(tokens[row, before]) + share * np.log(tokens[row, first] / tokens[row, before])
    found = np.where(meets.any(axis=1), np.exp(at) - base[:, 0], np.nan)
    return _Needed(tokens=np.maximum(found, 0.0), is_bound=(first == 0) & (found > 0))


def _tokens_row(curve: Curve, target: _Target | str, metric: str) -> dict[str, Any]:
    row = {name: curve.known[name] for name in (*IDENTITY, "method", *FLAGS)}
    row |= {"metric": metric, "is_bound": False, "reason": None}
    row |= dict.fromkeys(("target", "reference_tokens", "auxiliary_tokens", "ratio"))
    row |= dict.fromkeys(("low", "high", "floor"))
    if isinstance(target, str):
        return row | {"reason": target}
    if (reason := _undefined(curve, metric)) is not None:
        return row | {"reason": reason}
    needed, floor = _needed(curve, target), _floor(curve, metric)
    row |= {"target": float(target.error[0]), "reference_tokens": float(target.tokens[0])}
    row |= {"floor": floor, "is_bound": bool(needed.is_bound[0])}
    if np.isnan(needed.tokens[0]):
        above = floor >= target.error[0]
        why = "its floor is above the target" if above else "not within its sweep"
        return row | {"reason": f"not reached: {why}"}
    low, high, reason = _interval(needed.tokens[1:] / target.tokens[1:], target)
    return row | {
        "auxiliary_tokens": float(needed.tokens[0]),
        "ratio": float(needed.tokens[0] / target.tokens[0]),
        "low": low,
        "high": high,
        "reason": reason,
    }


def _undefined(curve: Curve, metric: str) -> str | None:
    if curve.reason is None and metric == "mse" and not curve.known["estimates_advantage"]:
        return "its scale does not estimate A"
    if curve.reason is None and not np.isnan(curve.metrics[metric]).any():
        return None
    return read(curve, metric, 1.0)[1]


def _floor(curve: Curve, metric: str) -> float:
    """The error that is left with many tokens: least squares of error on 1 / tokens, at 0."""
    auxiliary = curve.columns["auxiliary_tokens"].mean(axis=0)
    tokens = auxiliary if auxiliary.any() else curve.columns["tokens"].mean(axis=0)
    used = tokens > 0
    inverse, error = 1 / tokens[used], curve.metrics[metric].mean(axis=0)[used]
    centred = inverse - inverse.mean()
    if not centred.any():
        return float(error.min())
    slope = float(centred @ error / (centred @ centred))
    return max(0.0, float(error.mean()) - slope * float(inverse.mean()))


def _interval(draws: np.ndarray, target: _Target) -> tuple[float | None, float | None, str | None]:
    """The middle 95% of draws; what was not reached counts as larger than all others."""
    if target.weights.shape[1] == 1:
        return None, None, "one replicate: no interval"
    low, high = np.quantile(np.nan_to_num(draws, nan=np.inf), [0.025, 0.975], method="nearest")
    if np.isinf(high):
        share = float(np.isnan(draws).mean())
        return (None if np.isinf(low) else float(low)), None, f"not reached in {share:.0%} of draws"
    return float(low), float(high), None


def _error_split(trio: Sequence[Curve], budget: Number, target: _Target | str) -> dict[str, Any]:
    row = {"quantity": "mse", "budget": budget, "is_bound": False}
    found = [read(curve, "mse", budget) for curve in trio]
    for curve, (_, reason) in zip(trio, found, strict=True):
        if reason is not None:
            return row | _no_factors(f"{curve.known['method']}: {reason}")
    if isinstance(target, str):
        return row | _no_factors(target)
    return row | _factors([target.weights @ values for values, _ in found], target)


def _tokens_split(trio: Sequence[Curve], target: _Target | str) -> dict[str, Any]:
    row = {"quantity": "tokens", "budget": None, "is_bound": False}
    if isinstance(target, str):
        return row | _no_factors(target)
    for curve in trio:
        if curve.reason is not None:
            return row | _no_factors(f"{curve.known['method']}: {curve.reason}")
    needed = [_needed(curve, target) for curve in trio]
    for curve, one in zip(trio, needed, strict=True):
        if not one.tokens[0] > 0:
            return row | _no_factors(f"{curve.known['method']}: not reached")
    row["is_bound"] = any(bool(one.is_bound[0]) for one in needed)
    return row | _factors([one.tokens for one in needed], target)


def _no_factors(reason: str) -> dict[str, Any]:
    names = ("deduplication", "coupling", "both")
    ends = {f"{name}{end}": None for name in names for end in ("", "_low", "_high")}
    return ends | {"reason": reason}


def _factors(trio: Sequence[np.ndarray], target: _Target) -> dict[str, Any]:
    raw, free, shared = trio
    row: dict[str, Any] = {"reason": None}
    for name, draws in (
        ("deduplication", raw / free),
        ("coupling", free / shared),
        ("both", raw / shared),
    ):
        low, high, reason = _interval(draws[1:], target)
        row |= {name: float(draws[0]), f"{name}_low": low, f"{name}_high": high}
        row["reason"] = row["reason"] or reason
    return row
