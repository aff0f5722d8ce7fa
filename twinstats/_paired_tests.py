"""p-values for paired differences; each takes counts or cluster sums and returns one number.

Leaves out which test is right for which data (`pairs`).
"""

import math

import numpy as np
from scipy import special

from twinstats.noise import generator

ENUMERATED_CLUSTERS = 18
NUM_FLIPS = 9999
_CHUNK_VALUES = 2**21


def tail_pvalue(lower: float, upper: float, alternative: str) -> float:
    """The p-value from P(statistic <= observed) and P(statistic >= observed)."""
    if alternative == "greater":
        return min(1.0, upper)
    if alternative == "less":
        return min(1.0, lower)
    return min(1.0, 2 * min(lower, upper))


def mcnemar_pvalue(higher: int, lower: int, alternative: str, *, midp: bool = False) -> float:
    """Exact conditional McNemar test: `higher` of the discordant pairs ~ Binomial(m, 1/2).

    The mid-p form counts half of the probability of what was observed: nearly nominal where the
    exact form is conservative. No discordant pair: 1.

    Source: Fagerland, Lydersen and Laake 2013, The McNemar test for binary matched-pairs data,
    BMC Medical Research Methodology 13:91.
    """
    total = higher + lower
    if total == 0:
        return 1.0
    at_most = float(special.bdtr(higher, total, 0.5))
    at_least = float(special.bdtrc(higher - 1, total, 0.5))
    if midp:
        log_point = math.lgamma(total + 1) - math.lgamma(higher + 1) - math.lgamma(lower + 1)
        half = 0.5 * math.exp(log_point - total * math.log(2))
        at_most, at_least = max(at_most - half, 0.0), max(at_least - half, 0.0)
    return tail_pvalue(at_most, at_least, alternative)


def tango_variance(higher: int, lower: int, total: int, effect: float) -> float:
    """Variance of a difference, delta - effect^2, under the null value `effect`.

    The discordance delta is its restricted maximum likelihood estimate, 2 q + effect, q the larger
    root of A q^2 + B q + C with A = 2n, B = -b - c + (2n - b + c) effect, C = -c effect (1-effect).

    Source: Tango 1998, Equivalence test and confidence interval for the difference in proportions
    for the paired-sample design, Statistics in Medicine 17:891-908.
    """
    if effect < 0:  # the mirrored problem, in which no subtraction cancels
        higher, lower, effect = lower, higher, -effect
    linear = -higher - lower + (2 * total - higher + lower) * effect
    constant = -lower * effect * (1 - effect)
    root = math.sqrt(max(linear * linear - 8 * total * constant, 0.0))
    if linear > 0:
        share = -2 * constant / (root + linear)
    else:
        share = (root - linear) / (4 * total)
    return max(2 * share + effect * (1 - effect), 0.0)


def tango_pvalue(higher: int, lower: int, total: int, margin: float, alternative: str) -> float:
    """Score test of effect = `margin`; at margin 0 McNemar's (b - c) / sqrt(b + c).

    No discordant pair at margin 0: 1.

    Source: Tango 1998, Statistics in Medicine 17:891-908.
    """
    variance = tango_variance(higher, lower, total, margin)
    distance = (higher - lower) / total - margin
    if distance == 0:
        return 1.0 if higher + lower == 0 else tail_pvalue(0.5, 0.5, alternative)
    score = distance * math.sqrt(total / variance) if variance > 0 else math.copysign(40, distance)
    return tail_pvalue(float(special.ndtr(score)), float(special.ndtr(-score)), alternative)


def t_pvalue(statistic: float, degrees: int, alternative: str) -> float:
    """Student's t with `degrees` degrees of freedom."""
    lower = float(special.stdtr(degrees, statistic))
    upper = float(special.stdtr(degrees, -statistic))
    return tail_pvalue(lower, upper, alternative)


def signflip_pvalue(sums: np.ndarray, alternative: str, *, seed: int = 0) -> float:
    """Share of sign vectors under which the total of `sums` is as extreme as observed.

    Exact by enumeration up to 18 sums that are not 0; beyond, (1 + hits) / (1 + 9999) over keyed
    random flips, which is a valid p-value too. Assumes that every sum is symmetric about 0 under
    the null. All sums 0: 1.
    """
    moving = np.sort(np.abs(sums[sums != 0]))
    total = float(sums.sum())
    if alternative == "less":  # the totals are symmetric, so that no order or swap changes p
        total, alternative = -total, "greater"
    slack = 1e-12 * float(moving.sum())
    if len(moving) <= ENUMERATED_CLUSTERS:
        totals = np.zeros(1)
        for value in moving:
            totals = np.concatenate([totals + value, totals - value])
        return _extreme(totals, total, slack, alternative) / len(totals)
    hits = 0
    rng = generator(seed, "bootstrap")
    for size in chunk_sizes(NUM_FLIPS, len(moving)):
        signs = 2.0 * rng.integers(0, 2, (size, len(moving)), dtype=np.int8) - 1.0
        hits += _extreme(signs @ moving, total, slack, alternative)
    return (1 + hits) / (1 + NUM_FLIPS)


def _extreme(totals: np.ndarray, observed: float, slack: float, alternative: str) -> int:
    if alternative == "greater":
        return int(np.count_nonzero(totals >= observed - slack))
    return int(np.count_nonzero(np.abs(totals) >= abs(observed) - slack))


def chunk_sizes(num_rows: int, num_columns: int) -> list[int]:
    """Sizes of the pieces in which `num_rows` rows of random numbers fit a bounded memory."""
    size = max(1, _CHUNK_VALUES // max(num_columns, 1))
    full, rest = divmod(num_rows, size)
    return [size] * full + ([rest] if rest else [])
