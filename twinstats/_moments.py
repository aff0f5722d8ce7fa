"""Second moments of pairs, with constant data told from rounding.

Shared by `pairs` and `variance`. Leaves out intervals.
"""

import math
from dataclasses import dataclass

import numpy as np

from twinstats._outcomes import Pairs, is_constant, rounding_of, unit_roundoff

BLOCK = 8192
"""Pairs of one step through plain data: they fit the cache, and BLAS adds them in one thread."""
_LEAST, _MOST = 2.0**-300, 2.0**300


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
        rho_max: The largest correlation that outcomes with these margins can have; null where it
            was not asked for (it sorts the outcomes).
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


def pair_moments(pairs: Pairs, weight: np.ndarray, *, has_rho_max: bool = True) -> Moments:
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
        rho_max=largest_correlation(first, second, share) if has_rho_max else None,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSums:
    """Unweighted pairs, all known and none degenerate, in units of 2**exponent.

    Attributes:
        difference: factual - twin of each pair.
        counts: (b, c, n): factual > twin, factual < twin, pairs.
        is_binary: Whether every outcome is 0 or 1.
        mean: Mean difference.
        moments: Without `rho_max`.
        exponent: Outcomes were multiplied by 2**-exponent.
    """

    difference: np.ndarray
    counts: tuple[int, int, int]
    is_binary: bool
    mean: float
    moments: Moments
    exponent: int


def plain_sums(factual: np.ndarray, twin: np.ndarray, exponent: int) -> PlainSums | None:
    """One pass through plain pairs; null where they need the care of `pair_moments`.

    That is where an outcome is null or infinite, a square leaves the range of float64, or a
    variance may be no more than rounding. With means m_k and sums of squares Q_k of blocks of n_k
    pairs, n Var = sum Q_k + sum n_k (m_k - m)^2, in which nothing cancels.

    >>> from twinstats._outcomes import read_pairs
    >>> from twinstats.noise import generator
    >>> factual, twin = generator(0, "example").normal(1e3, size=(2, 2 * BLOCK + 5))
    >>> sums = plain_sums(factual, twin, 0)
    >>> whole = pair_moments(read_pairs(factual, twin), np.ones(len(factual)))
    >>> unit = 4.0 ** read_pairs(factual, twin).exponent
    >>> abs(sums.moments.covariance - whole.covariance * unit) < 1e-14
    True
    >>> abs(sums.moments.rho_eff - whole.rho_eff) < 1e-13, sums.counts[2]
    (True, 16389)

    Source: Chan, Golub and LeVeque 1983, The American Statistician 37:242-247.
    """
    total = len(factual)
    difference = np.empty(total)
    buffers, is_higher = np.empty((3, BLOCK)), np.empty(BLOCK, bool)
    sums, squares, sizes = [], [], []
    higher = lower = 0
    is_binary = True
    for start in range(0, total, BLOCK):
        part = slice(start, min(start + BLOCK, total))
        size = part.stop - start
        block, above = buffers[:, :size], is_higher[:size]
        first, second, between = block
        first[:], second[:] = factual[part], twin[part]
        is_binary = is_binary and _is_binary(first) and _is_binary(second)
        if exponent:
            np.ldexp(block[:2], -exponent, out=block[:2])
        np.subtract(first, second, out=between)
        difference[part] = between
        higher += int(np.count_nonzero(np.greater(between, 0, out=above)))
        lower += int(np.count_nonzero(np.less(between, 0, out=above)))
        sums.append(block.sum(axis=1))
        if not np.isfinite(sums[-1]).all():
            return None
        block -= (sums[-1] / size)[:, None]
        squares.append((first @ first, second @ second, between @ between, first @ second))
        sizes.append(size)
    mean, second_moment = _merged(np.array(sums), np.array(squares), np.array(sizes))
    if not _is_safe(mean, second_moment, (unit_roundoff(factual), unit_roundoff(twin))):
        return None
    return PlainSums(
        difference=difference,
        counts=(higher, lower, total),
        is_binary=is_binary,
        mean=float(mean[2]),
        moments=_plain_moments(second_moment, (higher + lower) / total),
        exponent=exponent,
    )


def _is_binary(values: np.ndarray) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _merged(
    sums: np.ndarray, squares: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Means of F, T, F - T, and Var F, Var T, Var(F - T), Cov(F, T), from those of the blocks."""
    total = int(sizes.sum())
    mean = np.array([math.fsum(column) / total for column in sums.T])
    shift = sums / sizes[:, None] - mean
    between = np.column_stack([shift**2, shift[:, 0] * shift[:, 1]]) * sizes[:, None]
    return mean, np.array([math.fsum(column) / total for column in (squares + between).T])


def _is_safe(mean: np.ndarray, second: np.ndarray, epsilon: tuple[float, float]) -> bool:
    """Whether all squares are in range and no variance can be rounding.

    Values v_i that are constant but for errors e_i have a standard deviation of at most twice the
    root mean square of e_i: see `is_constant` and `clustered_mean`.
    """
    size = np.sqrt(mean**2 + second[:3])
    error = 16 * size * [*epsilon, epsilon[0]]
    error[2] = error[0] + error[1] + 16 * np.finfo(np.float64).eps * size[2]
    in_range = (size > _LEAST) & (size < _MOST)
    return bool(in_range.all() and (np.sqrt(second[:3]) > error).all())


def _plain_moments(second: np.ndarray, discordance: float) -> Moments:
    first, twin, between, both = second.tolist()
    return Moments(
        variance_factual=first,
        variance_twin=twin,
        covariance=both,
        variance_difference=between,
        rho=min(max(both / (math.sqrt(first) * math.sqrt(twin)), -1.0), 1.0),
        rho_max=None,
        discordance=discordance,
    )
