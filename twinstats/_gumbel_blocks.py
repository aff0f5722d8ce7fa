"""The layout of keyed Gumbel noise in blocks of ids, and exact sampling that skips most blocks.

Leaves out keys, checks and what the noise is for: see `noise`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from twinstats._noise_keys import KeyColumns
from twinstats.philox import uniform52

BLOCK = 256
_PAIR_LANE = 2**31
_LOG_BLOCK = math.log(BLOCK)
Words = tuple[np.ndarray, ...]


def headers(words: Words, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum of each block and the id that attains it, from the words at lane `block`."""
    w0, w1, w2, _ = words
    maximum = -np.log(-np.log(uniform52(w0, w1))) + _LOG_BLOCK
    return maximum, block * BLOCK + (w2 >> np.uint64(24)).astype(np.int64)


def pair_lane(ids: np.ndarray) -> np.ndarray:
    """Where the words of ids below their block's maximum are."""
    return _PAIR_LANE + (ids >> 1)


def below(words: Words, ids: np.ndarray, maximum: np.ndarray, winner: np.ndarray) -> np.ndarray:
    """Noise of each id, from its words and its block's header: Gumbel truncated at the maximum."""
    w0, w1, w2, w3 = words
    odd = (ids & 1).astype(bool)
    uniform_ = uniform52(np.where(odd, w2, w0), np.where(odd, w3, w1))
    value = -np.log(np.exp(-maximum) - np.log(uniform_))
    return np.where(ids == winner, maximum, np.minimum(value, maximum))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What `sample` works on: logits, keys, positions and temperatures, one a row."""

    logits: np.ndarray
    keys: KeyColumns
    positions: np.ndarray
    temperature: np.ndarray

    def take(self, index: np.ndarray) -> "Rows":
        keys = self.keys.take(index)
        return Rows(self.logits[index], keys, self.positions[index], self.temperature[index])

    def words(self, row: np.ndarray, lane: np.ndarray) -> Words:
        return self.keys.take(row).blocks(lane, self.positions[row])

    def scaled(self, row: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return np.asarray(self.logits[row, ids].astype(np.float64) / self.temperature[row])


def block_sample(rows: Rows, peaks: np.ndarray, likeliest: np.ndarray) -> np.ndarray:
    """The winners, given the largest logit of each block and of each row."""
    num_rows, num_blocks = peaks.shape
    row, block = np.arange(num_rows), np.arange(num_blocks)
    # One draw for the headers and for the likeliest token, whose score rules out almost every
    # block of a peaked row.
    lanes = np.broadcast_to(block, peaks.shape)
    lanes = np.concatenate((lanes, pair_lane(likeliest)[:, None]), axis=1)
    words = rows.words(row[:, None], lanes)
    maximum, winner = headers(tuple(word[:, :-1] for word in words), block)
    at = row, likeliest // BLOCK
    noise = below(tuple(word[:, -1] for word in words), likeliest, maximum[at], winner[at])
    inside = (winner < rows.logits.shape[1]).nonzero()
    reached = np.full(peaks.shape, -np.inf)
    reached[inside] = rows.scaled(inside[0], winner[inside]) + maximum[inside]
    best = np.maximum(reached.max(axis=1), rows.scaled(row, likeliest) + noise)
    row, ids = _candidates(rows, peaks, maximum, best)
    at = row, ids // BLOCK
    noise = below(rows.words(row, pair_lane(ids)), ids, maximum[at], winner[at])
    return _winners(row, ids, rows.scaled(row, ids) + noise, num_rows)


def block_peaks(logits: np.ndarray) -> np.ndarray:
    """The largest logit of each block, (rows, blocks), float64; NaN where the block has one."""
    starts = np.arange(0, logits.shape[1], BLOCK)
    return np.maximum.reduceat(logits, starts, axis=1).astype(np.float64)


def likeliest(logits: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """The id of each row's largest logit, the lowest on ties."""
    first = peaks.argmax(axis=1) * BLOCK if len(peaks) else np.zeros(0, np.int64)
    ids = np.minimum(first[:, None] + np.arange(BLOCK), logits.shape[1] - 1)
    return np.asarray(first + np.take_along_axis(logits, ids, axis=1).argmax(axis=1))


def _candidates(
    rows: Rows, peaks: np.ndarray, maximum: np.ndarray, best: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens whose score could reach their row's best: row and id, sorted by row, then id.

    A score is never above logit / T + the block's maximum, in rounding too.
    """
    alive = peaks / rows.temperature[:, None] + maximum >= best[:, None]
    found = [
        (row[wins], block[wins] * BLOCK + offset)
        for row, block, scaled in _living_blocks(rows, alive)
        for wins, offset in [
            ((scaled > -np.inf) & (scaled + maximum[row, block, None] >= best[row, None])).nonzero()
        ]
    ]
    row, ids = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(row, kind="stable")
    return row[order], ids[order]


def _living_blocks(
    rows: Rows, alive: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Row, block and logits / T of the blocks that are alive, a bounded number at a time."""
    for first, blocks in _slabs(rows.logits):
        row, block = alive[:, first : first + blocks.shape[1]].nonzero()
        for start in range(0, len(row), 4096):
            r, b = row[start : start + 4096], block[start : start + 4096]
            yield r, first + b, blocks[r, b].astype(np.float64) / rows.temperature[r, None]


def _slabs(logits: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Views (rows, blocks, width) with the number of their first block; a short last block apart.

    Blocks are copied out of a view far faster than tokens are gathered by their ids.
    """
    size = logits.shape[1]
    whole = size // BLOCK * BLOCK
    for begin, end, width in ((0, whole, BLOCK), (whole, size, size - whole)):
        if begin < end:
            yield begin // BLOCK, logits[:, begin:end].reshape(len(logits), -1, width)


def _winners(row: np.ndarray, ids: np.ndarray, score: np.ndarray, num_rows: int) -> np.ndarray:
    """The id of each row's best score, the lowest on ties; entries are sorted by row, then id."""
    best = np.maximum.reduceat(score, np.searchsorted(row, np.arange(num_rows)))
    hits = np.flatnonzero(score == best[row])
    return np.asarray(ids[hits[np.searchsorted(row[hits], np.arange(num_rows))]])
