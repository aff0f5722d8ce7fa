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

import hashlib
from collections.abc import Sequence

import numpy as np

from twinstats._gumbel_blocks import (
    BLOCK,
    Rows,
    below,
    block_peaks,
    block_sample,
    headers,
    likeliest,
    pair_lane,
)
from twinstats._noise_keys import KeyColumns, NoiseKey, check_word, is_whole
from twinstats._numbers import float_array
from twinstats.philox import uniform52

__all__ = [
    "BLOCK",
    "KeyColumns",
    "LogitsError",
    "NoiseKey",
    "check_logits",
    "checked_rows",
    "generator",
    "gumbel",
    "gumbels",
    "is_whole",
    "sample",
    "truncate",
    "uniform",
    "uniforms",
]


def generator(seed: int, purpose: str, step: int = 0) -> np.random.Generator:
    """A NumPy generator whose stream is named by (seed, step, purpose).

    For bulk draws (bootstrap weights, data shuffles) where no world has to share the noise.

    Raises:
        ValueError: What a `NoiseKey` refuses as seed, step or purpose.
    """
    key = NoiseKey(seed, step, 0, 0, purpose=purpose)
    name = f"{key.seed}/{key.step}/{purpose}/generator"
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def uniform(key: NoiseKey, position: int, lanes: np.ndarray | int = 0) -> np.ndarray:
    """Uniforms in (0, 1) of a key at a position, one for each lane.

    For coins and environments. They are header words of the noise layout, so a purpose is used
    either for uniforms or for Gumbels, never for both.

    >>> float(uniform(NoiseKey(7, 0, 0, 0, purpose="choose"), 0)) < 1
    True
    """
    check_word("position", position, single=True)
    check_word("lanes", lanes)
    lane = np.asarray(lanes, np.uint64)
    w0, w1, _, _ = KeyColumns.of([key]).blocks(lane.reshape(-1), np.asarray(position))
    return uniform52(w0, w1).reshape(lane.shape)


def uniforms(keys: KeyColumns, position: int, lane: int = 0) -> np.ndarray:
    """One uniform in (0, 1) for each of many keys; equals `uniform` key by key."""
    check_word("position", position, single=True)
    check_word("lane", lane, single=True)
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
    check_word("position", position, single=True)
    check_word("ids", ids)
    tokens = np.asarray(ids, np.int64)
    flat = tokens.reshape(-1)
    keys, at = KeyColumns.of([key]), np.array([position])
    maximum, winner = headers(keys.blocks(flat // BLOCK, at), flat // BLOCK)
    return below(keys.blocks(pair_lane(flat), at), flat, maximum, winner).reshape(tokens.shape)


def gumbels(keys: KeyColumns, position: int, size: int) -> np.ndarray:
    """Gumbel noise of token ids 0..size-1 for each of many keys; equals `gumbel` key by key."""
    ids = np.arange(size)
    blocks, pairs = np.arange(-(-size // BLOCK)), np.unique(pair_lane(ids))
    column = keys.take(np.arange(len(keys))[:, None])
    words = column.blocks(np.concatenate((blocks, pairs)), np.array(position))
    maximum, winner = headers(tuple(word[:, : len(blocks)] for word in words), blocks)
    own = tuple(word[:, len(blocks) + (ids >> 1)] for word in words)
    return below(own, ids, maximum[:, ids // BLOCK], winner[:, ids // BLOCK])


class LogitsError(ValueError):
    """Logits without a law: NaN, +inf, a row without a finite one, or one too large to scale.

    Attributes:
        row: The first such row.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


def sample(
    logits: np.ndarray,
    keys: Sequence[NoiseKey] | KeyColumns,
    positions: np.ndarray | Sequence[int],
    temperature: float | np.ndarray = 1.0,
) -> np.ndarray:
    """The token of each row: argmax_v(logits[v] / temperature + g[v]), lowest id on ties.

    Exact, in block form: only blocks that can still win are looked into. Temperature 0 draws
    nothing and takes the largest logit. A logit of -inf is never sampled.

    Args:
        logits: (rows, vocabulary), any float or whole numbers; compared in float64.
        keys: One key a row.
        positions: Index of the token within its turn, one a row.
        temperature: At least 0, finite; one number, or one a row.

    Returns:
        int64 ids, one a row.

    Raises:
        LogitsError: NaN or +inf logits, a row without a finite logit, or whose largest is not
            finite when divided by the temperature; names the row and its key.
        ValueError: Shapes that do not agree, logits that are no real numbers or masked, a
            temperature or position outside its range.

    >>> sample(np.zeros((1, 3)), [NoiseKey(7, 3, 5, 2)], [11]).tolist()
    [1]
    """
    logits = _real(logits)
    if logits.ndim != 2:
        raise ValueError(f"`logits` must be (rows, vocabulary), got {logits.shape}.")
    columns, at, temperatures = checked_rows(len(logits), keys, positions, temperature)
    peaks = block_peaks(logits)
    check_logits(peaks, keys, temperatures)
    ids = likeliest(logits, peaks)
    warm = np.flatnonzero(temperatures > 0)
    if not len(warm):
        return ids
    rows = Rows(logits, columns, at, temperatures)
    with np.errstate(over="ignore"):  # what is far below the largest may become -inf
        if len(warm) == len(logits):
            return block_sample(rows, peaks, ids)
        ids[warm] = block_sample(rows.take(warm), peaks[warm], ids[warm])
    return ids


def _real(logits: np.ndarray) -> np.ndarray:
    if isinstance(logits, np.ma.MaskedArray):
        raise ValueError("`logits` must not be a masked array: put -inf where it is masked.")
    array = np.asarray(logits)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"`logits` must hold real numbers, got {array.dtype}.")
    return array


def checked_rows(
    num_rows: int,
    keys: Sequence[NoiseKey] | KeyColumns,
    positions: np.ndarray | Sequence[int],
    temperature: float | np.ndarray,
) -> tuple[KeyColumns, np.ndarray, np.ndarray]:
    """Columns of keys, int64 positions and float64 temperatures, one a row.

    Raises:
        ValueError: Not one a row, or a temperature or position outside its range.
    """
    if not num_rows == len(keys) == len(positions):
        raise ValueError(
            f"`logits` must be (rows, vocabulary) with one key and one position a row, "
            f"got {num_rows} rows, {len(keys)} keys and {len(positions)} positions."
        )
    temperatures = float_array("temperature", temperature)
    if temperatures.shape not in ((), (num_rows,)):
        raise ValueError(
            f"`temperature` must be one number or one a row, got {temperatures.shape}."
        )
    temperatures = np.broadcast_to(temperatures, num_rows)
    for row in np.flatnonzero(~((temperatures >= 0) & (temperatures < np.inf)))[:1]:
        raise ValueError(
            f"`temperature` must be at least 0 and finite, got {temperatures[row]} "
            f"{_place(keys, row)}."
        )
    check_word("positions", positions)
    columns = keys if isinstance(keys, KeyColumns) else KeyColumns.of(keys)
    at = np.asarray(positions, np.int64)
    if at.ndim != 1:
        raise ValueError(f"`positions` must be one a row, got shape {at.shape}.")
    return columns, at, temperatures


def check_logits(
    logits: np.ndarray,
    keys: Sequence[NoiseKey] | KeyColumns | None = None,
    temperature: np.ndarray | None = None,
) -> None:
    """Refuses a row that is not a law: its largest entry must be finite.

    So must be that entry divided by the row's temperature, where `temperature` gives one a row.

    Raises:
        LogitsError: The first such row, by its number, and its key where `keys` names it.
    """
    top = logits.max(axis=-1, initial=-np.inf)
    for row in np.flatnonzero(np.isnan(top))[:1]:
        raise LogitsError(f"`logits` must not be NaN, got one {_place(keys, row)}.", int(row))
    for row in np.flatnonzero(np.isinf(top))[:1]:
        raise LogitsError(
            f"`logits` must have a finite maximum in every row, got {top.flat[row]} "
            f"{_place(keys, row)}.",
            int(row),
        )
    if temperature is None:
        return
    with np.errstate(over="ignore"):
        scaled = top / np.where(temperature > 0, temperature, 1.0)
    for row in np.flatnonzero(np.isinf(scaled))[:1]:
        raise LogitsError(
            f"`logits` must stay finite when divided by `temperature`, got {top[row]} and "
            f"{temperature[row]} {_place(keys, row)}.",
            int(row),
        )


def _place(keys: Sequence[NoiseKey] | KeyColumns | None, row: np.integer) -> str:
    """Where a row's fault is: its number, and its key where the caller named it."""
    named = "" if keys is None or isinstance(keys, KeyColumns) else f" ({keys[int(row)]})"
    return f"in row {row}{named}"


def truncate(
    logits: np.ndarray, *, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0
) -> np.ndarray:
    """Logits with everything outside top-k, then outside top-p of the rest, set to -inf.

    Exactly k are kept, lower ids first on ties. Of the renormalised rest the smallest set whose
    probability reaches `top_p` is kept; it is never empty. Off: top_k 0, top_p 1.

    Raises:
        ValueError: A `top_k` that is negative or not whole, `top_p` outside (0, 1], or
            `temperature` not above 0; logits that are no real numbers or masked, NaN or +inf ones,
            a row without a finite one.
    """
    if not (is_whole(top_k) and top_k >= 0) or not 0 < top_p <= 1 or not temperature > 0:
        raise ValueError(
            f"`top_k` must be at least 0 and whole, `top_p` in (0, 1] and `temperature` above 0, "
            f"got {top_k}, {top_p} and {temperature}."
        )
    logits = _real(logits).astype(np.float64)
    check_logits(logits)
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
