"""Keyed sampling as one Triton kernel: the logits are read once, no noise tensor is made.

A program takes one row and a run of blocks. It draws the blocks' headers, and expands only blocks
that can still beat the best score it has; `sample` then takes the best program of each row.

Importing this module needs Triton. `TRITON_INTERPRET=1`, set before, runs the kernel in NumPy.
"""

import math

import torch
import triton
import triton.language as tl

from twinstats.noise import BLOCK

_BLOCKS_A_PROGRAM = 16
_NOBODY = 2**31 - 1


# Pointers and scalars of a program: base is its row's first logit; key holds the row's k0, k1,
# turn * 2**16 + luck, row and position as uint32.


@triton.jit
def _philox(lane, key):
    k0, k1, turn_luck, row, position = key
    none = tl.zeros(lane.shape, tl.uint32)
    return tl.philox_impl(lane, none + position, none + turn_luck, none + row, none + k0, none + k1)


@triton.jit
def _uniform52(high, low):
    """52 bits from two words, never 0 or 1; the factor is 2**-52."""
    bits = (high.to(tl.uint64) << 20) + (low >> 12).to(tl.uint64)
    return (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _scaled(base, ids, vocabulary, scale):
    value = tl.load(base + ids, mask=ids < vocabulary, other=-float("inf"))
    return value.to(tl.float64) / scale


@triton.jit
def _better(score, ids, best, best_id, nobody: tl.constexpr):
    """The better of a running best and new scores; the lowest id on ties."""
    top = tl.max(score)
    first = tl.min(tl.where(score == top, ids, nobody))
    best_id = tl.where(top > best, first, tl.where(top == best, min(first, best_id), best_id))
    return max(top, best), best_id


@triton.jit
def _best_of_block(
    base, vocabulary, scale, key, first, top, top_id, best, best_id,
    block_size: tl.constexpr, nobody: tl.constexpr,
):  # fmt: skip
    """The running best after a block of noise maximum `top` at id `top_id`; null luck at T = 0."""
    even = first + 2 * tl.arange(0, block_size // 2)
    w0, w1, w2, w3 = _philox((even >> 1).to(tl.uint32) + 2147483648, key)
    for odd in tl.static_range(2):
        ids = even + odd
        uniform = _uniform52(w2, w3) if odd else _uniform52(w0, w1)
        noise = -tl.log(tl.exp(-top) - tl.log(uniform))
        noise = tl.where(ids == top_id, top, tl.minimum(noise, top))
        noise = tl.where(scale > 0, noise, 0.0)
        score = _scaled(base, ids, vocabulary, tl.abs(scale)) + noise
        best, best_id = _better(score, ids, best, best_id, nobody)
    return best, best_id


@triton.jit
def _sample_kernel(
    logits, stride, vocabulary, keys, temperatures, scores, winners,
    blocks_a_program: tl.constexpr, block_size: tl.constexpr,
    log_block: tl.constexpr, nobody: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    words = keys + 5 * row
    key = (
        tl.load(words).to(tl.uint32),
        tl.load(words + 1).to(tl.uint32),
        tl.load(words + 2).to(tl.uint32),
        tl.load(words + 3).to(tl.uint32),
        tl.load(words + 4).to(tl.uint32),
    )
    temperature = tl.load(temperatures + row)
    scale = tl.where(temperature > 0, temperature, -1.0)  # negative: no noise, logits as they are

    index = tl.arange(0, blocks_a_program)
    block = tl.program_id(1) * blocks_a_program + index
    ids = block[:, None] * block_size + tl.arange(0, block_size)[None, :]
    tile = tl.load(base + ids, mask=ids < vocabulary, other=-float("inf"))
    is_nan = tl.max(tl.max((tile != tile).to(tl.int32), axis=1)) > 0

    w0, w1, w2, _ = _philox(block.to(tl.uint32), key)
    maximum = -tl.log(-tl.log(_uniform52(w0, w1))) + log_block
    maximum = tl.where(scale > 0, maximum, 0.0)
    winner = block * block_size + (w2 >> 24).to(tl.int32)
    reached = _scaled(base, winner, vocabulary, tl.abs(scale)) + maximum
    best = tl.max(reached)
    best_id = tl.min(tl.where(reached == best, winner, nobody))
    ceilings = tl.max(tile, axis=1).to(tl.float64) / tl.abs(scale) + maximum
    for one in range(blocks_a_program):
        ceiling = tl.max(tl.where(index == one, ceilings, -float("inf")))
        if ceiling >= best and ceiling > -float("inf"):
            first = (tl.program_id(1) * blocks_a_program + one) * block_size
            top = tl.sum(tl.where(index == one, maximum, 0.0))
            top_id = tl.sum(tl.where(index == one, winner, 0))
            best, best_id = _best_of_block(
                base, vocabulary, scale, key, first, top, top_id, best, best_id, block_size, nobody
            )
    number = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(scores + number, tl.where(is_nan, float("nan"), best))
    tl.store(winners + number, best_id)


def sample(
    logits_RV: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of each row and its score; a score is not finite where a row has no law."""
    num_rows, vocabulary = logits_RV.shape
    logits_RV = logits_RV if logits_RV.stride(1) == 1 else logits_RV.contiguous()
    programs = triton.cdiv(vocabulary, BLOCK * _BLOCKS_A_PROGRAM)
    scores = torch.empty(num_rows, programs, dtype=torch.float64, device=logits_RV.device)
    winners = torch.empty(num_rows, programs, dtype=torch.int64, device=logits_RV.device)
    _sample_kernel[(num_rows, programs)](
        logits_RV,
        logits_RV.stride(0),
        vocabulary,
        torch.cat((keys, positions[:, None]), dim=1),
        temperature,
        scores,
        winners,
        blocks_a_program=_BLOCKS_A_PROGRAM,
        block_size=BLOCK,
        log_block=math.log(BLOCK),
        nobody=_NOBODY,
    )
    best = scores.amax(1)
    return winners.masked_fill(scores != best[:, None], _NOBODY).amin(1), best
