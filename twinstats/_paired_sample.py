"""What `paired` keeps of its data: weighted differences, counts, and the worst case for failures.

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
from twinstats._outcomes import Pairs, outcome_array
from twinstats.results import show_interval

COUNTED = ("exact", "midp", "tango", "bonett-price")


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
