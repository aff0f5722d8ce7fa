"""Keyed Gumbel noise: a function of the key and the token id, and of nothing else.

The token at a position of a turn is argmax_v(logits[v] / T + g[v]), g iid standard Gumbel. The
noise never depends on the batch, the device, the call order or what was sampled before, so two
worlds that share a key share their luck.

Layout of a counter: (lane, position, turn * 2**16 + luck, row); the key words are a hash of seed,
step and purpose. Token ids come in blocks of 256: lane b is the header of block b (the block's
maximum, and which id attains it), lane 2**31 + v // 2 the values of ids v and v + 1 below that
maximum. This is a top-down split of iid Gumbels, and lets `sample` skip blocks that cannot win.

Leaves out which episode uses which key (`keys`).
"""

import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from twinstats.philox import philox4x32, uniform52

BLOCK = 256
_PAIR_LANE = 2**31
_LOG_BLOCK = math.log(BLOCK)


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


def generator(seed: int, purpose: str, step: int = 0) -> np.random.Generator:
    """A NumPy generator whose stream is named by (seed, step, purpose).

    For bulk draws (bootstrap weights, data shuffles) where no world has to share the noise.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{purpose}/generator".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def uniform(key: NoiseKey, position: int, lanes: np.ndarray | int = 0) -> np.ndarray:
    """Uniforms in (0, 1) of a key at a position, one for each lane.

    For coins and environments. They are header words of the noise layout, so a purpose is used
    either for uniforms or for Gumbels, never for both.

    >>> float(uniform(NoiseKey(7, 0, 0, 0, purpose="choose"), 0)) < 1
    True
    """
    _check_word("position", position)
    _check_word("lanes", lanes)
    lane = np.asarray(lanes, np.uint64)
    w0, w1, _, _ = KeyColumns.of([key]).blocks(lane.reshape(-1), np.asarray(position))
    return uniform52(w0, w1).reshape(lane.shape)


def uniforms(keys: KeyColumns, position: int, lane: int = 0) -> np.ndarray:
    """One uniform in (0, 1) for each of many keys; equals `uniform` key by key."""
    _check_word("position", position)
    _check_word("lane", lane)
    w0, w1, _, _ = keys.blocks(np.asarray(lane), np.asarray(position))
    return uniform52(w0, w1)


def gumbel(key: NoiseKey, position: int, ids: np.ndarray | Sequence[int]) -> np.ndarray:
    """Standard Gumbel noise of each token id, float64, at a position of a key's turn.

    Args:
        key: Whose noise.
        position: Index of the token within its turn, below 2**32.
        ids: Token ids, any order, repeats allowed, below 2**32.

    Returns:
        One value an id; the same id has the same value in every call.

    Raises:
        ValueError: A position or id outside its range.

    >>> gumbel(NoiseKey(7, 3, 5, 2), 11, [0, 255]).round(6).tolist()
    [1.02062, -0.102896]
    """
    _check_word("position", position)
    _check_word("ids", ids)
    tokens = np.asarray(ids, np.int64)
    flat = tokens.reshape(-1)
    index = np.zeros(len(flat), np.intp)
    keys, at = KeyColumns.of([key]), np.array([position], np.uint64)
    maximum, winner = _headers(keys, at, index, flat // BLOCK)
    return _below(keys, at, index, flat, maximum, winner).reshape(tokens.shape)


def _check_word(name: str, values: np.ndarray | Sequence[int] | int) -> None:
    """Counters have 32 bits; a number outside them would wrap onto another's noise."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"`{name}` must hold whole numbers, got {array.dtype}.")
    if array.size and not (array.min() >= 0 and array.max() < 2**32):
        raise ValueError(f"`{name}` must be in [0, 2**32), got {array.min()} to {array.max()}.")


def _headers(
    keys: KeyColumns, positions: np.ndarray, index: np.ndarray, block: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Maximum of each block and the id that attains it, for entry i of key index[i]."""
    w0, w1, w2, _ = keys.take(index).blocks(block.astype(np.uint64), positions[index])
    maximum = -np.log(-np.log(uniform52(w0, w1))) + _LOG_BLOCK
    return maximum, block * BLOCK + (w2 >> np.uint64(24)).astype(np.int64)


def _below(
    keys: KeyColumns,
    positions: np.ndarray,
    index: np.ndarray,
    ids: np.ndarray,
    maximum: np.ndarray,
    winner: np.ndarray,
) -> np.ndarray:
    """Noise of each id given its block's header: Gumbel truncated at the block's maximum."""
    lane = (_PAIR_LANE + (ids >> 1)).astype(np.uint64)
    w0, w1, w2, w3 = keys.take(index).blocks(lane, positions[index])
    odd = (ids & 1).astype(bool)
    uniform_ = uniform52(np.where(odd, w2, w0), np.where(odd, w3, w1))
    value = -np.log(np.exp(-maximum) - np.log(uniform_))
    return np.where(ids == winner, maximum, np.minimum(value, maximum))


def sample(
    logits: np.ndarray,
    keys: Sequence[NoiseKey] | KeyColumns,
    positions: np.ndarray | Sequence[int],
    temperature: float = 1.0,
) -> np.ndarray:
    """The token of each row: argmax_v(logits[v] / temperature + g[v]), lowest id on ties.

    Exact, in block form: only blocks that can still win are looked into. Temperature 0 draws
    nothing and takes the largest logit. A logit of -inf is never sampled.

    Args:
        logits: (rows, vocabulary), any float type; compared in float64.
        keys: One key a row.
        positions: Index of the token within its turn, one a row.
        temperature: At least 0, finite.

    Returns:
        int64 ids, one a row.

    Raises:
        ValueError: NaN or +inf logits, a row without a finite logit, shapes that do not agree,
            a temperature or position outside its range.

    >>> sample(np.zeros((1, 3)), [NoiseKey(7, 3, 5, 2)], [11]).tolist()
    [1]
    """
    logits, columns, at = _checked(logits, keys, positions, temperature)
    if temperature == 0 or not len(logits):
        return np.argmax(logits, axis=1) if len(logits) else np.zeros(0, np.int64)
    peaks = _block_peaks(logits) / temperature
    num_rows, num_blocks = peaks.shape
    row = np.repeat(np.arange(num_rows), num_blocks)
    block = np.tile(np.arange(num_blocks), num_rows)
    maximum, winner = _headers(columns, at, row, block)
    inside = winner < logits.shape[1]
    reached = np.full(len(row), -np.inf)
    reached[inside] = logits[row[inside], winner[inside]].astype(np.float64) / temperature
    best = (reached + maximum).reshape(num_rows, num_blocks).max(axis=1)
    best = np.maximum(best, _likeliest(logits, columns, at, maximum, winner, temperature))
    alive = np.flatnonzero(peaks.reshape(-1) + maximum >= best[row])
    entry, ids, scaled = _candidates(logits, alive, row, block, maximum, best, temperature)
    noise = _below(columns, at, row[entry], ids, maximum[entry], winner[entry])
    return _winners(row[entry], ids, scaled + noise, num_rows)


def _checked(
    logits: np.ndarray,
    keys: Sequence[NoiseKey] | KeyColumns,
    positions: np.ndarray | Sequence[int],
    temperature: float,
) -> tuple[np.ndarray, KeyColumns, np.ndarray]:
    logits = np.asarray(logits)
    if logits.ndim != 2 or not len(logits) == len(keys) == len(positions):
        raise ValueError(
            f"`logits` must be (rows, vocabulary) with one key and one position a row, "
            f"got {logits.shape}, {len(keys)} keys and {len(positions)} positions."
        )
    if not 0 <= temperature < np.inf:
        raise ValueError(f"`temperature` must be at least 0 and finite, got {temperature}.")
    _check_word("positions", positions)
    _check_logits(logits)
    columns = keys if isinstance(keys, KeyColumns) else KeyColumns.of(keys)
    return logits, columns, np.asarray(positions, np.uint64)


def _check_logits(logits: np.ndarray) -> None:
    top = logits.max(axis=-1, initial=-np.inf)
    if np.isnan(top).any():
        raise ValueError("`logits` must not be NaN.")
    if np.isinf(top).any():
        raise ValueError("`logits` must have a finite maximum in every row.")


def _block_peaks(logits: np.ndarray) -> np.ndarray:
    """The largest logit of each block, (rows, blocks), float64."""
    starts = np.arange(0, logits.shape[1], BLOCK)
    return np.maximum.reduceat(logits, starts, axis=1).astype(np.float64)


def _likeliest(
    logits: np.ndarray,
    keys: KeyColumns,
    positions: np.ndarray,
    maximum: np.ndarray,
    winner: np.ndarray,
    temperature: float,
) -> np.ndarray:
    """The score of each row's largest logit: on peaked rows it rules out almost every block."""
    ids = logits.argmax(axis=1)
    row = np.arange(len(ids))
    entry = row * (len(maximum) // len(ids)) + ids // BLOCK
    noise = _below(keys, positions, row, ids, maximum[entry], winner[entry])
    scaled = logits[row, ids].astype(np.float64) / temperature
    return np.asarray(scaled + noise)


def _candidates(
    logits: np.ndarray,
    alive: np.ndarray,
    row: np.ndarray,
    block: np.ndarray,
    maximum: np.ndarray,
    best: np.ndarray,
    temperature: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens whose score could reach their row's best: entry of their block, id, logit / T."""
    found = [
        (entry[keep], ids[keep], scaled[keep])
        for entry, ids, scaled in _token_chunks(logits, alive, row, block, temperature)
        for keep in [(scaled > -np.inf) & (scaled + maximum[entry] >= best[row[entry]])]
    ]
    entries, ids, scaled = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return entries, ids, scaled


def _token_chunks(
    logits: np.ndarray, alive: np.ndarray, row: np.ndarray, block: np.ndarray, temperature: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All tokens of the blocks that are alive, a bounded number of blocks at a time."""
    width = min(BLOCK, logits.shape[1])
    for start in range(0, len(alive), 4096):
        entry = np.repeat(alive[start : start + 4096], width)
        ids = block[entry] * BLOCK + np.tile(np.arange(width), len(entry) // width)
        inside = ids < logits.shape[1]
        entry, ids = entry[inside], ids[inside]
        yield entry, ids, logits[row[entry], ids].astype(np.float64) / temperature


def _winners(row: np.ndarray, ids: np.ndarray, score: np.ndarray, num_rows: int) -> np.ndarray:
    """The id of each row's best score, the lowest on ties; entries are sorted by row, then id."""
    best = np.maximum.reduceat(score, np.searchsorted(row, np.arange(num_rows)))
    hits = np.flatnonzero(score == best[row])
    return ids[hits[np.searchsorted(row[hits], np.arange(num_rows))]]


def truncate(
    logits: np.ndarray, *, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0
) -> np.ndarray:
    """Logits with everything outside top-k, then outside top-p of the rest, set to -inf.

    Exactly k are kept, lower ids first on ties. Of the renormalised rest the smallest set whose
    probability reaches `top_p` is kept; it is never empty. Off: top_k 0, top_p 1.

    Raises:
        ValueError: A negative `top_k`, `top_p` outside (0, 1], or `temperature` not above 0;
            NaN or +inf logits, a row without a finite logit.
    """
    if top_k < 0 or not 0 < top_p <= 1 or not temperature > 0:
        raise ValueError(
            f"`top_k` must be at least 0, `top_p` in (0, 1] and `temperature` above 0, "
            f"got {top_k}, {top_p} and {temperature}."
        )
    logits = np.asarray(logits, np.float64)
    _check_logits(logits)
    order = np.argsort(-logits, axis=-1, kind="stable")
    ranked = np.take_along_axis(logits, order, axis=-1)
    kept = np.ones(ranked.shape, bool)
    if top_k:
        kept[..., top_k:] = False
    with np.errstate(over="ignore"):
        weight = np.where(kept, np.exp((ranked - ranked[..., :1]) / temperature), 0.0)
    mass = np.cumsum(weight, axis=-1) / weight.sum(axis=-1, keepdims=True)
    # A token stays while the mass before it is short of top_p; 1e-12 forgives rounding of sums.
    kept[..., 1:] &= (mass[..., :-1] < top_p - 1e-12) | (top_p == 1)
    result = np.full(logits.shape, -np.inf)
    np.put_along_axis(result, order, np.where(kept, ranked, -np.inf), axis=-1)
    return result
