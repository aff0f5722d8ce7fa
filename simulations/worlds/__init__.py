"""Worlds whose truth is known exactly: one file a world, one line here."""

from typing import Any

from simulations.worlds.bandit import Bandit
from simulations.worlds.chain import Chain

WORLDS: dict[str, type[Any]] = {"bandit": Bandit, "chain": Chain}

__all__ = ["WORLDS", "Bandit", "Chain"]
