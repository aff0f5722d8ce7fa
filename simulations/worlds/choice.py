"""Sampling from small vocabularies: what `twinstats.noise.sample` returns, several times faster."""

import numpy as np

from twinstats.noise import BLOCK, KeyColumns, _below, _headers


def small_choice(logits: np.ndarray, keys: KeyColumns) -> np.ndarray:
    """The id of each row at position 0 of its key: equals `sample(logits, keys, zeros)`.

    With one block there is nothing to skip, so every id's noise is drawn at once.

    Args:
        logits: (rows, ids) with at most 256 ids; -inf is never chosen.
        keys: One key a row.

    Raises:
        ValueError: More than 256 ids.
    """
    num_rows, num_ids = logits.shape
    if num_ids > BLOCK:
        raise ValueError(f"`logits` must have at most {BLOCK} ids, got {num_ids}.")
    rows = np.arange(num_rows)
    row, ids = np.repeat(rows, num_ids), np.tile(np.arange(num_ids), num_rows)
    start = np.zeros(num_rows, np.uint64)
    maximum, winner = _headers(keys, start, rows, np.zeros(num_rows, np.int64))
    noise = _below(keys, start, row, ids, maximum[row], winner[row])
    return np.argmax(logits + noise.reshape(logits.shape), axis=1)
