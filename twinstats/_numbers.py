"""The types of numbers that public functions take, wider than `float` because callers are."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Number = int | float | np.integer | np.floating
Numbers = np.ndarray | Sequence | Number


def float_array(name: str, values: Any) -> np.ndarray:
    """`values` as float64 of the same shape; null becomes NaN.

    Raises:
        ValueError: Something that is not a number or null, or rows of unequal lengths.
    """
    try:
        given = np.asarray(values)
    except ValueError:
        raise ValueError(f"`{name}` must be rectangular, got rows of unequal lengths.") from None
    if given.dtype.kind not in "buifO":
        raise ValueError(f"`{name}` must hold numbers or null, got {given.dtype}.")
    if given.dtype.kind != "O":
        return given.astype(np.float64)
    flat = [np.nan if value is None else value for value in given.ravel().tolist()]
    try:
        if any(isinstance(value, (str, bytes)) for value in flat):
            raise TypeError
        return np.array(flat, dtype=np.float64).reshape(given.shape)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"`{name}` must hold numbers of float64 or null.") from None


def first_where(values: np.ndarray, is_wrong: np.ndarray) -> float:
    """The first value of which `is_wrong` is true, for messages of one line."""
    return float(np.broadcast_to(values, is_wrong.shape)[is_wrong].ravel()[0])
