"""The maximal coupling of one token's two laws: keep the factual token as often as can be.

Leaves out its exact joint law (`coupling.joint`), and noise that two worlds share (`noise`).
"""

from collections.abc import Sequence

import numpy as np

from twinstats.episodes import SHARED, Fork
from twinstats.keys import Stream
from twinstats.noise import KeyColumns, NoiseKey, check_logits, checked_rows, sample
from twinstats.philox import uniform52

_COIN_LANE = 2**30  # no lane of `noise`: block headers stay below 2**24, pairs start at 2**31


def maximal_stream(fork: Fork) -> Stream:
    """Where the coins and residual noise of a fork's tail come from: `maximal` + its parent's path.

    By the parent's path, so that twins with one decision have one tail (`Fork.tail_key`), and a
    fork of a twin never meets the coins that the twin was drawn with.
    """
    above = fork.episode.path
    return Stream(f"maximal/{above}" if above else "maximal")


def check_coupling(forks: Sequence[Fork]) -> None:
    """Refuses Gumbel forks that share the luck of an episode drawn by the maximal coupling.

    The Gumbel noise of such a luck did not draw it.

    Raises:
        ValueError: There is such a fork.
    """
    for fork in forks:
        parent = fork.episode.fork
        shares = fork.luck is SHARED and not fork.is_maximal
        if shares and parent is not None and parent.is_maximal:
            raise ValueError(
                "`coupling` must be 'maximal' for a fork that shares the luck of a maximal twin, "
                f"got {fork.coupling!r} for {fork.path!r}."
            )


def maximal(
    p_logits: np.ndarray,
    q_logits: np.ndarray,
    tokens: np.ndarray | Sequence[int],
    *,
    keys: Sequence[NoiseKey] | KeyColumns,
    positions: np.ndarray | Sequence[int],
    temperature: float | np.ndarray = 1.0,
) -> np.ndarray:
    """A token of law q for each row, equal to the row's token of law p as often as can be.

    p = softmax(p_logits / T), q = softmax(q_logits / T). The token x is kept with probability
    min(1, q(x) / p(x)); else the answer is drawn from the positive part of q - p. If x has law p,
    the answer has law q, and P(equal) = sum_v min(p(v), q(v)), the most possible: the joint law is
    `coupling.joint(p, q, "maximal")`. x must not have been drawn with these keys.

    Temperature 0: the largest logit of q, lowest id on ties. Equal rows of logits keep x always.

    Args:
        p_logits: (rows, vocabulary): what the tokens were drawn from.
        q_logits: The same shape: what the answer is to be drawn from.
        tokens: The token x of each row.
        keys: One key a row, of purpose `maximal` (`maximal_stream`): its coin and its Gumbels.
        positions: Index of the token within its turn, one a row.
        temperature: At least 0, finite; one number, or one a row.

    Returns:
        int64 ids, one a row.

    Raises:
        LogitsError: NaN or +inf logits, a row without a finite logit.
        ValueError: Shapes that do not agree, a temperature or position outside its range, or a
            token that p cannot have drawn.

    Source: the accept step of speculative decoding, Leviathan et al. 2023, arXiv 2211.17192.

    >>> p, q = np.log([[0.5, 0.3, 0.2]]), np.log([[0.4, 0.4, 0.2]])
    >>> maximal(p, q, [1], keys=[NoiseKey(7, 0, 0, 0, purpose="maximal")], positions=[0]).tolist()
    [1]
    """
    p_logits, q_logits = np.asarray(p_logits), np.asarray(q_logits)
    if p_logits.ndim != 2 or p_logits.shape != q_logits.shape:
        raise ValueError(
            "`p_logits` and `q_logits` must be (rows, vocabulary), both alike, "
            f"got {p_logits.shape} and {q_logits.shape}."
        )
    columns, at, degrees = checked_rows(len(q_logits), keys, positions, temperature)
    check_logits(p_logits, keys)
    check_logits(q_logits, keys)
    found = _checked_tokens(p_logits, tokens).copy()
    cold = np.flatnonzero(degrees == 0)
    found[cold] = q_logits[cold].argmax(axis=1)
    warm = np.flatnonzero(degrees > 0)
    p = _probabilities(p_logits[warm], degrees[warm])
    q = _probabilities(q_logits[warm], degrees[warm])
    words = columns.take(warm).blocks(np.asarray(_COIN_LANE), at[warm])
    left = uniform52(words[0], words[1]) >= kept_share(p, q, found[warm])
    residual = residual_logits(p[left], q[left])
    # rounding can leave q - p nowhere above 0 where p and q are equal but for it: x stays
    has_rest = residual.max(axis=1, initial=-np.inf) > -np.inf
    moved = warm[left][has_rest]
    if len(moved):
        found[moved] = sample(residual[has_rest], columns.take(moved), at[moved])
    return found


def kept_share(p: np.ndarray, q: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Probability min(1, q(x) / p(x)) of keeping each row's token x."""
    row = np.arange(len(tokens))
    own, other = p[row, tokens], q[row, tokens]
    ratio = np.divide(np.minimum(own, other), own, out=np.zeros(len(row)), where=own > 0)
    return np.asarray(ratio)


def residual_logits(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Log of the positive part of q - p in each row: what replaces a token that is not kept."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(q - p, 0.0)))


def _probabilities(logits: np.ndarray, temperature: np.ndarray) -> np.ndarray:
    scaled = logits.astype(np.float64)
    scaled -= scaled.max(axis=1, keepdims=True, initial=-np.inf)
    with np.errstate(over="ignore"):  # what is far below the largest may become -inf
        scaled /= temperature[:, None]
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum(axis=1, keepdims=True)
    return scaled


def _checked_tokens(p_logits: np.ndarray, tokens: np.ndarray | Sequence[int]) -> np.ndarray:
    ids = np.asarray(tokens, np.int64)
    rows, size = p_logits.shape
    if ids.shape != (rows,):
        raise ValueError(f"`tokens` must be one a row, got {ids.shape} for {rows} rows.")
    inside = (ids >= 0) & (ids < size)
    possible = inside & (p_logits[np.arange(rows), np.where(inside, ids, 0)] > -np.inf)
    for row in np.flatnonzero(~possible)[:1]:
        raise ValueError(f"`tokens` must be ids that p can draw, got {ids[row]} in row {row}.")
    return ids
