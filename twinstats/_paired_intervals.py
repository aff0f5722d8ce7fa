"""Intervals for the mean difference of pairs.

Leaves out tests (`_paired_tests`).
"""

import math

import numpy as np
from scipy import special

from twinstats._clustered_mean import (
    ClusteredMean,
    Differences,
    cluster_sums,
    scaled,
    t_interval,
)
from twinstats._paired_sample import Sample, need_counts
from twinstats._paired_tests import chunk_sizes, tango_variance
from twinstats.noise import generator
from twinstats.results import show

INTERVALS = ("auto", "tango", "bonett-price", "t", "bca", "anytime")
NUM_RESAMPLES = 9999


def interval(
    sample: Sample, method: str, *, confidence: float, seed: int
) -> tuple[float, float] | None:
    """The interval called `method`, in the unit of the outcome; null where undefined."""
    if method == "auto":
        method = "tango" if sample.is_counted else "t"
    if sample.mean is None:
        return None
    need_counts("method", method, sample)
    if method == "tango":
        return tango_interval(*sample.counts, confidence=confidence)
    if method == "bonett-price":
        return bonett_price_interval(*sample.counts, confidence=confidence)
    if method == "anytime":
        return _anytime_interval(sample, confidence)
    if sample.mean.stderr is None:
        return None
    low, high = _width_interval(sample, method, confidence=confidence, seed=seed)
    if sample.is_binary and sample.differences.population is None:
        return max(low, -1.0), min(high, 1.0)
    return low, high


def _width_interval(
    sample: Sample, method: str, *, confidence: float, seed: int
) -> tuple[float, float]:
    mean, data = sample.mean, sample.differences
    assert mean is not None
    if mean.is_degenerate:
        low = high = mean.estimate
    elif method == "bca":
        low, high = bca_interval(data, mean, confidence=confidence, seed=seed)
    else:
        low, high = t_interval(mean, data.num_clusters, confidence)
    return scaled(low, data.exponent), scaled(high, data.exponent)


def _anytime_interval(sample: Sample, confidence: float) -> tuple[float, float]:
    from twinstats.sequential import PairedSequence

    data = sample.differences
    if sample.is_weighted:
        raise ValueError("`method` 'anytime' needs unweighted pairs; use 't' or 'bca'.")
    largest = scaled(float(np.max(np.abs(data.value))), data.exponent)
    if largest > 1 + 1e-12:
        raise ValueError(f"`method` 'anytime' needs differences in [-1, 1], got {show(largest)}.")
    means = cluster_sums(data, data.value) / cluster_sums(data, np.ones(len(data.value)))
    sequence = PairedSequence(alpha=1 - confidence)
    sequence.update(np.clip(np.ldexp(means, data.exponent), -1.0, 1.0))
    low, high = sequence.confidence_interval()
    return float(low), float(high)


def tango_interval(
    higher: int, lower: int, total: int, *, confidence: float
) -> tuple[float, float]:
    """All effects that the score test does not reject, within [-1, 1].

    Higher and lower are b and c of n = `total` pairs. No discordant pair: +-z^2 / (n + z^2).

    Source: Tango 1998, Statistics in Medicine 17:891-908.
    """
    normal = float(special.ndtri((1 + confidence) / 2))
    low = -_tango_upper(lower, higher, total, normal)
    return low, _tango_upper(higher, lower, total, normal)


def _tango_upper(higher: int, lower: int, total: int, normal: float) -> float:
    from scipy.optimize import brentq

    if higher == total:
        return 1.0
    if higher + lower == 0:
        return normal**2 / (total + normal**2)
    if lower == total:  # the estimate is -1 and its variance 0: the score equation is linear
        return (normal**2 - total) / (normal**2 + total)
    estimate = (higher - lower) / total

    def excess(effect: float) -> float:
        spread = normal * math.sqrt(tango_variance(higher, lower, total, effect))
        return (effect - estimate) * math.sqrt(total) - spread

    return float(brentq(excess, estimate, 1.0, xtol=1e-300, rtol=1e-15, maxiter=500))


def bonett_price_interval(
    higher: int, lower: int, total: int, *, confidence: float
) -> tuple[float, float]:
    """Wald interval with one pseudo-count in each discordant cell, cut to [-1, 1].

    With p = (b + 1) / (n + 2), q = (c + 1) / (n + 2):
    p - q +- z sqrt((p + q - (p - q)^2) / (n + 2)).

    Source: Bonett and Price 2012, Adjusted Wald confidence interval for a difference of binomial
    proportions based on paired data, J. Educational and Behavioral Statistics 37:479-488.
    """
    normal = float(special.ndtri((1 + confidence) / 2))
    up, down = (higher + 1) / (total + 2), (lower + 1) / (total + 2)
    width = normal * math.sqrt((up + down - (up - down) ** 2) / (total + 2))
    return max(up - down - width, -1.0), min(up - down + width, 1.0)


def bca_interval(
    sample: Differences, mean: ClusteredMean, *, confidence: float, seed: int
) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap over clusters, 9,999 keyed resamples.

    Clusters are drawn with replacement and taken whole; the acceleration is the jackknife's over
    clusters. All cluster sums equal: an interval without width. In units of the differences.

    Source: Efron 1987, Better bootstrap confidence intervals, JASA 82:171-185.
    """
    draws = _resampled_means(sample, mean, seed)
    below = float(np.mean(draws < mean.estimate) + 0.5 * np.mean(draws == mean.estimate))
    least = 0.5 / len(draws)
    bias = float(special.ndtri(min(max(below, least), 1 - least)))
    acceleration = _acceleration(sample, mean)
    normal = float(special.ndtri((1 + confidence) / 2))
    shifted = np.array([bias - normal, bias + normal])
    stretch = 1 - acceleration * shifted
    if (stretch <= 0).any():  # beyond the pole of the correction: its limit
        levels = np.where(stretch > 0, special.ndtr(bias + shifted / stretch), [0.0, 1.0])
    else:
        levels = special.ndtr(bias + shifted / stretch)
    low, high = np.quantile(draws, levels)
    return float(low), float(high)


def _acceleration(sample: Differences, mean: ClusteredMean) -> float:
    if sample.population is None:
        left = (mean.sums.sum() - mean.sums) / (mean.sizes.sum() - mean.sizes)
        influence = left.mean() - left
    else:
        influence = mean.sums - mean.sums.sum() / sample.population_clusters
    peak = float(np.max(np.abs(influence)))
    if peak == 0:
        return 0.0
    influence = influence / peak
    square, cube = float((influence**2).sum()), float((influence**3).sum())
    if sample.population is not None:  # the population's other clusters have sum 0
        others = max(sample.population_clusters - sample.num_clusters, 0.0)
        centre = mean.sums.sum() / sample.population_clusters / peak
        square, cube = square + others * centre**2, cube - others * centre**3
    return float(cube / (6 * square**1.5))


def _resampled_means(sample: Differences, mean: ClusteredMean, seed: int) -> np.ndarray:
    """Means of resamples of clusters; in a population, a binomial number of them is not empty."""
    rng = generator(seed, "bootstrap")
    num_clusters, num_known = round(sample.population_clusters), sample.num_clusters
    share = min(num_known / num_clusters, 1.0)
    pieces = []
    for size in chunk_sizes(NUM_RESAMPLES, num_known):
        if sample.population is None:
            chosen = rng.integers(0, num_known, (size, num_known), dtype=np.int32)
            pieces.append(mean.sums[chosen].sum(axis=1) / mean.sizes[chosen].sum(axis=1))
        else:
            taken = rng.binomial(num_clusters, share, size)
            chosen = rng.integers(0, num_known, (size, int(taken.max())), dtype=np.int32)
            kept = np.arange(chosen.shape[1]) < taken[:, None]
            pieces.append((mean.sums[chosen] * kept).sum(axis=1) / sample.population)
    return np.concatenate(pieces)
