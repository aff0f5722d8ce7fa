"""Power of the sign test on discordant pairs (exact McNemar and its mid-p form).

Discordant pairs m ~ Bin(n, discordance); of them b ~ Bin(m, (discordance + effect) /
(2 discordance)) favour the alternative. Part of `power`; leaves out checking.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, ndtr, ndtri

MOST_DISCORDANT = 1_000_000
_FROM_ZERO = 10_000
_SMOOTH_VARIANCE = 100.0
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class SignTest:
    """A sign test and what it meets: level of one tail, tails, mid-p or not, discordance."""

    level: float
    is_two_sided: bool
    is_midp: bool
    discordance: float

    def power(self, num_pairs: int, effect: float) -> float:
        """P(reject): exact sum over a window of m, or the normal form past 1,000,000 expected m.

        Both tails count for a two-sided test. What lies outside the window (10 standard
        deviations and 30 more) has probability below 1e-15.
        """
        if num_pairs * self.discordance > MOST_DISCORDANT:
            return self._normal_power(num_pairs, effect)
        m, weights = binomial_window(num_pairs, self.discordance)
        return float(weights @ self._rejections(m, effect))

    def smallest(self, effect: float, power: float) -> int:
        """The smallest number of pairs that reaches `power`; larger ones may fall below again.

        Power is a mixture over m of the saw-tooth r(m) = P(reject | m), so it is not monotone in
        n. The mixture over the running maximum of r is, and bounds it: its crossing begins the
        scan. Where discordance is below 1/8 the mixture is smooth and steps of a quarter expected
        discordant pair are scanned, then halved. Where more than 10,000 discordant pairs are
        expected and their variance is over 100, teeth of two pairs leave no trace in the mixture:
        it is halved from the start.
        """
        most = math.ceil(self._normal_pairs(effect, power, correction=3.0)) + 1
        if most * self.discordance > MOST_DISCORDANT:
            return first_true(1, lambda n: self.power(n, effect) >= power - _ROUNDING)
        least = 1
        if most * self.discordance > _FROM_ZERO:
            least = max(1, int(0.95 * self._normal_pairs(effect, power, correction=0.0)))
        while True:
            found = self._between(effect, power, least, most)
            if found is not None and (found > least or least == 1):
                return found
            least, most = (least, 2 * most) if found is None else (1, most)

    def _between(self, effect: float, power: float, least: int, most: int) -> int | None:
        """The smallest number within limits that reaches `power`; null for none."""
        begin = int(binomial_window(least, self.discordance)[0][0]) if least > 1 else 0
        top = int(binomial_window(most, self.discordance)[0][-1])
        rejections = self._rejections(np.arange(begin, top + 1), effect)
        bound = np.maximum.accumulate(rejections)

        def reaches(values: np.ndarray, num_pairs: int) -> bool:
            m, weights = binomial_window(num_pairs, self.discordance)
            return float(weights @ values[m - begin]) >= power - _ROUNDING

        if not reaches(bound, most):
            return None
        variance = least * self.discordance * (1 - self.discordance)
        if least > 1 and variance > _SMOOTH_VARIANCE:
            if not reaches(rejections, most):
                return None
            return first_true(least, lambda n: reaches(rejections, n), most)
        first = first_true(least, lambda n: reaches(bound, n), most)
        step = max(1, int(0.25 / self.discordance))
        for n in range(first, most + 1, step):
            if reaches(rejections, n):
                start = max(first, n - step + 1)
                return first_true(start, lambda k: reaches(rejections, k), n)
        return None

    def _rejections(self, m: np.ndarray, effect: float) -> np.ndarray:
        """P(reject | m discordant pairs), for each m."""
        critical = critical_losses(m, self.level, self.is_midp)
        favourable = (self.discordance + effect) / (2.0 * self.discordance)
        probability = _binomial_cdf(critical, m, 1.0 - favourable)
        if self.is_two_sided:
            probability = probability + _binomial_cdf(critical, m, favourable)
        return np.asarray(probability)

    def _normal_power(self, num_pairs: int, effect: float) -> float:
        """Connor's normal form with the continuity correction 1 of b - c (mid-p: none)."""
        correction = 0.0 if self.is_midp else 1.0
        mean = num_pairs * effect
        width = -ndtri(self.level) * math.sqrt(num_pairs * self.discordance)
        stderr = math.sqrt(num_pairs * (self.discordance - effect**2))
        power = normal_tail(mean - correction - width, stderr)
        if self.is_two_sided:
            power += normal_tail(-mean - correction - width, stderr)
        return power

    def _normal_pairs(self, effect: float, power: float, correction: float) -> float:
        width = -ndtri(self.level) * math.sqrt(self.discordance)
        width += ndtri(power) * math.sqrt(self.discordance - effect**2)
        width = max(float(width), 0.0)
        return float((width + math.sqrt(width**2 + 4 * effect * correction)) / (2 * effect)) ** 2


def normal_tail(distance: float, stderr: float) -> float:
    """P(a normal variable of this standard error exceeds -distance); a step for stderr 0."""
    if stderr > 0:
        return float(ndtr(distance / stderr))
    return 1.0 if distance > 0 else 0.0


def first_true(start: int, claim: Callable[[int], bool], end: int | None = None) -> int:
    """The first integer from `start` at which a claim that stays true once true holds."""
    low, high = start - 1, end
    step = 1
    while high is None:
        if claim(low + step):
            high = low + step
        else:
            low, step = low + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if claim(middle) else (middle, high)
    return high


def binomial_window(num_trials: int, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Where Bin(n, p) lives, and its probabilities there.

    Built from ratios of neighbours and normalised, so no factorial of a large n is taken.
    """
    if probability >= 1.0:
        return np.array([num_trials]), np.ones(1)
    mean = num_trials * probability
    reach = 10.0 * math.sqrt(mean * (1.0 - probability)) + 30.0
    low, high = max(0, math.floor(mean - reach)), min(num_trials, math.ceil(mean + reach))
    m = np.arange(low, high + 1)
    odds = probability / (1.0 - probability)
    logs = np.concatenate([np.zeros(1), np.cumsum(np.log((num_trials - m[1:] + 1) / m[1:] * odds))])
    weights = np.exp(logs - logs.max())
    return m, weights / weights.sum()


def critical_losses(m: np.ndarray, level: float, is_midp: bool) -> np.ndarray:
    """The most unfavourable pairs among m at which one tail still rejects; -1 for never.

    P(b <= c) <= level under a fair coin; mid-p counts half of P(b = c).
    """

    def rejects(c: np.ndarray, m: np.ndarray) -> np.ndarray:
        at = _binomial_cdf(c, m, 0.5)
        tail = (at + _binomial_cdf(c - 1, m, 0.5)) / 2 if is_midp else at
        return np.asarray(tail <= level * (1.0 + _ROUNDING))

    c = np.clip(np.floor((m + ndtri(level) * np.sqrt(m)) / 2 - 0.5), -1, m - 1)
    moving = np.flatnonzero(c >= 0)
    while len(moving := moving[~rejects(c[moving], m[moving])]):
        c[moving] -= 1
        moving = moving[c[moving] >= 0]
    moving = np.flatnonzero(c < m - 1)
    while len(moving := moving[rejects(c[moving] + 1, m[moving])]):
        c[moving] += 1
        moving = moving[c[moving] < m[moving] - 1]
    return np.where(m > 0, c, -1)


def _binomial_cdf(c: np.ndarray, m: np.ndarray, probability: float) -> np.ndarray:
    """P(Bin(m, probability) <= c) for -1 <= c < m or below."""
    inside = np.maximum(c, 0)
    return np.where(c < 0, 0.0, betainc(np.maximum(m - inside, 1), inside + 1, 1.0 - probability))
