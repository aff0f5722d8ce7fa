"""Outcomes of pairs: checked once at the door, aligned, and scaled so that no square overflows.

Shared by `pairs` and `variance`. Leaves out every estimate.
"""

from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinstats._numbers import float_array

FEW_CLUSTERS = 10
"""Below this many clusters, CR1 standard errors and bootstrap intervals come out too small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs as they were asked for, one entry a (factual, twin), row by row.

    Outcomes are in units of 2**exponent, which is exact, so that squares stay in range.

    Attributes:
        asked_factual: Factual outcomes, NaN where null.
        asked_twin: Twin outcomes, NaN where null.
        asked_cluster: Cluster of each pair: 0, 1, ... in order of first appearance.
        row: Which factual outcome each pair belongs to.
        valid: Whether both outcomes of a pair are known.
        num_twins: Twins of each factual outcome.
        exponent: Outcomes were multiplied by 2**-exponent.
        rounding: Relative rounding error of the factual and of the twin outcomes as given.
        is_binary: Whether every known outcome is 0 or 1.
        has_clusters: Whether clusters were given by the caller.
    """

    asked_factual: np.ndarray
    asked_twin: np.ndarray
    asked_cluster: np.ndarray
    row: np.ndarray
    valid: np.ndarray
    num_twins: int
    exponent: int
    rounding: tuple[float, float]
    is_binary: bool
    has_clusters: bool

    @property
    def factual(self) -> np.ndarray:
        """Factual outcomes of the valid pairs."""
        return np.asarray(self.asked_factual[self.valid])

    @property
    def twin(self) -> np.ndarray:
        """Twin outcomes of the valid pairs."""
        return np.asarray(self.asked_twin[self.valid])

    @property
    def cluster(self) -> np.ndarray:
        """Clusters of the valid pairs: 0, 1, ... in order of first appearance, none missing."""
        if self.valid.all():
            return self.asked_cluster
        return first_appearance(self.asked_cluster[self.valid])

    @property
    def num_clusters(self) -> int:
        """Clusters with a valid pair."""
        return int(np.count_nonzero(np.bincount(self.asked_cluster[self.valid])))

    @property
    def num_rows(self) -> int:
        """Factual outcomes with a valid pair."""
        return int(np.count_nonzero(np.bincount(self.row[self.valid])))

    @property
    def num_missing(self) -> int:
        """Pairs with a null outcome."""
        return int(np.count_nonzero(~self.valid))


def outcome_array(name: str, values: Any) -> tuple[np.ndarray, float]:
    """`values` as float64 with NaN for null, and the relative rounding error they came with.

    The error is 0 for whole numbers, else the machine epsilon of the type given.

    Raises:
        ValueError: Something that is not a number or null, an infinity, a ragged or empty array.
    """
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(object), None)
    array = float_array(name, values)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"`{name}` must hold at least one outcome, got shape {array.shape}.")
    if np.isinf(array).any():
        index = int(np.flatnonzero(np.isinf(array))[0])
        raise ValueError(f"`{name}` must be finite or null, got inf at entry {index}.")
    known = array[~np.isnan(array)]
    if np.array_equal(known, np.rint(known)):
        return array, 0.0
    return array, unit_roundoff(np.asarray(values))


def unit_roundoff(values: np.ndarray) -> float:
    """Relative spacing of the type that values came in: float64 unless a shorter float."""
    given = values.dtype
    kind = given if given.kind == "f" and given.itemsize < 8 else np.float64
    return float(np.finfo(kind).eps)


def first_appearance(codes: np.ndarray) -> np.ndarray:
    """Sortable labels as 0, 1, ... in order of first appearance."""
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def label_codes(name: str, labels: Any, num_rows: int) -> np.ndarray:
    """Any hashable labels, one a row, as 0, 1, ... in order of first appearance.

    Raises:
        ValueError: No list of labels, another number of them than rows, or a null label.
    """
    given: Iterable[Hashable]
    if isinstance(labels, (str, bytes, Set, Mapping)) or not isinstance(labels, Iterable):
        raise ValueError(f"`{name}` must be a list of labels, got {type(labels).__name__}.")
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "biuUS":
        codes = first_appearance(labels)
    else:
        if isinstance(labels, str) or not np.iterable(labels):
            raise ValueError(f"`{name}` must be a list of labels, got {labels!r}.")
        given = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
        seen: dict[Hashable, int] = {}
        try:
            codes = np.array([seen.setdefault(label, len(seen)) for label in given], dtype=np.int64)
        except TypeError:
            raise ValueError(f"`{name}` must hold hashable labels, one a row.") from None
        if any(label is None or label != label for label in seen):
            raise ValueError(f"`{name}` must not hold null labels.")
    if len(codes) != num_rows:
        raise ValueError(f"`{name}` must have one label a row: {num_rows}, got {len(codes)}.")
    return codes


def power_of_two(*arrays: np.ndarray) -> int:
    """The exponent e for which the largest known magnitude is in [2**e, 2**(e+1)); 0 if all 0."""
    largest = max(
        float(np.max(np.abs(array), initial=0.0, where=~np.isnan(array))) for array in arrays
    )
    return int(np.frexp(largest)[1]) - 1 if largest > 0 else 0


def read_pairs(
    factual: Any,
    twin: Any,
    cluster: Any = None,
    *,
    cluster_name: str = "cluster",
    others: Mapping[str, Any] | None = None,
) -> Pairs:
    """Checks and aligns the outcomes of pairs; `twin` may have K columns.

    Without `cluster`, each factual outcome and its twins are one cluster. The common scale has
    room for `others`: further outcomes of the same episodes, by name, null where not given.

    Raises:
        ValueError: Empty or infinite outcomes, unequal lengths, or a bad `cluster`.
    """
    first, rounding_factual = outcome_array("factual", factual)
    second, rounding_twin = outcome_array("twin", twin)
    if first.ndim != 1:
        raise ValueError(f"`factual` must have one axis, got shape {first.shape}.")
    if len(first) != len(second):
        raise ValueError(
            f"`factual` and `twin` must have the same length, got {len(first)} and {len(second)}."
        )
    num_twins = 1 if second.ndim == 1 else second.shape[1]
    row = np.repeat(np.arange(len(first)), num_twins)
    asked_factual, asked_twin = first[row], second.ravel()
    beside = [outcome_array(*item)[0] for item in (others or {}).items() if item[1] is not None]
    exponent = power_of_two(asked_factual, asked_twin, *beside)
    code = np.arange(len(first))
    if cluster is not None:
        code = label_codes(cluster_name, cluster, len(first))
    known = np.concatenate([asked_factual, asked_twin])
    return Pairs(
        asked_factual=np.ldexp(asked_factual, -exponent),
        asked_twin=np.ldexp(asked_twin, -exponent),
        asked_cluster=code[row],
        row=row,
        valid=~(np.isnan(asked_factual) | np.isnan(asked_twin)),
        num_twins=num_twins,
        exponent=exponent,
        rounding=(rounding_factual, rounding_twin),
        is_binary=bool(np.isin(known[~np.isnan(known)], (0.0, 1.0)).all()),
        has_clusters=cluster is not None,
    )


def rounding_of(first: np.ndarray, second: np.ndarray, rounding: tuple[float, float]) -> np.ndarray:
    """Largest rounding error of each difference `first - second`; 0 where the two are equal.

    Four units in the last place of each outcome: it may itself be a short sum.
    """
    error = 4 * (rounding[0] * np.abs(first) + rounding[1] * np.abs(second))
    return np.where(first == second, 0.0, error)


def is_constant(values: np.ndarray, rounding: np.ndarray | float = 0.0) -> bool:
    """Whether all values may be one number once `rounding` (an absolute error) is allowed for."""
    if len(values) == 0:
        return True
    return bool(np.max(values - rounding) <= np.min(values + rounding))
