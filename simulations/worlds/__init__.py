"""Worlds whose truth is known exactly: one file a world, one line here."""

from simulations.worlds.bandit import Bandit
from simulations.worlds.chain import Chain
from simulations.worlds.errand import Errand
from simulations.worlds.tokens import Tokens

__all__ = ["Bandit", "Chain", "Errand", "Tokens"]
