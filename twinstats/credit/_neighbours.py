"""A small regressor that needs no training: the mean outcome of the nearest turns.

Leaves out TabPFN and scikit-learn: whatever has their `fit` and `predict` may stand in.
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy.spatial import KDTree

from twinstats.credit._checks import count


@runtime_checkable
class Regressor(Protocol):
    """What scikit-learn and TabPFN call a regressor."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Any:  # noqa: N803
        """Takes up a context of feature rows and outcomes."""

    def predict(self, X: np.ndarray) -> np.ndarray:  # noqa: N803
        """An outcome for each row."""


class Neighbours:
    """Mean outcome of the nearest `neighbours` rows, features standardised over the context.

    Equal rows are one point that counts as often as it occurs, and a point is taken whole, so that
    no row is preferred among equals: with few distinct states it is their mean outcome. Points at
    equal distance are taken in the order of their features. A feature that never varies counts
    nothing. Fewer rows than `neighbours`: all of them.

    Raises:
        ValueError: `neighbours` below 1.
    """

    def __init__(self, neighbours: int = 16) -> None:
        count(neighbours=neighbours)
        self.neighbours = neighbours

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Neighbours":
        """Takes up a context of at least one row."""
        points, place, times = np.unique(X, axis=0, return_inverse=True, return_counts=True)
        self._times = times
        self._sums = np.bincount(place.ravel(), weights=y)
        self._bounds = float(np.min(y)), float(np.max(y))
        spread, varies = X.std(axis=0), X.max(axis=0) > X.min(axis=0)
        self._spread = np.where(varies & (spread > 0), spread, np.inf)
        self._tree = KDTree(points / self._spread)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The mean outcome of each row's neighbours."""
        num_points = min(self.neighbours, len(self._times))
        _, found = self._tree.query(X / self._spread, k=np.arange(1, num_points + 1))
        times = self._times[found]
        taken = np.cumsum(times, axis=1) - times < self.neighbours
        sums = np.where(taken, self._sums[found], 0.0).sum(axis=1)
        # equal outcomes have that outcome as their mean, whatever their sum is rounded to
        means = sums / np.where(taken, times, 0).sum(axis=1)
        return np.asarray(np.clip(means, *self._bounds))
