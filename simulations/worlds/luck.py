"""Keyed noise of many walks, a block of turns at a time.

The numbers are those of turn-by-turn draws; only the calls are fewer, which small batches feel.
"""

from collections.abc import Callable

import numpy as np

from simulations.worlds.slots import at_slots
from twinstats.noise import KeyColumns

_DRAWN_AHEAD = 20_000  # turns of walks drawn in one call


class Ahead:
    """What walks draw at their turns, drawn for a block of turns in one call."""

    def __init__(
        self,
        draw: Callable[[KeyColumns], np.ndarray],
        keys: KeyColumns,
        start: np.ndarray,
        horizon: int,
    ) -> None:
        """`keys` are at slot 0, one a walk; `start` is each walk's first turn."""
        self._draw, self._keys, self._start = draw, keys, start
        self._horizon = horizon
        self._block = max(1, _DRAWN_AHEAD // max(len(start), 1))
        self._first = self._end = 0
        self._line = np.full(len(start), -1)
        self._drawn = np.zeros(0)

    def at(self, turn: int, walks: np.ndarray, alive: np.ndarray) -> np.ndarray:
        """The draws of some walks at a turn; turns are asked for in order.

        Args:
            turn: The turn.
            walks: Which walks, by number.
            alive: Of all walks, whether they have not ended.
        """
        if turn >= self._end:
            self._refill(turn, alive)
        return np.asarray(self._drawn[self._line[walks], turn - self._first])

    def _refill(self, turn: int, alive: np.ndarray) -> None:
        self._first, self._end = turn, min(self._horizon, turn + self._block)
        walks = np.flatnonzero(alive & (self._start < self._end))
        self._line[walks] = np.arange(len(walks))
        turns = np.arange(self._first, self._end)
        keys = self._keys.take(np.repeat(walks, len(turns)))
        drawn = self._draw(at_slots(keys, np.tile(turns, len(walks))))
        self._drawn = drawn.reshape(len(walks), len(turns), *drawn.shape[1:])
