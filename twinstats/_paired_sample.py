"""What `paired` learns from its data: differences, counts, moments, the worst case of failures.

Leaves out tests and intervals.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from twinstats._clustered_mean import (
    ClusteredMean,
    Differences,
    clustered_mean,
    differences,
    scaled,
)
from twinstats._moments import Moments, PlainSums, pair_moments, plain_sums
from twinstats._outcomes import Pairs, outcome_array, power_of_two, read_pairs
from twinstats.results import show_interval

COUNTED = ("exact", "midp", "tango", "bonett-price")
_FAR = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a result keeps of its data.

    Attributes:
        differences: Of the valid pairs.
        mean: Theirs; null without a valid pair.
        is_counted: Whether the counts say all: binary, unweighted, one pair a cluster and a row.
        is_weighted: Whether weights or a population were given.
        is_binary: Whether every known outcome is 0 or 1.
        counts: (b, c, n): factual > twin, factual < twin, valid pairs.
    """

    differences: Differences
    mean: ClusteredMean | None
    is_counted: bool
    is_weighted: bool
    is_binary: bool
    counts: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What `paired` knows of its data.

    Attributes:
        sample: What its result keeps.
        moments: Of the valid pairs, without `rho_max`.
        bounds: The estimate at worst and at best, had no pair failed.
        num_missing: Failed pairs.
        has_clusters: Whether clusters were given by the caller.
        doubts: Warnings about moments and failed pairs.
    """

    sample: Sample
    moments: Moments
    bounds: tuple[float, float] | None
    num_missing: int
    has_clusters: bool
    doubts: list[str]


def evidence_of(
    factual: Any, twin: Any, cluster: Any, weights: Any, population: float | None
) -> Evidence:
    """Reads the data, in one lean pass where they are plain.

    Raises:
        ValueError: Empty, infinite or unequal inputs, or bad clusters, weights or population.
    """
    if cluster is None and weights is None and population is None:
        sums = _plain(factual, twin)
        if sums is not None:
            return _plain_evidence(sums)
    pairs = read_pairs(factual, twin, cluster)
    weight = None if weights is None else weight_array(weights, pairs)
    check_population(population, pairs)
    sample = sample_of(pairs, weight, population)
    kept = np.ones(sample.counts[2]) if weight is None else weight[pairs.valid]
    moments = pair_moments(pairs, kept, has_rho_max=False)
    bounds, doubts = missing_bounds(pairs, weight, population)
    return Evidence(
        sample=sample,
        moments=moments,
        bounds=bounds,
        num_missing=pairs.num_missing,
        has_clusters=pairs.has_clusters,
        doubts=moments.undefined() + doubts,
    )


def _plain(factual: Any, twin: Any) -> PlainSums | None:
    """Sums of two arrays of numbers, one twin each; null for anything else."""
    if isinstance(factual, np.ma.MaskedArray) or isinstance(twin, np.ma.MaskedArray):
        return None
    try:
        first, second = np.asarray(factual), np.asarray(twin)
    except ValueError:
        return None
    if second.ndim == 2 and second.shape[1] == 1:
        second = second[:, 0]
    is_numeric = {first.dtype.kind, second.dtype.kind} <= set("buif")
    if not is_numeric or first.shape != second.shape or first.ndim != 1 or not len(first):
        return None
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sums = plain_sums(first, second, 0)
        if sums is None and (exponent := _far_exponent(first, second)):
            sums = plain_sums(first, second, exponent)
    return sums


def _far_exponent(first: np.ndarray, second: np.ndarray) -> int:
    """The exponent of outcomes so large or small that squares need a scale; else 0."""
    exponent = power_of_two(first.astype(np.float64), second.astype(np.float64))
    return exponent if abs(exponent) > _FAR else 0


def _plain_evidence(sums: PlainSums) -> Evidence:
    """The evidence of plain pairs: each is its own cluster of weight 1."""
    total, one = sums.counts[2], np.broadcast_to(1.0, sums.counts[2])
    data = Differences(
        value=sums.difference,
        weight=one,
        cluster=np.arange(total),
        rounding=np.broadcast_to(0.0, total),  # far below the standard deviation
        exponent=sums.exponent,
        num_clusters=total,
        population=None,
        population_clusters=float(total),
    )
    variance = sums.moments.variance_difference
    assert variance is not None
    mean = ClusteredMean(
        estimate=sums.mean,
        stderr=float(np.sqrt(variance / (total - 1))),
        is_degenerate=False,
        sums=sums.difference,
        sizes=one,
    )
    estimate = scaled(sums.mean, sums.exponent)
    return Evidence(
        sample=Sample(
            differences=data,
            mean=mean,
            is_counted=sums.is_binary,
            is_weighted=False,
            is_binary=sums.is_binary,
            counts=sums.counts,
        ),
        moments=sums.moments,
        bounds=(estimate, estimate),
        num_missing=0,
        has_clusters=False,
        doubts=[],
    )


def weight_array(weights: Any, pairs: Pairs) -> np.ndarray:
    """Weights, one a pair asked for."""
    array, _ = outcome_array("weights", weights)
    num_rows = len(pairs.row) // pairs.num_twins
    if array.shape not in ((num_rows,), (num_rows, pairs.num_twins)):
        raise ValueError(f"`weights` must have one entry a row, {num_rows}, got {array.shape}.")
    if np.isnan(array).any() or (array < 0).any():
        raise ValueError("`weights` must not be null or negative.")
    weight = array[pairs.row] if array.ndim == 1 else array.ravel()
    if not weight[pairs.valid if pairs.valid.any() else ...].any():
        raise ValueError("`weights` must not all be 0.")
    return weight


def check_population(population: float | None, pairs: Pairs) -> None:
    """Refuses a population smaller than the pairs asked for."""
    if population is None:
        return
    if not (np.isfinite(population) and population >= len(pairs.row)):
        raise ValueError(
            f"`population` must be at least the number of pairs, {len(pairs.row)}, "
            f"got {population}."
        )


def sample_of(pairs: Pairs, weight: np.ndarray | None, population: float | None) -> Sample:
    """The weighted differences of the valid pairs, their mean and their counts."""
    sample = differences(pairs, weight, population)
    total = len(sample.value)
    is_weighted = weight is not None or population is not None
    is_single = pairs.num_twins == 1 and sample.num_clusters == total
    return Sample(
        differences=sample,
        mean=clustered_mean(sample) if total else None,
        is_counted=pairs.is_binary and not is_weighted and is_single and total > 0,
        is_weighted=is_weighted,
        is_binary=pairs.is_binary,
        counts=(
            int(np.count_nonzero(sample.value > 0)),
            int(np.count_nonzero(sample.value < 0)),
            total,
        ),
    )


def need_counts(option: str, name: str, sample: Sample) -> None:
    """Refuses a method of binary counts for data that are more than counts."""
    if name in COUNTED and not sample.is_counted:
        raise ValueError(
            f"`{option}` {name!r} needs binary, unweighted outcomes with one twin each and one "
            "pair a cluster; use 't'."
        )


def missing_bounds(
    pairs: Pairs, weight: np.ndarray | None, population: float | None
) -> tuple[tuple[float, float] | None, list[str]]:
    """The estimate with every failed outcome at the end of the range that hurts, and helps."""
    known = np.concatenate([pairs.asked_factual, pairs.asked_twin])
    known = known[~np.isnan(known)]
    if len(known) == 0:
        return None, ["missing: every outcome is null, so the range of outcomes is unknown."]
    floor, ceiling = (0.0, 1.0) if pairs.is_binary else (float(known.min()), float(known.max()))
    weights = np.ones(len(pairs.row)) if weight is None else weight
    total = float(weights.sum()) if population is None else population
    bounds = []
    for worst, best in ((floor, ceiling), (ceiling, floor)):
        first = np.nan_to_num(pairs.asked_factual, nan=worst)
        second = np.nan_to_num(pairs.asked_twin, nan=best)
        bounds.append(scaled(float((weights * (first - second)).sum()) / total, pairs.exponent))
    if pairs.num_missing == 0:
        return (bounds[0], bounds[1]), []
    text = f"missing: {pairs.num_missing} of {len(pairs.row)} pairs failed and were dropped"
    if not pairs.is_binary:
        ends = show_interval((scaled(floor, pairs.exponent), scaled(ceiling, pairs.exponent)))
        text += f"; `missing_bounds` takes the observed range of outcomes, {ends}, for theirs"
    if population is not None:
        text += "; in a population they count as 0"
    return (bounds[0], bounds[1]), [f"{text}."]
