"""Worlds whose truth is known exactly: one file a world, one line here."""

from simulations.worlds.bandit import Bandit
from simulations.worlds.chain import Chain
from simulations.worlds.errand import Errand

__all__ = ["Bandit", "Chain", "Errand"]
