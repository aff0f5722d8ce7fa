"""The block form of keyed sampling in plain torch, for any device.

The same layout and the same integers as `twinstats.noise`; logarithms may differ from NumPy's in
the last bit.
"""

import math

import numpy as np
import torch

from twinstats.noise import BLOCK, KeyColumns

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF
_PAIR_LANE = 2**31
_LOG_BLOCK = math.log(BLOCK)

# R rows, V vocabulary, B blocks, N token ids


def key_words(keys: KeyColumns, device: torch.device | str = "cpu") -> torch.Tensor:
    """Keys as int64 (R, 4): two key words, turn * 2**16 + luck, row."""
    columns = np.stack((*keys.words, keys.turn_luck, keys.row), axis=1)
    return torch.from_numpy(columns.astype(np.int64)).to(device)


def philox4x32(
    lane: torch.Tensor, position: torch.Tensor, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four words of each counter block, int64 below 2**32; lanes, positions, keys broadcast.

    Products of two words wrap around in int64, which leaves their bits as they should be.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    k0, k1, turn_luck, row = keys.unbind(-1)
    c0, c1, c2, c3 = lane, position, turn_luck, row
    for number in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        bump0, bump1 = (number * weyl & _LOW for weyl in _WEYL)
        c0, c1, c2, c3 = (
            (product1 >> 32 & _LOW) ^ c1 ^ (k0 + bump0 & _LOW),
            product1 & _LOW,
            (product0 >> 32 & _LOW) ^ c3 ^ (k1 + bump1 & _LOW),
            product0 & _LOW,
        )
    return c0, c1, c2, c3


def gumbel(keys: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise (R, N) of token ids (R, N), float64, one key and position a row."""
    column, at = keys[:, None], positions[:, None]
    maximum, winner = _headers(column, at, ids // BLOCK)
    return _below(column, at, ids, maximum, winner)


def sample(
    logits_RV: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of each row and its score; a score is not finite where a row has no law."""
    warm = temperature > 0
    scale = torch.where(warm, temperature, 1.0)
    last = logits_RV.shape[1] - 1
    peaks_RB = _block_peaks(logits_RV)
    blocks_B = torch.arange(peaks_RB.shape[1], device=logits_RV.device)
    maximum_RB, winner_RB = _headers(keys[:, None], positions[:, None], blocks_B)
    maximum_RB = torch.where(warm[:, None], maximum_RB, 0.0)
    at_winner_RB = logits_RV.gather(1, winner_RB.clamp(max=last)).double()
    reached_RB = at_winner_RB / scale[:, None] + maximum_RB
    best_R = reached_RB.masked_fill(winner_RB > last, -math.inf).amax(1)
    row, block = (peaks_RB / scale[:, None] + maximum_RB >= best_R[:, None]).nonzero(as_tuple=True)
    ids = block[:, None] * BLOCK + torch.arange(BLOCK, device=logits_RV.device)
    scaled = logits_RV[row[:, None], ids.clamp(max=last)].double() / scale[row, None]
    can_win = (scaled + maximum_RB[row, block, None] >= best_R[row, None]) & (ids <= last)
    entry, offset = (can_win & (scaled > -math.inf)).nonzero(as_tuple=True)
    row, block, ids, scaled = row[entry], block[entry], ids[entry, offset], scaled[entry, offset]
    noise = _below(keys[row], positions[row], ids, maximum_RB[row, block], winner_RB[row, block])
    score = scaled + torch.where(warm[row], noise, 0.0)
    chosen, best_R = _winners(row, ids, score, len(logits_RV))
    return chosen, best_R.masked_fill(peaks_RB.isnan().any(1), math.nan)


def _headers(
    keys: torch.Tensor, position: torch.Tensor, block: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum of each block and the id that attains it."""
    w0, w1, w2, _ = philox4x32(block, position, keys)
    return -torch.log(-torch.log(_uniform52(w0, w1))) + _LOG_BLOCK, block * BLOCK + (w2 >> 24)


def _below(
    keys: torch.Tensor,
    position: torch.Tensor,
    ids: torch.Tensor,
    maximum: torch.Tensor,
    winner: torch.Tensor,
) -> torch.Tensor:
    """Noise of each id given its block's header."""
    w0, w1, w2, w3 = philox4x32(_PAIR_LANE + (ids >> 1), position, keys)
    odd = (ids & 1).bool()
    uniform = _uniform52(torch.where(odd, w2, w0), torch.where(odd, w3, w1))
    value = -torch.log(torch.exp(-maximum) - torch.log(uniform))
    return torch.where(ids == winner, maximum, torch.minimum(value, maximum))


def _uniform52(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return (((high << 20) + (low >> 12)).double() + 0.5) * 2.0**-52


def _block_peaks(logits_RV: torch.Tensor) -> torch.Tensor:
    """The largest logit of each block, float64."""
    whole = logits_RV.shape[1] // BLOCK * BLOCK
    peaks = [logits_RV[:, :whole].unflatten(1, (-1, BLOCK)).amax(2)] if whole else []
    rest = [logits_RV[:, whole:].amax(1, keepdim=True)] if whole < logits_RV.shape[1] else []
    return torch.cat(peaks + rest, dim=1).double()


def _winners(
    row: torch.Tensor, ids: torch.Tensor, score: torch.Tensor, num_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The id of each row's best score, the lowest on ties, and the score; -inf where none is."""
    lowest = torch.full((num_rows,), -math.inf, dtype=score.dtype, device=score.device)
    best = lowest.scatter_reduce(0, row, score, "amax")
    hits = score == best[row]
    nobody = torch.full((num_rows,), 2**62, device=ids.device)
    return nobody.scatter_reduce(0, row[hits], ids[hits], "amin"), best
