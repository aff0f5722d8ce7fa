"""Noise keys, one by one and as columns of Philox words."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    NumPy's whole numbers become Python's, so that equal keys have the same words.

    Raises:
        ValueError: A number that is not whole (a boolean is none) or outside its range, or a
            purpose that is empty or no UTF-8 text.
    """

    seed: int
    step: int
    row: int
    turn: int
    luck: int = 0
    purpose: str = "sample"

    def __post_init__(self) -> None:
        for name in ("seed", "step"):
            if not is_whole(getattr(self, name)):
                raise ValueError(f"`{name}` must be a whole number, got {getattr(self, name)!r}.")
        for name, bits in (("row", 32), ("turn", 16), ("luck", 16)):
            value = getattr(self, name)
            if not (is_whole(value) and 0 <= value < 2**bits):
                raise ValueError(f"`{name}` must be in [0, 2**{bits}) and whole, got {value!r}.")
        for name in ("seed", "step", "row", "turn", "luck"):
            if type(getattr(self, name)) is not int:
                object.__setattr__(self, name, int(getattr(self, name)))
        if not (isinstance(self.purpose, str) and self.purpose and _is_utf8(self.purpose)):
            raise ValueError(f"`purpose` must not be empty, and UTF-8 text, got {self.purpose!r}.")


def is_whole(value: object) -> bool:
    """Whether it is a whole number of Python or NumPy; a boolean is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_word(name: str, values: Any, *, single: bool = False) -> None:
    """Counters have 32 bits; a number outside them would wrap onto another's noise.

    Raises:
        ValueError: Something that is not a whole number in [0, 2**32), or, where it must be a
            `single` number, several.
    """
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"`{name}` must be rectangular, got rows of unequal lengths.") from None
    if single and array.ndim:
        raise ValueError(f"`{name}` must be one number, got shape {array.shape}.")
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"`{name}` must hold whole numbers in [0, 2**32), got {array.dtype}.")
    if array.size and not (array.min() >= 0 and array.max() < 2**32):
        raise ValueError(f"`{name}` must be in [0, 2**32), got {array.min()} to {array.max()}.")


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
        """The columns of a sequence of keys.

        Raises:
            ValueError: Something in it is no key.
        """
        keys = tuple(keys)
        for key in keys:
            if not isinstance(key, NoiseKey):
                raise ValueError(f"`keys` must hold a `NoiseKey` each, got {key!r}.")
        words = np.array([_key_words(k.seed, k.step, k.purpose) for k in keys], np.uint64)
        k0, k1 = words.reshape(-1, 2).T
        turn_luck = np.array([k.turn * 65536 + k.luck for k in keys], np.uint64)
        return cls((k0, k1), turn_luck, np.array([k.row for k in keys], np.uint64))

    @classmethod
    def grid(
        cls, seed: int, step: int, purpose: str, *, row: np.ndarray, turn: int, luck: int = 0
    ) -> "KeyColumns":
        """The columns of keys that differ in their row only."""
        check_word("row", row)
        key = NoiseKey(seed, step, 0, turn, luck, purpose)
        k0, k1 = _key_words(key.seed, key.step, purpose)
        rows = np.asarray(row, np.uint64)
        shape = rows.shape
        columns = [
            np.full(shape, value, np.uint64) for value in (k0, k1, key.turn * 65536 + key.luck)
        ]
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
