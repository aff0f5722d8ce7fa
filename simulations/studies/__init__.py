"""The studies: one file a study, one line here.

A study has `SETTINGS`, `QUICK` and `DEMO` (tuples of frozen settings with a `name`), `SEEDS`
(their number for each), `run(setting, seed)` (rows of its table `TABLE`), and, where it has more
to say once all rows are there, `summarise(rows)` (rows by table).
"""

import importlib
from types import ModuleType
from typing import Any, Literal

from twinstats.errors import unknown

Which = Literal["full", "quick", "demo"]

STUDIES: dict[str, str] = {
    "unbiased": "simulations.studies.unbiased",
    "variance": "simulations.studies.variance",
    "complexity": "simulations.studies.complexity",
    "keys": "simulations.studies.keys",
    "gain": "simulations.studies.gain",
    "leaderboard": "simulations.studies.leaderboard",
    "learning": "simulations.studies.learning",
}


def load_study(name: str) -> ModuleType:
    """The module of a study.

    Raises:
        UsageError: An unknown name; the nearest right one is named.
    """
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return importlib.import_module(STUDIES[name])


def settings_of(study: ModuleType, which: Which) -> tuple[Any, ...]:
    """The settings that a study plays in full, quickly, or for the demo."""
    chosen = {"full": "SETTINGS", "quick": "QUICK", "demo": "DEMO"}[which]
    settings: tuple[Any, ...] = getattr(study, chosen)
    return settings


__all__ = ["STUDIES", "Which", "load_study", "settings_of"]
