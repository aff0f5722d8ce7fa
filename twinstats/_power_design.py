"""The options of `power`, checked, and the power of each test under them."""

import math
from dataclasses import dataclass

from scipy.special import nctdtr, ndtri, stdtrit

from twinstats._binary_power import SignTest, normal_tail
from twinstats._numbers import Number
from twinstats.errors import unknown

_TESTS = ("exact", "midp", "connor", "wald", "t")
_ALTERNATIVES = ("two-sided", "greater", "less")
_NORMAL_FREEDOM = 1e6
_FAR = 1e4
_LEAST_EFFECT = 1e-100  # squares of smaller ones leave the range of numbers
_MOST_SD = 1e100
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Checked options. Effects here are oriented: positive in the direction of the alternative."""

    discordance: float | None
    sd: float | None
    level: float
    test: str
    alternative: str
    cluster_size: float
    inflation: float

    @property
    def is_two_sided(self) -> bool:
        """Whether both tails of the test reject."""
        return self.alternative == "two-sided"

    @property
    def wanted_sign(self) -> str:
        """The sign of an effect that the alternative can find, in words."""
        signs = {"two-sided": "different from 0", "greater": "positive", "less": "negative"}
        return signs[self.alternative]

    @property
    def sign_test(self) -> SignTest | None:
        """The test on discordant pairs, if that is the test asked for."""
        if self.discordance is None or self.test not in ("exact", "midp"):
            return None
        return SignTest(
            level=self.level,
            is_two_sided=self.is_two_sided,
            is_midp=self.test == "midp",
            discordance=self.discordance,
        )

    def oriented(self, effect: Number) -> float:
        """Size of a two-sided effect, or its signed size along a one-sided alternative."""
        size, limit = float(effect), math.inf if self.discordance is None else self.discordance
        if not (math.isfinite(size) and abs(size) <= limit * (1 + _ROUNDING)):
            allowed = "finite" if self.discordance is None else f"in [-{limit:g}, {limit:g}]"
            raise ValueError(f"`effect` must be {allowed}, got {effect}.")
        if 0 < abs(size) < _LEAST_EFFECT:
            raise ValueError(f"`effect` must be 0 or at least {_LEAST_EFFECT:g}, got {effect}.")
        size = math.copysign(min(abs(size), limit), size)
        if self.is_two_sided:
            return abs(size)
        return size if self.alternative == "greater" else -size

    def power(self, num_pairs: int, size: float) -> float:
        """P(reject) for an oriented effect; clustered pairs count as fewer independent ones."""
        effective = num_pairs / self.inflation
        if (sign_test := self.sign_test) is not None:
            return sign_test.power(math.floor(effective * (1 + _ROUNDING)), size)
        variance = self._variance(size)
        if self.test == "connor":
            assert self.discordance is not None
            null = self.discordance
        else:
            null = variance
        if self.test in ("exact", "t"):
            freedom = num_pairs / self.cluster_size - 1.0
            if freedom <= _NORMAL_FREEDOM:
                return self._t_power(freedom, size, math.sqrt(variance / effective))
        width = -float(ndtri(self.level)) * math.sqrt(null / effective)
        stderr = math.sqrt(variance / effective)
        power = normal_tail(size - width, stderr)
        return power + normal_tail(-size - width, stderr) if self.is_two_sided else power

    def _t_power(self, freedom: float, size: float, stderr: float) -> float:
        if freedom <= 0:
            return 0.0
        critical = float(stdtrit(freedom, 1.0 - self.level))
        shift = min(size / stderr, _FAR) if stderr > 0 else math.copysign(_FAR, size)
        power = _above(critical, freedom, shift)
        return power + _above(critical, freedom, -shift) if self.is_two_sided else power

    def _variance(self, size: float) -> float:
        if self.discordance is not None:
            return max(self.discordance - size**2, 0.0)
        assert self.sd is not None
        return self.sd**2


def checked_design(
    discordance: Number | None,
    sd: Number | None,
    rho: Number | None,
    alpha: Number,
    test: str,
    alternative: str,
    cluster_size: Number,
    icc: Number,
) -> Design:
    """The options that all functions of `power` share, checked."""
    if test not in _TESTS:
        raise unknown("test", test, _TESTS)
    if alternative not in _ALTERNATIVES:
        raise unknown("alternative", alternative, _ALTERNATIVES)
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"`alpha` must lie in (0, 1), got {alpha}.")
    _check_outcome(discordance, sd, rho, test)
    return Design(
        discordance=None if discordance is None else float(discordance),
        sd=None if sd is None else float(sd) * math.sqrt(_shrinkage(rho)),
        level=float(alpha) / 2 if alternative == "two-sided" else float(alpha),
        test=test,
        alternative=alternative,
        cluster_size=float(cluster_size),
        inflation=_inflation(cluster_size, icc),
    )


def _check_outcome(
    discordance: Number | None, sd: Number | None, rho: Number | None, test: str
) -> None:
    if (discordance is None) == (sd is None):
        raise ValueError(
            "Exactly one of `discordance` (binary) and `sd` (other outcomes) is needed."
        )
    if discordance is not None:
        if not 0.0 < discordance <= 1.0:
            raise ValueError(f"`discordance` must lie in (0, 1], got {discordance}.")
        if rho is not None:
            raise ValueError("`rho` belongs to `sd`; `discordance` already holds the correlation.")
        return
    assert sd is not None
    if test in ("midp", "connor"):
        raise ValueError(f"`test` {test!r} is for binary outcomes: give `discordance`, not `sd`.")
    if not 0 < sd <= _MOST_SD:
        raise ValueError(f"`sd` must be positive and at most {_MOST_SD:g}, got {sd}.")
    if rho is not None and not -1.0 <= rho < 1.0:
        raise ValueError(f"`rho` must lie in [-1, 1), got {rho}.")


def _shrinkage(rho: Number | None) -> float:
    """Variance of a difference in units of sd^2."""
    return 1.0 if rho is None else 2.0 * (1.0 - float(rho))


def _inflation(cluster_size: Number, icc: Number) -> float:
    """The design effect 1 + (cluster_size - 1) icc, which must stay positive."""
    if not (cluster_size >= 1 and math.isfinite(cluster_size)):
        raise ValueError(f"`cluster_size` must be at least 1, got {cluster_size}.")
    lowest = -1.0 / (cluster_size - 1) if cluster_size > 1 else -1.0
    if not (lowest < icc <= 1.0):
        raise ValueError(f"`icc` must lie in ({lowest:g}, 1], got {icc}.")
    return 1.0 + (float(cluster_size) - 1.0) * float(icc)


def checked_power(power: Number) -> float:
    """`power` as a probability that can be reached."""
    if not 0.0 < power < 1.0:
        raise ValueError(f"`power` must lie in (0, 1), got {power}.")
    return float(power)


def checked_pairs(num_pairs: Number) -> int:
    """`num_pairs` as a whole number of at least 1."""
    if not (1 <= num_pairs < math.inf and int(num_pairs) == num_pairs):
        raise ValueError(f"`num_pairs` must be a whole number of at least 1, got {num_pairs}.")
    return int(num_pairs)


def _above(critical: float, freedom: float, shift: float) -> float:
    """P(noncentral t > critical); below shift -8 it is under ndtr(-8) = 6e-16 and taken as 0."""
    if shift <= -8.0 and critical >= 0.0:
        return 0.0
    return 1.0 - float(nctdtr(freedom, shift, critical))
