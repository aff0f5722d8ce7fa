"""Where to spend pairs: square-root allocation, and a running predictor of discordance.

The objective is the sum of variances (or the largest one), not the probability of finding the best
arm. The random budget over an episode's turns lives in `credit`.
"""

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betaincinv

from twinstats._allocation import (
    ROUNDING,
    Problem,
    continuous_to,
    continuous_within,
    whole_to,
    whole_within,
)
from twinstats._numbers import Number, Numbers, first_where, float_array
from twinstats.errors import unknown
from twinstats.results import Result, show

_OBJECTIVES = ("sum", "minimax")
_LARGEST = 1e150  # whose square is finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation(Result):
    """How many units each arm gets.

    Attributes:
        counts: Units of each arm; whole numbers (as int64) with `integer=True`.
        spent: Sum of cost times count.
        value: The objective: sum of weights**2 * variance / count, or its largest term.
        bound: What no allocation under the same limits can beat: the least value (with a budget)
            or the least spending (with a target), from the continuous problem.
        gap: value / bound - 1, with a target spent / bound - 1: a certificate, 0 when optimal.
    """

    counts: np.ndarray
    spent: float
    value: float
    bound: float
    gap: float

    def __str__(self) -> str:
        counts = ", ".join(show(count) for count in self.counts.tolist())
        return f"counts [{counts}], spent {show(self.spent)}, value {show(self.value)}"


def sqrt_allocation(
    variance: Numbers,
    cost: Numbers,
    *,
    budget: Number | None = None,
    target_stderr: Number | None = None,
    weights: Numbers | None = None,
    minimum: Numbers = 0,
    maximum: Numbers | None = None,
    integer: bool = False,
    objective: str = "sum",
) -> Allocation:
    """Counts that minimise the variance of a weighted sum of arm means under a budget.

    sum w_i^2 v_i / n_i with sum c_i n_i <= B is least at n_i = B w_i sqrt(v_i / c_i) / S with
    S = sum w_j sqrt(v_j c_j), where it is S^2 / B (Cauchy-Schwarz). With limits,
    n_i = clip(t w_i sqrt(v_i / c_i), minimum_i, maximum_i). Objective "minimax" makes the largest
    w_i^2 v_i / n_i smallest: n_i in proportion to w_i^2 v_i. A target asks for the cheapest counts
    whose value is at most target_stderr^2.

    Whole numbers: greedy by gain per cost, optimal for equal costs and for "minimax". Unequal
    costs are solved exactly by dynamic programming where costs are small multiples of a unit;
    else greedy stands, which is near-optimal, and `gap` certifies how near. Ties go to the lowest
    index. A budget may stay partly unspent.

    Assumption: `variance` is known, or predicted from what came before; counts that were chosen
    by the outcomes that they average are biased.
    Degenerate: an arm of variance 0 gets its minimum (0 unless a floor is given).

    >>> sqrt_allocation([0.25, 0.09, 0.01, 0.0], [1, 4, 1, 1], budget=20).counts.round(4)
    array([8.3333, 2.5   , 1.6667, 0.    ])
    >>> sqrt_allocation([1, 1, 1], [1, 1, 1], budget=10, integer=True).counts
    array([4, 3, 3])

    Args:
        variance: Variance of one unit of each arm, at least 0.
        cost: Cost of one unit of each arm, positive; one number for all, or one an arm.
        budget: Most that may be spent. Give this or `target_stderr`.
        target_stderr: Largest standard error allowed: of the weighted sum, or of any arm.
        weights: Weight of each arm's mean in the sum; 1 by default.
        minimum: Least count of each arm.
        maximum: Largest count of each arm; no limit by default.
        integer: Whether counts are whole numbers.
        objective: "sum" or "minimax".

    Returns:
        Counts with what they cost, what they reach and how far that may be from optimal.

    Raises:
        ValueError: Input out of range, or limits that no allocation meets.

    Source: Neyman 1934 (allocation); Fox 1966 (greedy for separable convex problems).
    """
    if objective not in _OBJECTIVES:
        raise unknown("objective", objective, _OBJECTIVES)
    if (budget is None) == (target_stderr is None):
        raise ValueError("Exactly one of `budget` and `target_stderr` must be given.")
    problem = _problem(variance, cost, weights, (minimum, maximum), integer, objective == "sum")
    if budget is not None:
        return _within_budget(problem, float(budget), integer)
    assert target_stderr is not None
    return _to_target(problem, float(target_stderr), integer)


def _problem(
    variance: Numbers,
    cost: Numbers,
    weights: Numbers | None,
    limits: tuple[Numbers, Numbers | None],
    integer: bool,
    is_sum: bool,
) -> Problem:
    v = np.atleast_1d(float_array("variance", variance))
    if v.ndim != 1 or not len(v):
        raise ValueError(f"`variance` must be a list with one entry an arm, got shape {v.shape}.")
    if np.any(wrong := ~((v >= 0) & np.isfinite(v))):
        raise ValueError(f"`variance` must be finite and at least 0, got {first_where(v, wrong)}.")
    c = _per_arm("cost", cost, len(v))
    if not np.all((c > 0) & np.isfinite(c)):
        raise ValueError(f"`cost` must be positive everywhere, got minimum {c.min()}.")
    w = _per_arm("weights", 1.0 if weights is None else weights, len(v))
    if np.any(wrong := ~np.isfinite(w)):
        raise ValueError(f"`weights` must be finite, got {first_where(w, wrong)}.")
    with np.errstate(over="ignore"):
        loss = w**2 * v
    if not np.all(np.isfinite(loss)):
        raise ValueError("`weights` squared times `variance` must be finite: scale them down.")
    low, high = _limits(limits[0], limits[1], loss, integer)
    return Problem(loss=loss, cost=c, low=low, high=high, is_sum=is_sum)


def _per_arm(name: str, values: Numbers, num_arms: int) -> np.ndarray:
    array = float_array(name, values)
    if array.shape not in ((), (1,), (num_arms,)):
        raise ValueError(f"`{name}` must have one entry an arm ({num_arms}), got {array.shape}.")
    return np.array(np.broadcast_to(array, (num_arms,)))


def _limits(
    minimum: Numbers, maximum: Numbers | None, loss: np.ndarray, integer: bool
) -> tuple[np.ndarray, np.ndarray]:
    low = _per_arm("minimum", minimum, len(loss))
    high = _per_arm("maximum", math.inf if maximum is None else maximum, len(loss))
    if integer:
        low, high = np.ceil(low - ROUNDING), np.floor(high + ROUNDING)
    if np.any(wrong := ~((low >= 0) & np.isfinite(low))):
        raise ValueError(f"`minimum` must be finite and at least 0, got {first_where(low, wrong)}.")
    if np.any(wrong := ~(high >= low)):
        ends = f"{first_where(high, wrong)} and {first_where(low, wrong)}"
        raise ValueError(f"`maximum` must be at least `minimum`, got {ends}.")
    if np.any((high == 0) & (loss > 0)):
        raise ValueError("`maximum` must be positive where the variance is, or no mean exists.")
    return (np.maximum(low, loss > 0) if integer else low), high


def _within_budget(problem: Problem, budget: float, integer: bool) -> Allocation:
    floor = problem.spent(problem.low)
    slack = ROUNDING * max(1.0, abs(budget))
    if not (math.isfinite(budget) and budget > 0 and budget >= floor - slack):
        raise ValueError(
            f"`budget` must be finite, positive and at least {floor:g}, what the smallest allowed "
            f"counts cost, got {budget:g}."
        )
    continuous = continuous_within(problem, budget)
    _refuse_uncountable(continuous, integer, "budget", budget)
    counts = whole_within(problem, budget + slack) if integer else continuous
    bound = problem.value(continuous)
    return _allocation(problem, counts, integer, bound, _gap(problem.value(counts), bound))


def _to_target(problem: Problem, target_stderr: float, integer: bool) -> Allocation:
    target = target_stderr**2 if abs(target_stderr) < _LARGEST else math.inf
    if not (math.isfinite(target) and target_stderr > 0 and target > 0):
        raise ValueError(
            f"`target_stderr` must be positive and finite, and so its square, got {target_stderr}."
        )
    best = problem.value(problem.high)
    if best > target * (1 + ROUNDING):
        raise ValueError(
            f"`target_stderr` must be at least {math.sqrt(best):g}, what `maximum` allows, "
            f"got {target_stderr:g}."
        )
    continuous = continuous_to(problem, target)
    _refuse_uncountable(continuous, integer, "target_stderr", target_stderr)
    counts = whole_to(problem, target) if integer else continuous
    bound = problem.spent(continuous)
    return _allocation(problem, counts, integer, bound, _gap(problem.spent(counts), bound))


def _refuse_uncountable(counts: np.ndarray, integer: bool, name: str, value: float) -> None:
    """Whole numbers beyond 2**53 are none in floating point."""
    if integer and counts.max() > 2**53:
        raise ValueError(
            f"`{name}` {value:g} asks for {counts.max():.3g} units of an arm; with `integer` at "
            "most 2**53 can be counted."
        )


def _allocation(
    problem: Problem, counts: np.ndarray, integer: bool, bound: float, gap: float
) -> Allocation:
    return Allocation(
        counts=counts.astype(np.int64) if integer else counts,
        spent=problem.spent(counts),
        value=problem.value(counts),
        bound=bound,
        gap=gap,
    )


def _gap(reached: float, bound: float) -> float:
    return max(0.0, reached / bound - 1.0) if bound > 0 else 0.0


class DiscordancePredictor:
    """Predicted probability that a twin's outcome differs, from what was known before the turn.

    One Beta-binomial a cell of equal features: (a + discordant) / (a + b + trials). A cell never
    seen takes the same formula over all cells together, which without data is a / (a + b).

    Assumption: `features` looks at the history of the turn only: not at the action, later turns
    or outcomes, or credit becomes biased.

    >>> predictor = DiscordancePredictor(["task"])
    >>> predictor.update([{"task": "shop"}] * 3, [True, False, True])
    >>> predictor.predict([{"task": "shop"}, {"task": "new"}]).round(3)
    array([0.625, 0.625])

    Args:
        features: A function from a turn's description to its cell (text, number, bool, null, or
            tuples of them), or the names of attributes or mapping keys that make the cell.
        prior: (a, b) of the Beta prior, positive.

    Raises:
        ValueError: A prior that is not positive and finite, or no feature names.
    """

    def __init__(
        self,
        features: Callable[[Any], Hashable] | Sequence[str],
        prior: Sequence[Number] = (0.5, 0.5),
    ) -> None:
        if not callable(features) and not _are_names(features):
            raise ValueError("`features` must be a function or a list of names.")
        pair = float_array("prior", prior)
        if pair.shape != (2,) or not np.all((pair > 0) & np.isfinite(pair)):
            raise ValueError(f"`prior` must be two positive numbers, got {pair.tolist()}.")
        self._features = features if callable(features) else tuple(features)
        self._prior = (float(pair[0]), float(pair[1]))
        self._cells: dict[Hashable, tuple[int, int]] = {}
        self._pooled = (0, 0)

    def predict(self, turns: Sequence[Any]) -> np.ndarray:
        """Posterior mean of each turn's discordance, in (0, 1)."""
        counts = [self._cells.get(self._cell(turn), self._pooled) for turn in turns]
        a, b = self._prior
        return np.array([(a + differed) / (a + b + trials) for trials, differed in counts])

    def interval(self, turns: Sequence[Any], confidence: Number = 0.95) -> np.ndarray:
        """Equal-tailed credible interval of each turn's discordance, (turns, 2).

        That of the cell's own Beta posterior. A cell never seen has the prior's: what other cells
        did says where it may be (`predict`), not how sure that is.

        Raises:
            ValueError: `confidence` outside (0, 1).
        """
        if not 0 < confidence < 1:
            raise ValueError(f"`confidence` must be in (0, 1), got {confidence}.")
        counts = np.array([self._cells.get(self._cell(turn), (0, 0)) for turn in turns])
        trials, differed = counts.reshape(-1, 2).T
        a, b = self._prior
        tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
        ends: np.ndarray = betaincinv(
            (a + differed)[:, None], (b + trials - differed)[:, None], tails
        )
        return ends

    def update(self, turns: Sequence[Any], discordant: Numbers) -> None:
        """Counts what was seen: one entry a pair.

        Raises:
            ValueError: Lengths differ, or `discordant` holds something that is neither true
                nor false; nothing is counted then.
        """
        differed = float_array("discordant", discordant)
        if differed.shape != (len(turns),):
            raise ValueError(
                f"`discordant` must have one entry a turn ({len(turns)}), got {differed.shape}."
            )
        if np.any(wrong := ~((differed == 0) | (differed == 1))):
            value = first_where(differed, wrong)
            raise ValueError(f"`discordant` must be true or false everywhere, got {value}.")
        cells = [self._cell(turn) for turn in turns]
        for cell, one in zip(cells, differed.astype(int).tolist(), strict=True):
            trials, seen = self._cells.get(cell, (0, 0))
            self._cells[cell] = (trials + 1, seen + one)
            self._pooled = (self._pooled[0] + 1, self._pooled[1] + one)

    def state(self) -> dict[str, Any]:
        """All that was learned, as strict JSON; cells in a fixed order."""
        cells = [[cell, *counts] for cell, counts in self._cells.items()]
        return {
            "prior": list(self._prior),
            "cells": json.loads(json.dumps(sorted(cells, key=json.dumps), allow_nan=False)),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes the place of another predictor: prior and counts from `state()`."""
        a, b = state["prior"]
        self._prior = (float(a), float(b))
        self._cells = {_cell(cell): (int(n), int(k)) for cell, n, k in state["cells"]}
        counts = np.array([*self._cells.values(), (0, 0)]).sum(axis=0).tolist()
        self._pooled = (counts[0], counts[1])

    def _cell(self, turn: Any) -> Hashable:
        if callable(self._features):
            return _cell(self._features(turn))
        return tuple(_cell(_named(turn, name)) for name in self._features)


def _are_names(features: Any) -> bool:
    is_list = isinstance(features, (list, tuple)) and len(features) > 0
    return is_list and all(isinstance(name, str) for name in features)


def _named(turn: Any, name: str) -> Any:
    return turn[name] if isinstance(turn, Mapping) else getattr(turn, name)


def _cell(value: Any) -> Hashable:
    """A cell as it comes back from JSON, so that saving and loading changes no prediction."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (tuple, list)):
        return tuple(_cell(part) for part in value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError(
        f"`features` must give text, numbers, bools, null or tuples of them, got {value!r}."
    )
