"""Second moments of pairs, with constant data told from rounding.

Shared by `pairs` and `variance`. Leaves out intervals.
"""

from dataclasses import dataclass

import numpy as np

from twinstats._outcomes import Pairs, is_constant, rounding_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Weighted moments of pairs about their means, in squared units of 2**exponent of the pairs.

    Variances divide by the sum of weights; one of data that are constant but for rounding is 0.0.
    All null without a pair.

    Attributes:
        variance_factual: Var F.
        variance_twin: Var T.
        covariance: Cov(F, T).
        variance_difference: Var(F - T), from the differences themselves.
        rho: Pearson correlation; null where F or T does not vary.
        rho_max: The largest correlation that outcomes with these margins can have.
        discordance: Share of pairs with F != T.
    """

    variance_factual: float | None
    variance_twin: float | None
    covariance: float | None
    variance_difference: float | None
    rho: float | None
    rho_max: float | None
    discordance: float | None

    @property
    def rho_eff(self) -> float | None:
        """1 - Var(F - T) / (Var F + Var T); null where neither varies."""
        if self.variance_factual is None or self.variance_twin is None:
            return None
        total = self.variance_factual + self.variance_twin
        assert self.variance_difference is not None
        return 1 - self.variance_difference / total if total > 0 else None

    def undefined(self) -> list[str]:
        """Why a correlation is null, one sentence each."""
        if self.variance_factual is None or self.rho is not None:
            return []
        constant = [
            name
            for name, variance in (
                ("factual", self.variance_factual),
                ("twin", self.variance_twin),
            )
            if variance == 0
        ]
        what = "`rho` and `rho_eff` are" if len(constant) == 2 else "`rho` is"
        verb = "do" if len(constant) == 2 else "does"
        return [f"constant_outcome: {' and '.join(constant)} {verb} not vary, so {what} undefined."]


NO_MOMENTS = Moments(
    variance_factual=None,
    variance_twin=None,
    covariance=None,
    variance_difference=None,
    rho=None,
    rho_max=None,
    discordance=None,
)


def pair_moments(pairs: Pairs, weight: np.ndarray) -> Moments:
    """Moments of the valid pairs; `weight` has one entry for each of them."""
    used = weight > 0
    factual, twin, weight = pairs.factual[used], pairs.twin[used], weight[used]
    if len(factual) == 0:
        return NO_MOMENTS
    error = rounding_of(factual, twin, pairs.rounding)
    share = weight / np.max(weight)
    share = share / share.sum()
    first = centred(factual, share, 4 * pairs.rounding[0] * np.abs(factual))
    second = centred(twin, share, 4 * pairs.rounding[1] * np.abs(twin))
    between = centred(factual - twin, share, error)
    return Moments(
        variance_factual=float(share @ first**2),
        variance_twin=float(share @ second**2),
        covariance=float(share @ (first * second)),
        variance_difference=float(share @ between**2),
        rho=correlation(first, second, share),
        rho_max=largest_correlation(first, second, share),
        discordance=float(weight[factual != twin].sum() / weight.sum()),
    )


def centred(
    values: np.ndarray, share: np.ndarray, rounding: np.ndarray | float = 0.0
) -> np.ndarray:
    """`values` minus their weighted mean; exactly 0 if they are constant but for `rounding`."""
    if is_constant(values, rounding):
        return np.zeros(len(values))
    return values - float(share @ values)


def correlation(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> float | None:
    """Pearson correlation of centred values, within [-1, 1]; null where one is constant."""
    peaks = float(np.max(np.abs(first))), float(np.max(np.abs(second)))
    if min(peaks) == 0:
        return None
    left, right = first / peaks[0], second / peaks[1]
    norm = np.sqrt(float(share @ left**2)) * np.sqrt(float(share @ right**2))
    return min(max(float(share @ (left * right)) / float(norm), -1.0), 1.0)


def largest_correlation(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> float | None:
    """Correlation of the monotone coupling of the two margins, the most they admit.

    For binary outcomes with means p, q: (min(p, q) - p q) / sqrt(p (1 - p) q (1 - q)).

    Source: Frechet-Hoeffding upper bound.
    """
    order = np.argsort(first, kind="stable"), np.argsort(second, kind="stable")
    if np.ptp(share) == 0:
        return correlation(first[order[0]], second[order[1]], share)
    ends = np.cumsum(share[order[0]]), np.cumsum(share[order[1]])
    steps = np.unique(np.concatenate(ends))
    width = np.diff(steps, prepend=0.0)
    picked = [
        values[rank][np.minimum(np.searchsorted(end, steps), len(end) - 1)]
        for values, rank, end in zip((first, second), order, ends, strict=True)
    ]
    return correlation(picked[0], picked[1], width)
