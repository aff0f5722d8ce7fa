"""Weighted mean of differences and its cluster-robust standard error.

Shared by `pairs` and `variance`. Leaves out tests and the other intervals.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special

from twinstats._outcomes import Pairs, power_of_two, rounding_of

EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Differences factual - twin of the valid pairs, in units of 2**exponent.

    Attributes:
        value: The differences.
        weight: Their weights, in an arbitrary unit.
        cluster: Their clusters: 0, 1, ... num_clusters - 1, in order of first appearance.
        rounding: Absolute rounding error of each difference.
        exponent: Differences were multiplied by 2**-exponent.
        num_clusters: Clusters with a valid pair.
        population: Denominator of the mean in the unit of `weight`; None: the sum of weights.
        population_clusters: Clusters of the population, known and unknown.
    """

    value: np.ndarray
    weight: np.ndarray
    cluster: np.ndarray
    rounding: np.ndarray
    exponent: int
    num_clusters: int
    population: float | None
    population_clusters: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredMean:
    """A weighted mean, in units of 2**exponent of its differences.

    Attributes:
        estimate: The mean.
        stderr: CR1 standard error; None for one cluster, 0.0 if the variance is 0 but for rounding.
        is_degenerate: Whether the variance is 0 but for rounding.
        sums: Weighted sum of differences of each cluster.
        sizes: Sum of weights of each cluster.
    """

    estimate: float
    stderr: float | None
    is_degenerate: bool
    sums: np.ndarray
    sizes: np.ndarray


def differences(
    pairs: Pairs, weight: np.ndarray | None = None, population: float | None = None
) -> Differences:
    """The differences of the valid pairs; `weight` has an entry for every pair asked for.

    The number of clusters of a population is not known where only pairs were counted: it is taken
    to be num_clusters * population / num_pairs, which is exact for clusters of one size and
    otherwise too many, so that the variance errs upwards.
    """
    factual, twin, cluster = pairs.factual, pairs.twin, pairs.cluster
    value = factual - twin
    exponent = power_of_two(value)
    shift = 0 if weight is None else power_of_two(weight)
    weights = np.ones(len(value)) if weight is None else np.ldexp(weight[pairs.valid], -shift)
    share = 1.0 if population is None else population / max(len(value), 1)
    return Differences(
        value=np.ldexp(value, -exponent),
        weight=weights,
        cluster=cluster,
        rounding=np.ldexp(rounding_of(factual, twin, pairs.rounding), -exponent),
        exponent=pairs.exponent + exponent,
        num_clusters=pairs.num_clusters,
        population=None if population is None else float(np.ldexp(population, -shift)),
        population_clusters=pairs.num_clusters * share,
    )


def cluster_sums(sample: Differences, values: np.ndarray) -> np.ndarray:
    """Sum of `values`, one entry a pair, over each cluster."""
    return np.bincount(sample.cluster, weights=values, minlength=sample.num_clusters)


def clustered_mean(sample: Differences) -> ClusteredMean:
    """Weighted mean of differences with linearised CR1 standard error.

    Mean: sum(w d) / sum(w) (Hajek), or sum(w d) / N for a population of N pairs, in which the
    pairs that were not sampled count as 0. With residual sums s_g of clusters g = 1..G,
    Var = G / (G - 1) * sum_g s_g^2, s_g = sum_(i in g) w_i (d_i - mean) / sum(w). In a population
    s_g = sum_(i in g) w_i d_i / N - mean / G, over all its clusters.

    Degenerate: one cluster has no standard error.

    Source: Cameron and Miller 2015, A practitioner's guide to cluster-robust inference, Journal of
    Human Resources 50:317-372.
    """
    weighted = sample.weight * sample.value
    sums, sizes = cluster_sums(sample, weighted), cluster_sums(sample, sample.weight)
    total = float(sample.weight.sum()) if sample.population is None else sample.population
    estimate = float(weighted.sum()) / total
    if sample.population is None:
        residual = cluster_sums(sample, sample.weight * (sample.value - estimate)) / total
        extra = 0.0
    else:
        centre = estimate / sample.population_clusters
        residual = sums / total - centre
        extra = max(sample.population_clusters - sample.num_clusters, 0.0) * centre**2
    zero = extra == 0 and _is_rounding(sample, residual, estimate, total)
    count = sample.population_clusters
    stderr = None
    if sample.num_clusters > 1:
        square = 0.0 if zero else float(residual @ residual) + extra
        stderr = float(np.sqrt(square * count / (count - 1)))
    return ClusteredMean(
        estimate=estimate,
        stderr=stderr,
        is_degenerate=sample.num_clusters > 1 and zero,
        sums=sums,
        sizes=sizes,
    )


def _is_rounding(sample: Differences, residual: np.ndarray, estimate: float, total: float) -> bool:
    """Whether all residual sums are 0 but for the rounding of the outcomes and of the mean."""
    shared = float((sample.weight * sample.rounding).sum()) / float(sample.weight.sum())
    own = sample.rounding + shared + 4 * EPSILON * (np.abs(sample.value) + abs(estimate))
    return bool((np.abs(residual) <= cluster_sums(sample, sample.weight * own) / total).all())


def t_interval(mean: ClusteredMean, num_clusters: int, confidence: float) -> tuple[float, float]:
    """Interval of Student's t with num_clusters - 1 degrees of freedom, in the mean's own unit."""
    assert mean.stderr is not None
    width = float(special.stdtrit(num_clusters - 1, (1 + confidence) / 2)) * mean.stderr
    return mean.estimate - width, mean.estimate + width


def scaled(value: float, exponent: int) -> float:
    """`value` times 2**exponent; infinite, without a word, where float64 ends."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(value, exponent))
