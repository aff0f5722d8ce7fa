"""The regressor that predicts outcomes for `t2spo`: TabPFN, or trees of scikit-learn.

TabPFN is used where its package and its weights are; nothing is downloaded. Both are deterministic.
Leaves out the features, and the nearest neighbours that twinstats itself falls back on.
"""

import importlib.util
from pathlib import Path
from typing import Any, Literal

import numpy as np

from twinstats.credit._neighbours import Regressor
from twinstats.errors import UsageError

Kind = Literal["auto", "tabpfn", "sklearn"]


class Clipped:
    """A regressor whose predictions stay within the outcomes it has seen.

    Args:
        regressor: Has `fit(X, y)` and `predict(X)`.
    """

    def __init__(self, regressor: Regressor) -> None:
        self.regressor = regressor
        self._least = self._most = 0.0

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Clipped":  # noqa: N803
        """Takes up a context of feature rows and outcomes."""
        self._least, self._most = float(y.min()), float(y.max())
        self.regressor.fit(X, y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:  # noqa: N803
        """An outcome for each row."""
        found = np.asarray(self.regressor.predict(X), np.float64)
        return np.clip(found, self._least, self._most)


def success_regressor(kind: Kind) -> Regressor:
    """The regressor of this kind; `auto` takes TabPFN where it can.

    Raises:
        UsageError: TabPFN was asked for, and package or weights are missing.
    """
    return Clipped(_tabpfn() if chosen(kind) == "tabpfn" else _trees())


def chosen(kind: Kind) -> Literal["tabpfn", "sklearn"]:
    """Which regressor a kind comes to on this machine.

    Raises:
        UsageError: TabPFN was asked for, and package or weights are missing.
    """
    if kind == "sklearn":
        return "sklearn"
    if weights() is not None:
        return "tabpfn"
    if kind == "tabpfn":
        raise UsageError(
            "`needs.regressor=tabpfn` needs the package tabpfn (pip install 'twinstats[tabpfn]') "
            "and the weights of its regressor in TABPFN_MODEL_CACHE_DIR; nothing is downloaded."
        )
    return "sklearn"


def weights() -> Path | None:
    """The file of TabPFN's regressor on this machine; null without the package or the file."""
    if importlib.util.find_spec("tabpfn") is None:
        return None
    from tabpfn.model_loading import resolve_model_path
    from tabpfn.settings import settings

    version = settings.tabpfn.model_version.value
    found = Path(resolve_model_path(None, "regressor", version=version)[0][0])
    return found if found.is_file() else None


def _tabpfn() -> Any:
    from tabpfn import TabPFNRegressor

    return TabPFNRegressor(
        model_path=str(weights()), random_state=0, ignore_pretraining_limits=True
    )


def _trees() -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    # small trees and slow learning: a context is hundreds to thousands of turns
    return HistGradientBoostingRegressor(
        learning_rate=0.05, max_iter=100, max_leaf_nodes=8, random_state=0
    )
