"""How far a tabular model's twins end apart, exactly: second moments under shared and fresh luck.

Dynamic programming over pairs of states, with the joint law of the Gumbel coupling at each turn.
Besides what twins keep it knows what two independent worlds show of it: how far they are apart
when they first meet again. Leaves out forks of forks and other couplings.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulations.worlds.tabular_model import TabularModel, TabularValues
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
        touched: As `deduplicated`, with only what independent worlds earn until they are in the
            same state at the same turn, and with luck that no decision touches replaced by its
            mean (`touchable`).
        effect: What is left of it without luck: E[(Q(a) - Q(a'))^2].
        tail: Expected number of turns after the decision.
        reached: Probability that an episode reaches the turn.
    """

    shared: np.ndarray
    fresh: np.ndarray
    deduplicated: np.ndarray
    equal: np.ndarray
    touched: np.ndarray
    effect: np.ndarray
    tail: np.ndarray
    reached: np.ndarray


def twin_moments(model: TabularModel, starts: Sequence[int]) -> TwinMoments:
    """The exact moments for episodes that start equally often in some of the model's starts.

    Args:
        model: The tables.
        starts: Numbers of the starts among `model.starts`.
    """
    turns = len(model.logits)
    values = TabularValues(model)
    occupancy = values.occupancy[list(starts)].mean(axis=0)
    shared = _apart(model, is_shared=True)
    touched = _apart(touchable(model), is_shared=False)
    squares, length = _squares(model, values), _lengths(model, values)
    found = np.zeros((7, turns))
    for turn in range(turns):
        reached = occupancy[turn]
        for state in np.flatnonzero(reached):
            policy, own = values.policy[turn, state], values.action_value[turn, state]
            weight = np.outer(policy, policy)
            moments = [*_independent(weight, squares[turn, state], own)]
            moments += [float((weight * apart[turn, state]).sum()) for apart in (shared, touched)]
            effect = (weight * np.subtract.outer(own, own) ** 2).sum()
            moments += [float(effect), float(policy @ length[turn, state])]
            found[:, turn] += reached[state] / reached.sum() * np.array(moments)
    names = ("fresh", "deduplicated", "equal", "shared", "touched", "effect", "tail")
    parts = dict(zip(names, found, strict=True))
    return TwinMoments(**parts, reached=occupancy.sum(axis=1))


def touchable(model: TabularModel) -> TabularModel:
    """The model with luck that no decision touches replaced by its mean.

    This is the reward of coins of turns at which every state and action toss with the same
    probability, for the same reward, and move to the same state either way.
    """
    rises = model.reward[..., 1] - model.reward[..., 0]
    still = (model.move[..., 0] == model.move[..., 1]).all(axis=(1, 2))
    same = [np.ptp(table, axis=(1, 2)) == 0 for table in (model.chance, rises)]
    free = still & np.logical_and(*same)
    mean = (model.reward[..., 0] + model.chance * rises)[..., None]
    reward = np.where(free[:, None, None, None], mean, model.reward)
    return dataclasses.replace(model, reward=reward)


def _independent(weight: np.ndarray, squares: np.ndarray, mean: np.ndarray) -> list[float]:
    """Fresh and deduplicated moment and equal share, for two independent decisions."""
    apart = squares[:, None] + squares[None, :] - 2 * np.outer(mean, mean)
    fresh, own = (weight * apart).sum(), np.diag(weight * apart).sum()
    return [float(fresh), float(fresh - own), float(np.diag(weight).sum())]


def _squares(model: TabularModel, values: TabularValues) -> np.ndarray:
    """E[G^2] of the reward G still to come from an action on (turn, state, action)."""
    squares = np.zeros(model.logits.shape)
    square = np.zeros(model.logits.shape[1])
    for turn in range(len(squares) - 1, -1, -1):
        goes, move, reward = 1 - model.hazard[turn], model.move[turn], model.reward[turn]
        rest = (goes * values.value[turn + 1])[move]
        after = reward**2 + 2 * reward * rest + (goes * square)[move]
        squares[turn] = _mean(after, model.chance[turn])
        square = (values.policy[turn] * squares[turn]).sum(axis=1)
    return squares


def _lengths(model: TabularModel, values: TabularValues) -> np.ndarray:
    """Expected number of turns after an action (turn, state, action)."""
    lengths = np.zeros(model.logits.shape)
    length = np.zeros(model.logits.shape[1])
    for turn in range(len(lengths) - 2, -1, -1):
        after = ((1 - model.hazard[turn]) * (1 + length))[model.move[turn]]
        lengths[turn] = _mean(after, model.chance[turn])
        length = (values.policy[turn] * lengths[turn]).sum(axis=1)
    return lengths


def _mean(after: np.ndarray, chance: np.ndarray) -> np.ndarray:
    return np.asarray((1 - chance) * after[..., 0] + chance * after[..., 1])


def _apart(model: TabularModel, *, is_shared: bool) -> np.ndarray:
    """E[(G - G')^2] of two worlds in one state after two actions (turn, state, action, action').

    Shared: the worlds share all luck, so that they disagree on a coin with probability
    |chance - chance'|, and one alone goes on with probability |hazard - hazard'|. Otherwise they
    are independent, and nothing counts any more once they have met: equal actions meet at once.
    """
    values = TabularValues(model)
    turns, states, actions = model.logits.shape
    squares, square = _squares(model, values), np.zeros(states)
    found, apart = np.zeros((turns, states, actions, actions)), np.zeros((states, states))
    same, same_action = np.arange(states), np.arange(actions)
    known: tuple[np.ndarray, np.ndarray] | None = None
    for turn in range(turns - 1, -1, -1):
        policy, hazard = values.policy[turn], model.hazard[turn]
        rest = _rest(hazard, apart, square, is_shared=is_shared)
        mean = (1 - hazard) * values.value[turn + 1]
        differ = _decided(model, turn, mean, rest, is_shared=is_shared)
        found[turn] = differ[same, same]
        if known is None or not np.array_equal(policy, known[0]):
            known = policy, _laws(policy, is_shared=is_shared)
        apart = (known[1] * differ).sum(axis=(2, 3))
        square = (policy * squares[turn]).sum(axis=1)
    if not is_shared:
        found[:, :, same_action, same_action] = 0.0
    return found


def _rest(
    hazard: np.ndarray, apart: np.ndarray, square: np.ndarray, *, is_shared: bool
) -> np.ndarray:
    """E[(R - R')^2] of what follows a turn, by the states moved to; 0 of what has ended."""
    if is_shared:
        both = 1 - np.maximum(hazard[:, None], hazard[None, :])
        alone = np.maximum(0.0, hazard[None, :] - hazard[:, None])  # the first goes on
    else:
        both = np.outer(1 - hazard, 1 - hazard)
        alone = np.outer(1 - hazard, hazard)
    rest = both * apart + alone * square[:, None] + alone.T * square[None, :]
    np.fill_diagonal(rest, 0.0)
    return np.asarray(rest)


def _decided(
    model: TabularModel, turn: int, mean: np.ndarray, rest: np.ndarray, *, is_shared: bool
) -> np.ndarray:
    """E[(G - G')^2] given both states and both actions (state, state', action, action')."""
    first = (slice(None), None, slice(None), None)
    second = (None, slice(None), None, slice(None))
    total = np.zeros(())
    for one, other in np.ndindex(2, 2):
        move, met = model.move[turn][..., one][first], model.move[turn][..., other][second]
        gap = model.reward[turn][..., one][first] - model.reward[turn][..., other][second]
        after = gap**2 + 2 * gap * (mean[move] - mean[met]) + rest[move, met]
        chances = model.chance[turn][first], model.chance[turn][second]
        total = total + _share(*chances, one, other, is_shared=is_shared) * after
    return np.asarray(total)


def _share(
    chance: np.ndarray, chance2: np.ndarray, one: int, other: int, *, is_shared: bool
) -> np.ndarray:
    """Probability that the first coin shows `one` and the second `other`."""
    if not is_shared:
        first = chance if one else 1 - chance
        return np.asarray(first * (chance2 if other else 1 - chance2))
    if one == other:
        return np.minimum(chance, chance2) if one else 1 - np.maximum(chance, chance2)
    return np.maximum(0.0, chance - chance2 if one else chance2 - chance)


def _laws(policy: np.ndarray, *, is_shared: bool) -> np.ndarray:
    """Joint law of the decisions in two different states (state, state', action, action')."""
    laws = np.einsum("sa,tb->stab", policy, policy)
    if is_shared:
        for one in range(len(policy)):
            for other in range(one):
                laws[one, other] = joint(policy[one], policy[other], "gumbel")
                laws[other, one] = laws[one, other].T
    return laws
