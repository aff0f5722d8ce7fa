"""DARS: GiGPO whose returns count progress on the task's predicate graph."""

from collections.abc import Hashable
from itertools import pairwise

import numpy as np

from twinstats.credit._checks import at_least_zero, probability
from twinstats.credit._predicates import Heavier, Predicates, broken, potential, predicates
from twinstats.credit._states import (
    Mode,
    anchors,
    by_row,
    credit_of_turns,
    episode_term,
    norm,
    per_turn,
    within,
)
from twinstats.credit.baseline import uncomparable
from twinstats.credit.inputs import needed, returns_to_go, step_rewards
from twinstats.episodes import Credit, Group
from twinstats.errors import unknown


def dars(
    group: Group,
    *,
    discount: float = 0.95,
    weight: float = 1.0,
    shaping: float = 1.0,
    penalty: float = 1.0,
    decay: float = 0.9,
    heavier: Heavier = "near",
    mode: Mode = "mean_norm",
    epsilon: float = 1e-6,
) -> Credit:
    """Credit A_t = A_E + weight * A_S as in `gigpo`, A_S from rewards shaped by predicates.

    r'_t = r_t + shaping * (discount * Phi(s_{t+1}) - Phi(s_t)) - penalty * sum of w(p) over the
    preconditions p that turn t broke. Phi(s) = -sum of w(p) over the predicates that do not hold,
    w(p) = decay^dist(p) / (number of predicates), dist(p) = edges from p to the nearest goal
    ("far": decay^(largest dist - dist(p))); without a way to a goal w(p) = 0.

    Wholly reconstructed from a one-sentence summary. Ours: both directions of the weight, all
    defaults but GiGPO's, that a broken precondition is fined only while something that builds on
    it does not hold (a key may be put away once the door is open), that A_E takes outcomes as they
    are, and that Phi counts at the end too: with Phi = 0 there all progress of a state would
    cancel. The shaping alone keeps the best policy; the penalty need not.

    Inputs: anchor states, rewards; need `predicates`: one set of predicates that hold a state (T +
    1 of them, hashable). `task.info["predicate_graph"]`: pairs (u, v), u a precondition of v;
    `task.info["goal"]`: the goal predicates, at least one. Predicates outside graph and goal do not
    count. Cost: none. The scale does not estimate the advantage. No success: progress still counts.
    All outcomes and all progress equal: exactly 0. A state that comes once: A_S = 0. Without edges
    and with goals that never change: `gigpo`. A group of one: null, with a reason in `info`; the
    one scored episode of several: 0. A failed episode: null, and left out.

    Args:
        group: The rollouts of a task.
        discount: Of returns and potentials.
        weight: Of A_S.
        shaping: Of the potential.
        penalty: Of broken preconditions.
        decay: Weight of a predicate per edge from the goal.
        heavier: Which predicates weigh more, those "near" the goal or "far" from it.
        mode: "mean_norm" or "mean_std_norm".
        epsilon: Added to the deviations.

    Raises:
        ValueError: No `predicates`, graph or goal, a null state, or an option out of range.

    Source: DARS, known to us from `seeds/002_c0d93a940aa62f74.txt` only; Ng et al. 1999 (shaping).
    """
    probability(discount=discount, decay=decay)
    at_least_zero(weight=weight, shaping=shaping, penalty=penalty)
    if heavier not in ("near", "far"):
        raise unknown("heavier", heavier, ("near", "far"))
    scale = norm(mode, epsilon=epsilon)
    known = predicates("dars", group.task, decay=decay, heavier=heavier)
    states = {
        id(e): [frozenset(state) for state in needed("dars", e, "predicates")]
        for e in group.episodes
    }
    if (credit := uncomparable(group)) is not None:
        return credit
    episodes = by_row(group)
    labels = anchors("dars", episodes)
    returns = []
    for episode in episodes:
        progress, fines = _progress(known, states[id(episode)], discount)
        rewards = step_rewards(episode) + shaping * progress - penalty * fines
        returns.append(returns_to_go(rewards, discount))
    whole = per_turn(episodes, episode_term(group, scale, cross_steps=True))
    values = whole + weight * within(labels, np.concatenate(returns), scale)
    return credit_of_turns(group, episodes, values, labels)


def _progress(
    known: Predicates, states: list[frozenset[Hashable]], discount: float
) -> tuple[np.ndarray, np.ndarray]:
    """Of each turn: the potential's discounted growth, and the weight of what it broke."""
    level = np.array([potential(known, state) for state in states])
    fines = [broken(known, *step) for step in pairwise(states)]
    return discount * level[1:] - level[:-1], np.array(fines)
