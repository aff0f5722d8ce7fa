"""How far a chain's twins end apart, exactly: second moments under shared and fresh luck.

Dynamic programming over pairs of states, with the joint law of the Gumbel coupling at each turn.
Leaves out forks of forks and other couplings.
"""

from dataclasses import dataclass

import numpy as np

from simulations.worlds.chain_model import ChainModel, solve
from twinstats.coupling import joint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwinMoments:
    """E[D^2] of a twin whose decision was resampled, by turn; pooled over the states reached.

    Episodes that ended before the turn do not count. E[D] is 0, so this is the variance of D.

    Attributes:
        shared: With the parent's luck after the decision.
        fresh: With luck of its own.
        deduplicated: As `fresh`, with equal decisions counted as D = 0.
        equal: Probability of an equal decision.
    """

    shared: np.ndarray
    fresh: np.ndarray
    deduplicated: np.ndarray
    equal: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _After:
    """What comes after a move, by the state moved to: its mean, square, and distance of two."""

    mean: np.ndarray
    square: np.ndarray
    apart: np.ndarray


def twin_moments(model: ChainModel, start: int = 0) -> TwinMoments:
    """The exact moments for episodes that start in state `start`."""
    turns, states, _ = model.logits.shape
    values = solve(model)
    square, apart = np.zeros(states), np.zeros((states, states))
    found = np.zeros((4, turns))
    for turn in range(turns - 1, -1, -1):
        after = _after(model, turn, values.value[turn + 1], square, apart)
        points, move, policy = model.points[turn], model.move[turn], values.policy[turn]
        squares = points**2 + 2 * points * after.mean[move] + after.square[move]
        differ = _decided(points, move, after)
        reached = values.occupancy[start, turn]
        for state in np.flatnonzero(reached):
            moments = _resampled(
                policy[state],
                differ[state, state],
                squares[state],
                values.action_value[turn, state],
            )
            found[:, turn] += reached[state] / reached.sum() * moments
        square = (policy * squares).sum(axis=1)
        apart = _coupled(policy, differ)
    return TwinMoments(shared=found[0], fresh=found[1], deduplicated=found[2], equal=found[3])


def _after(
    model: ChainModel, turn: int, value: np.ndarray, square: np.ndarray, apart: np.ndarray
) -> _After:
    """Adds the coin and the hazard of a turn to the moments of what follows it.

    Two worlds share both uniforms: they disagree on the coin with probability |chance - chance'|,
    and one alone goes on with probability |hazard - hazard'|.
    """
    prize, chance, hazard = model.prize[turn], model.chance[turn], model.hazard[turn]
    coin, rest = prize * chance, (1 - hazard) * value
    alone = np.maximum(0.0, hazard[None, :] - hazard[:, None])  # the first goes on, the second not
    both = 1 - np.maximum(hazard[:, None], hazard[None, :])
    rest_apart = both * apart + alone * square[:, None] + alone.T * square[None, :]
    coin_apart = prize**2 * np.abs(chance[:, None] - chance[None, :])
    means = (coin[:, None] - coin[None, :]) * (rest[:, None] - rest[None, :])
    return _After(
        mean=coin + rest,
        square=prize**2 * chance + 2 * coin * rest + (1 - hazard) * square,
        apart=coin_apart + 2 * means + rest_apart,
    )


def _decided(points: np.ndarray, move: np.ndarray, after: _After) -> np.ndarray:
    """E[(G - G')^2] given both states and both actions (state, state', action, action')."""
    first = (slice(None), None, slice(None), None)
    second = (None, slice(None), None, slice(None))
    gap = points[first] - points[second]
    mean = after.mean[move][first] - after.mean[move][second]
    apart = after.apart[move[first], move[second]]
    return np.asarray(gap**2 + 2 * gap * mean + apart)


def _resampled(
    policy: np.ndarray, differ: np.ndarray, squares: np.ndarray, action_value: np.ndarray
) -> np.ndarray:
    """Shared, fresh, deduplicated moment and equal share, for two independent decisions."""
    weight = np.outer(policy, policy)
    apart = squares[:, None] + squares[None, :] - 2 * np.outer(action_value, action_value)
    equal = np.diag(weight).sum()
    fresh, own = (weight * apart).sum(), np.diag(weight * apart).sum()
    return np.array([(weight * differ).sum(), fresh, fresh - own, equal])


def _coupled(policy: np.ndarray, differ: np.ndarray) -> np.ndarray:
    """Averages over the two worlds' decisions, which share their Gumbel noise."""
    states = len(policy)
    apart = np.zeros((states, states))
    for one in range(states):
        for other in range(one):
            law = joint(policy[one], policy[other], "gumbel")
            apart[one, other] = apart[other, one] = (law * differ[one, other]).sum()
    return apart
