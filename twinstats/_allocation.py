"""Solvers behind `allocation`: continuous counts with limits, and whole numbers.

Leaves out checking: `allocation` does it at its door.
"""

import heapq
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

ROUNDING = 1e-9
_LARGEST_DENOMINATOR = 1_000
_MOST_UNITS = 4_000
_MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Minimise sum (or max) of loss / count with low <= count <= high and prices `cost`."""

    loss: np.ndarray
    cost: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_sum: bool

    @property
    def direction(self) -> np.ndarray:
        """What the optimum without limits is proportional to."""
        return np.sqrt(self.loss / self.cost) if self.is_sum else self.loss

    @property
    def has_equal_costs(self) -> bool:
        """Whether every unit has the same price."""
        return bool(np.all(self.cost == self.cost[0]))

    def value(self, counts: np.ndarray) -> float:
        """The objective; arms without loss want nothing."""
        wanted = self.loss > 0
        with np.errstate(divide="ignore", over="ignore"):
            terms = self.loss[wanted] / counts[wanted]
        return float(terms.sum() if self.is_sum else terms.max(initial=0.0))

    def spent(self, counts: np.ndarray) -> float:
        """What the counts cost; an arm with infinite count counts as infinite."""
        return float((self.cost * counts).sum())

    def scaled(self, t: float) -> np.ndarray:
        """The optimum on the ray t * direction, clipped to the limits (the KKT conditions)."""
        return np.asarray(np.clip(t * self.direction, self.low, self.high))

    def whole(self, t: float) -> np.ndarray:
        """Where greedy stands when no unit left is worth a price of 1/t**2 (1/t for minimax).

        For the sum, unit n + 1 gains loss / (n (n + 1)); at most one above t * direction.
        """
        with np.errstate(invalid="ignore"):  # an endless ray buys nothing where there is no loss
            ray = t * self.direction
        steps = np.floor((1 + np.sqrt(1 + 4 * ray**2)) / 2) if self.is_sum else np.ceil(ray)
        return np.asarray(np.clip(np.where(self.loss > 0, steps, 0), self.low, self.high))

    def worth(self, arm: int, count: float) -> float:
        """What one more unit of an arm is worth: gain per price, or the term itself."""
        loss = float(self.loss[arm])
        return loss / (count * (count + 1)) / float(self.cost[arm]) if self.is_sum else loss / count

    def worths(self, counts: np.ndarray) -> np.ndarray:
        """What one more unit of each arm is worth; 0 for an arm without loss."""
        units = np.maximum(counts, 1)
        if not self.is_sum:
            return np.asarray(self.loss / units)
        return np.asarray(self.loss / (units * (units + 1)) / self.cost)


def continuous_within(problem: Problem, budget: float) -> np.ndarray:
    """The clipped ray that spends the budget, or everything at `high` when that costs less.

    Spending is piecewise linear in t: find the piece by bisection over breakpoints, then solve it.
    """
    return problem.scaled(_ray_of_budget(problem, budget))


def _ray_of_budget(problem: Problem, budget: float) -> float:
    direction, moving = problem.direction, problem.direction > 0
    ends = [limit[moving] / direction[moving] for limit in (problem.low, problem.high)]
    breaks = np.unique(np.concatenate([np.zeros(1), *ends]))
    breaks = breaks[np.isfinite(breaks)]
    first, last = 0, len(breaks)  # spending at breaks[first] <= budget < spending at breaks[last]
    while last - first > 1:
        middle = (first + last) // 2
        within = problem.spent(problem.scaled(breaks[middle])) <= budget
        first, last = (middle, last) if within else (first, middle)
    t = float(breaks[first])
    inside = (t + breaks[last]) / 2 if last < len(breaks) else 2 * t + 1
    free = moving & (problem.low < inside * direction) & (inside * direction < problem.high)
    slope = float(problem.cost[free] @ direction[free])
    left = budget - problem.spent(problem.scaled(t))
    return t + max(left, 0.0) / slope if slope > 0 else t


def continuous_to(problem: Problem, target: float) -> np.ndarray:
    """The cheapest counts whose value is at most the target (known to be reachable)."""
    if not problem.is_sum:
        return np.asarray(np.clip(problem.loss / target, problem.low, problem.high))
    return problem.scaled(_ray_of_target(problem, target, extra=0.0))


def _ray_of_target(problem: Problem, target: float, extra: float) -> float:
    """The smallest t with value(scaled(t) + extra) <= target."""

    def reaches(t: float) -> bool:
        return problem.value(np.minimum(problem.scaled(t) + extra, problem.high)) <= target

    if reaches(0.0):
        return 0.0
    low, high = 0.0, float(np.sqrt(problem.loss * problem.cost).sum() / target)
    while not reaches(high) and high < 1e300:  # 1e300 ends it where rounding hides the target
        low, high = high, high * (1 + ROUNDING) if low == 0 else 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def whole_within(problem: Problem, budget: float) -> np.ndarray:
    """Whole counts under a budget: greedy, or a table where greedy may not be optimal."""
    counts = _greedy(problem, budget)
    table = _table(problem, budget)
    if table is None:
        return counts
    exact = table.counts(len(table.best) - 1)
    return exact if problem.value(exact) < problem.value(counts) * (1 - ROUNDING) else counts


def _greedy(problem: Problem, budget: float) -> np.ndarray:
    """Unit by unit what is worth most; arms whose next unit is not affordable drop out.

    Most units are bought at once: all that a price 1/t**2 buys, for the largest t that the budget
    allows, found by bisection until each arm lacks at most one unit of the next price.
    """
    if not (problem.loss > 0).any():
        return problem.low.copy()
    low, high = _bracket(problem, budget)
    counts, after = problem.whole(low), problem.whole(high)
    while np.max(after - counts) > 1 and low < (middle := (low + high) / 2) < high:
        between = problem.whole(middle)
        if problem.spent(between) <= budget:
            low, counts = middle, between
        else:
            high, after = middle, between
    arms = np.flatnonzero(after > counts)
    arms = arms[np.argsort(-problem.worths(counts)[arms], kind="stable")]
    spent = problem.spent(counts) + np.cumsum(problem.cost[arms])
    bought = int(np.searchsorted(spent, budget, side="right"))
    counts[arms[:bought]] += 1
    _buy_singly(problem, counts, budget - problem.spent(counts))
    return counts


def _bracket(problem: Problem, budget: float) -> tuple[float, float]:
    """Two t near the continuous ray, between which whole counts outgrow the budget.

    Equal if the largest counts allowed are within it.
    """
    wanted = problem.loss > 0
    if problem.spent(np.where(wanted, problem.high, problem.low)) <= budget:
        return math.inf, math.inf
    low = high = max(_ray_of_budget(problem, budget), 1 / float(problem.direction.max()))
    step = 2.0**-12
    while problem.spent(problem.whole(high)) <= budget:
        low, high, step = high, high * (1 + step), 4 * step
    while low > 0 and problem.spent(problem.whole(low)) > budget:
        low, high, step = max(low * (1 - step), 0.0), low, 4 * step
    return low, high


def _buy_singly(problem: Problem, counts: np.ndarray, left: float) -> None:
    """Spends what is left, in place: the unit worth most among those that are affordable."""
    wanted = (problem.loss > 0) & (counts < problem.high) & (problem.cost <= left)
    arms = np.flatnonzero(wanted)
    if not len(arms):
        return
    cheapest = float(problem.cost[arms].min())
    queue = list(zip((-problem.worths(counts)[arms]).tolist(), arms.tolist(), strict=True))
    heapq.heapify(queue)
    while queue and left >= cheapest:
        _, arm = heapq.heappop(queue)
        price = float(problem.cost[arm])
        if price > left:
            continue
        most = min(left // price, problem.high[arm] - counts[arm])
        units = 1.0 if queue else max(most, 1.0)  # a single arm takes all
        counts[arm] += units
        left -= units * price
        _push(problem, counts, arm, queue)


def whole_to(problem: Problem, target: float) -> np.ndarray:
    """Cheap whole counts whose value is at most the target (known to be reachable)."""
    target *= 1 + ROUNDING
    if not problem.is_sum:
        return np.asarray(np.clip(np.ceil(problem.loss / target), problem.low, problem.high))
    counts = _trimmed(problem, _greedy_to(problem, target), target)
    table = _table(problem, problem.spent(counts) * (1 + ROUNDING))
    if table is None:
        return counts
    exact = table.counts(int(np.argmax(table.best <= target)))
    return exact if problem.spent(exact) < problem.spent(counts) * (1 - ROUNDING) else counts


def _greedy_to(problem: Problem, target: float) -> np.ndarray:
    """Unit by unit what is worth most until the sum is at most the target."""
    if problem.value(problem.low) <= target:
        return problem.low.copy()
    low, high = 0.0, _ray_of_target(problem, target, extra=0.0)
    while problem.value(problem.whole(high)) > target:
        low, high = high, 2 * high
    counts, after = problem.whole(low), problem.whole(high)
    while np.max(after - counts) > 1 and low < (middle := (low + high) / 2) < high:
        between = problem.whole(middle)
        if problem.value(between) > target:
            low, counts = middle, between
        else:
            high, after = middle, between
    while (value := problem.value(counts)) > target:
        arms = np.flatnonzero(after > counts)
        arms = arms[np.argsort(-problem.worths(counts)[arms], kind="stable")]
        reached = value - np.cumsum(problem.worths(counts)[arms] * problem.cost[arms])
        counts[arms[: 1 + int(np.count_nonzero(reached > target))]] += 1
    return counts


def _push(problem: Problem, counts: np.ndarray, arm: int, queue: list[tuple[float, int]]) -> None:
    if counts[arm] < problem.high[arm]:
        heapq.heappush(queue, (-problem.worth(arm, float(counts[arm])), arm))


def _trimmed(problem: Problem, counts: np.ndarray, target: float) -> np.ndarray:
    """Gives back units that the target does not need, dearest arms first."""
    slack = target - problem.value(counts)
    before = np.maximum(counts - 1, 1)
    spare = (counts > np.maximum(problem.low, 1)) & (problem.loss / before / (before + 1) <= slack)
    arms = np.flatnonzero(spare)
    for arm in arms[np.argsort(-problem.cost[arms], kind="stable")].tolist():
        loss = float(problem.loss[arm])
        while counts[arm] > max(problem.low[arm], 1):
            needed = loss / float(counts[arm] - 1) / float(counts[arm])
            if needed > slack:
                break
            counts[arm] -= 1
            slack -= needed
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Dynamic programme: least value for each budget, and the last arms' counts there."""

    units: list[int]
    best: np.ndarray
    picks: list[np.ndarray]

    def counts(self, budget: int) -> np.ndarray:
        """The optimal counts at a budget in units."""
        counts = np.zeros(len(self.units))
        for arm in reversed(range(len(self.units))):
            count = int(self.picks[arm][budget])
            counts[arm] = count
            budget -= count * self.units[arm]
        return counts


def _table(problem: Problem, budget: float) -> _Table | None:
    """The exact optimum of the sum for unequal prices; null where the table would be too large."""
    if not problem.is_sum or problem.has_equal_costs:
        return None
    if budget / float(problem.cost.min()) > _MOST_UNITS:
        return None
    unit = _common_unit(problem.cost)
    if unit is None or budget / unit > _MOST_UNITS:
        return None
    size = math.floor(budget / unit + ROUNDING)
    units = [round(cost / unit) for cost in problem.cost.tolist()]
    most = [
        int(min(high, size // price)) if loss > 0 else int(low)
        for low, high, price, loss in zip(
            problem.low, problem.high, units, problem.loss, strict=True
        )
    ]
    if sum(most) > _MOST_ROWS:
        return None
    best, picks = np.zeros(size + 1), []
    for arm, price in enumerate(units):
        choices = range(int(problem.low[arm]), most[arm] + 1)
        best, pick = _with_arm(best, float(problem.loss[arm]), price, choices)
        picks.append(pick)
    return _Table(units=units, best=best, picks=picks)


def _with_arm(
    best: np.ndarray, loss: float, price: int, choices: range
) -> tuple[np.ndarray, np.ndarray]:
    """Adds one arm: for each budget the least value over its count, and that count."""
    least, pick = np.full(len(best), math.inf), np.zeros(len(best), np.int64)
    for count in choices:
        taken = count * price
        if taken >= len(best):
            break
        value = best[: len(best) - taken] + (loss / count if loss > 0 else 0.0)
        better = value < least[taken:]
        least[taken:][better] = value[better]
        pick[taken:][better] = count
    return least, pick


def _common_unit(cost: np.ndarray) -> float | None:
    """The largest number that divides every cost, if costs are short fractions."""
    fractions = [Fraction(value).limit_denominator(_LARGEST_DENOMINATOR) for value in cost.tolist()]
    if not np.allclose([float(f) for f in fractions], cost, rtol=1e-12, atol=0):
        return None
    denominator = math.lcm(*(fraction.denominator for fraction in fractions))
    numerator = math.gcd(*(int(fraction * denominator) for fraction in fractions))
    return numerator / denominator
