"""Exact laws of couplings between two categorical distributions, and noise that explains a token.

Leaves out sampling (`noise`) and couplings of more than one decision.
"""

import dataclasses
import math

import numpy as np

from twinstats._numbers import Number, Numbers, float_array
from twinstats.errors import unknown
from twinstats.noise import NoiseKey, gumbel, uniform

_COUPLINGS = ("gumbel", "maximal", "independent")
_SUM_TOLERANCE = 1e-5
_TOTAL_LANE = 2**31


def agreement(p: Numbers, q: Numbers, coupling: str = "gumbel") -> float:
    """P(both worlds draw the same category).

    "gumbel" (argmax of log-probability plus shared Gumbel noise):
    sum_i 1 / sum_j max(p_j / p_i, q_j / q_i). "maximal": sum_i min(p_i, q_i), the most possible.
    "independent": sum_i p_i q_i. O(K log K) time and O(K) memory.

    >>> round(1 - agreement([0.5, 0.3, 0.2], [0.4, 0.4, 0.2]), 6)
    0.118182

    Args:
        p: Probabilities of one world.
        q: Probabilities of the other, for the same categories.
        coupling: "gumbel", "maximal" or "independent".

    Returns:
        Probability in [0, 1].

    Raises:
        ValueError: Not two distributions over the same categories, or an unknown coupling.

    Source: Daliri, Musco and Suresh, arXiv 2408.07978 (Gumbel coupling without communication).
    """
    p_K, q_K = _distributions(p, q)
    return min(1.0, math.fsum(_same(p_K, q_K, coupling)))


def joint(p: Numbers, q: Numbers, coupling: str = "gumbel") -> np.ndarray:
    """The joint law J[i, j] = P(world of p draws i, world of q draws j).

    Gumbel, i != j: p_i q_j times the integral over r from p_j/q_j to p_i/q_i of
    (sum_k max(p_k, q_k r))^-2, and 0 if that interval is empty: i turns into j only if the odds of
    j against i rose (counterfactual stability). The integrand is a square of a piecewise linear
    function, so each piece is exact. "maximal": the diagonal min(p, q), the rest of p and q
    independent. O(K^2) time and memory.

    >>> joint([0.5, 0.3, 0.2], [0.4, 0.4, 0.2], "gumbel")[0, 1].round(6)
    np.float64(0.081818)

    Args:
        p: Probabilities of one world.
        q: Probabilities of the other, for the same categories.
        coupling: "gumbel", "maximal" or "independent".

    Returns:
        K x K matrix with row sums p and column sums q.

    Raises:
        ValueError: Not two distributions over the same categories, or an unknown coupling.

    Source: Oberst and Sontag 2019 (counterfactual stability of Gumbel-max).
    """
    p_K, q_K = _distributions(p, q)
    same = _same(p_K, q_K, coupling)
    if coupling == "independent":
        return np.asarray(np.outer(p_K, q_K))
    if coupling == "maximal":
        p_left, q_left = p_K - same, q_K - same
        excess = float(p_left.sum())
        moved = np.outer(p_left, q_left / excess) if excess > 0 else 0.0
        return np.asarray(np.diag(same) + moved)
    return np.asarray(np.diag(same) + _gumbel_changes(p_K, q_K))


def disagreement_bounds(p: Numbers, q: Numbers) -> tuple[float, float]:
    """Bounds of the Gumbel coupling's P(the two worlds differ): TV and 2 TV / (1 + TV).

    TV = sum |p - q| / 2 is the least that any coupling has, attained by the maximal one. The upper
    bound is attained where the excess masses of p and q sit on categories the other lacks.

    >>> low, high = disagreement_bounds([0.5, 0.3, 0.2], [0.4, 0.4, 0.2])
    >>> round(low, 6), round(high, 6)
    (0.1, 0.181818)

    Args:
        p: Probabilities of one world.
        q: Probabilities of the other, for the same categories.

    Returns:
        Lower and upper bound.

    Raises:
        ValueError: Not two distributions over the same categories.

    Source: Daliri, Musco and Suresh, arXiv 2408.07978.
    """
    p_K, q_K = _distributions(p, q)
    distance = min(1.0, math.fsum(np.abs(p_K - q_K)) / 2)
    return distance, 2 * distance / (1 + distance)


def posterior_gumbel(
    logits: Numbers,
    index: int | np.integer,
    key: NoiseKey,
    position: int,
    temperature: Number = 1.0,
) -> np.ndarray:
    """Gumbel noise given that `index` was sampled: argmax(logits / temperature + noise) is it.

    Z = logsumexp(l/T) - log(-log u*) is the winning score; g_index = Z - l_index/T, all other
    g_v = -log(exp(l_v/T - Z) - log u_v), Gumbels truncated to stay below it. Averaged over tokens
    drawn from the softmax, the noise is standard Gumbel again.

    The uniforms come from the key with purpose `PURPOSE~posterior`: lane v for id v, lane 2^31 for
    u*. Tokens of logit -inf (truncated away) say nothing about their noise: they have the key's
    prior noise.

    >>> noise = posterior_gumbel([0.0, 1.0, 2.0], 0, NoiseKey(7, 0, 0, 0), 0)
    >>> int(np.argmax(np.array([0.0, 1.0, 2.0]) + noise))
    0

    Args:
        logits: Logits after truncation, one a token id.
        index: Id of the token that was observed.
        key: Whose noise.
        position: Index of the token within its turn.
        temperature: Sampling temperature, positive.

    Returns:
        Noise of each id, float64.

    Raises:
        ValueError: An undefined or infinite logit, an id that could not be sampled, or a
            temperature that is not positive.

    Source: Oberst and Sontag 2019 (top-down posterior of Gumbel-max).
    """
    scaled = _scaled_logits(logits, temperature)
    if not 0 <= index < len(scaled) or scaled[index] == -math.inf:
        raise ValueError(f"`index` must be an id that can be sampled, got {index}.")
    ids = np.arange(len(scaled))
    derived = dataclasses.replace(key, purpose=key.purpose + "~posterior")
    peak = float(scaled.max())
    with np.errstate(over="ignore"):
        total = peak + math.log(float(np.exp(scaled - peak).sum()))
    winner = total - math.log(-math.log(float(uniform(derived, position, _TOTAL_LANE))))
    noise = -np.log(np.exp(scaled - winner) - np.log(uniform(derived, position, ids)))
    truncated = scaled == -math.inf
    if truncated.any():
        noise[truncated] = gumbel(key, position, ids[truncated])
    noise[index] = winner - scaled[index]
    return _below_winner(noise, scaled, index)


def _distributions(p: Numbers, q: Numbers) -> tuple[np.ndarray, np.ndarray]:
    first, second = _distribution("p", p), _distribution("q", q)
    if len(first) != len(second):
        raise ValueError(f"`q` must have as many entries as `p` ({len(first)}), got {len(second)}.")
    return first, second


def _distribution(name: str, values: Numbers) -> np.ndarray:
    array = float_array(name, values)
    if array.ndim != 1 or not np.all((array >= 0) & np.isfinite(array)):
        raise ValueError(f"`{name}` must be a list of probabilities, finite and at least 0.")
    total = math.fsum(array)
    if not abs(total - 1.0) <= _SUM_TOLERANCE:
        raise ValueError(f"`{name}` must add up to 1, got {total:.9g}.")
    return np.asarray(array / total)


def _same(p_K: np.ndarray, q_K: np.ndarray, coupling: str) -> np.ndarray:
    """P(both draw i) for each i."""
    if coupling not in _COUPLINGS:
        raise unknown("coupling", coupling, _COUPLINGS)
    if coupling == "maximal":
        return np.asarray(np.minimum(p_K, q_K))
    if coupling == "independent":
        return np.asarray(p_K * q_K)
    # p_i q_i / sum_j max(p_j q_i, q_j p_i), divided through by the larger of p_i and q_i
    p_rest, q_rest = _rest(p_K, q_K)
    larger = np.maximum(p_K, q_K)
    larger[larger == 0] = 1.0
    sums = p_rest * (q_K / larger) + q_rest * (p_K / larger)
    return np.asarray(np.minimum(p_K, q_K) / np.where(sums > 0, sums, 1.0))


def _rest(p_K: np.ndarray, q_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each i: mass of p where q/p is at most i's ratio, and mass of q where it is above."""
    order = _by_ratio(p_K, q_K)
    p_rest, q_rest = np.empty(len(p_K)), np.empty(len(p_K))
    p_rest[order] = np.cumsum(p_K[order])
    q_rest[order] = np.cumsum(q_K[order][::-1])[::-1] - q_K[order]
    return p_rest, np.maximum(q_rest, 0.0)


def _by_ratio(p_K: np.ndarray, q_K: np.ndarray) -> np.ndarray:
    """Categories by rising q/p; those of no mass in either world first, where they do nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(q_K) - np.log(p_K)
    ratio[(p_K == 0) & (q_K == 0)] = -math.inf
    return np.argsort(ratio, kind="stable")


def _gumbel_changes(p_K: np.ndarray, q_K: np.ndarray) -> np.ndarray:
    """Off-diagonal of the Gumbel joint law.

    With the breakpoints p_k/q_k in order, the integral over one piece between i and the next is
    (r' - r) / (S(r) S(r')) for S(r) = sum_k max(p_k, q_k r). Multiplied through by q q', no ratio
    is ever formed, so zero probabilities need no care.
    """
    order = _by_ratio(p_K, q_K)[::-1]  # rising p/q
    order = order[(p_K[order] > 0) | (q_K[order] > 0)]
    p_rest, q_rest = _rest(p_K, q_K)
    sums = (p_rest * q_K + q_rest * p_K)[order]
    p_sorted, q_sorted = p_K[order], q_K[order]
    steps = p_sorted[1:] * q_sorted[:-1] - p_sorted[:-1] * q_sorted[1:]
    pieces = np.maximum(steps, 0.0) / sums[1:] / sums[:-1]
    place = np.zeros(len(p_K))
    place[order] = np.concatenate([np.zeros(1), np.cumsum(pieces)])
    return np.outer(p_K, q_K) * np.maximum(place[:, None] - place[None, :], 0.0)


def _scaled_logits(logits: Numbers, temperature: Number) -> np.ndarray:
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"`temperature` must be positive and finite, got {temperature}.")
    given = float_array("logits", logits)
    if given.ndim != 1 or not len(given):
        raise ValueError(f"`logits` must be a list, one a token id, got shape {given.shape}.")
    with np.errstate(over="ignore"):
        scaled = given / temperature
    if np.any(np.isnan(scaled)) or np.any(np.isinf(scaled) & (given != -math.inf)):
        raise ValueError("`logits` must be finite or -inf, and so after division by `temperature`.")
    return np.asarray(scaled)


def _below_winner(noise: np.ndarray, scaled: np.ndarray, index: int | np.integer) -> np.ndarray:
    """Lowers noise that rounding lifted to the winner's score or above, by units in last place."""
    score = scaled[index] + noise[index]
    step = np.spacing(np.maximum(np.abs(scaled), np.abs(score)))
    while np.any(tied := (scaled + noise >= score) & (np.arange(len(scaled)) != index)):
        noise[tied] -= step[tied]
        step *= 2
    return noise
