"""Noise keys, one by one and as columns of Philox words."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinstats.philox import philox4x32


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Names the noise of one turn: (seed, step, row, turn, luck, purpose).

    Attributes:
        seed: The run's seed, any integer.
        step: The training or sweep step.
        row: The episode's row, unique within a step, below 2**32.
        turn: The turn's slot: its running index unless the task names another; below 2**16.
        luck: Number of the draw; below 2**16.
        purpose: What the noise is for; purposes never share a block.

    Raises:
        ValueError: A number outside its range, or an empty purpose.
    """

    seed: int
    step: int
    row: int
    turn: int
    luck: int = 0
    purpose: str = "sample"

    def __post_init__(self) -> None:
        for name in ("seed", "step"):
            if not isinstance(getattr(self, name), (int, np.integer)):
                raise ValueError(f"`{name}` must be a whole number, got {getattr(self, name)!r}.")
        for name, bits in (("row", 32), ("turn", 16), ("luck", 16)):
            value = getattr(self, name)
            if not (isinstance(value, (int, np.integer)) and 0 <= value < 2**bits):
                raise ValueError(f"`{name}` must be in [0, 2**{bits}) and whole, got {value!r}.")
        if not (isinstance(self.purpose, str) and self.purpose):
            raise ValueError(f"`purpose` must not be empty, and text, got {self.purpose!r}.")


@functools.lru_cache(maxsize=65536)
def _key_words(seed: int, step: int, purpose: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}/{step}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


@dataclass(frozen=True, slots=True, eq=False)
class KeyColumns:
    """Many noise keys as columns of Philox words, one entry a key.

    Attributes:
        words: Arrays k0 and k1: seed, step and purpose.
        turn_luck: turn * 2**16 + luck.
        row: The row.
    """

    words: tuple[np.ndarray, np.ndarray]
    turn_luck: np.ndarray
    row: np.ndarray

    @classmethod
    def of(cls, keys: Sequence[NoiseKey]) -> "KeyColumns":
        """The columns of a sequence of keys."""
        words = np.array([_key_words(k.seed, k.step, k.purpose) for k in keys], np.uint64)
        k0, k1 = words.reshape(-1, 2).T
        turn_luck = np.array([k.turn * 65536 + k.luck for k in keys], np.uint64)
        return cls((k0, k1), turn_luck, np.array([k.row for k in keys], np.uint64))

    @classmethod
    def grid(
        cls, seed: int, step: int, purpose: str, *, row: np.ndarray, turn: int, luck: int = 0
    ) -> "KeyColumns":
        """The columns of keys that differ in their row only."""
        for end in (np.min(row, initial=0), np.max(row, initial=0)):
            NoiseKey(seed, step, int(end), turn, luck, purpose)
        k0, k1 = _key_words(seed, step, purpose)
        rows = np.asarray(row, np.uint64)
        shape = rows.shape
        columns = [np.full(shape, value, np.uint64) for value in (k0, k1, turn * 65536 + luck)]
        return cls((columns[0], columns[1]), columns[2], rows)

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: np.ndarray) -> "KeyColumns":
        """The keys at `index`, repeated as often as it names them."""
        k0, k1 = self.words
        return KeyColumns((k0[index], k1[index]), self.turn_luck[index], self.row[index])

    def blocks(self, lane: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, ...]:
        """The four Philox words at `lane` and `position`, which broadcast with the keys."""
        return philox4x32((lane, position, self.turn_luck, self.row), self.words)
