"""GRAFT: differences of state values that solve the Bellman equation on the group's graph."""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from twinstats.credit._checks import at_least_zero, positive, probability
from twinstats.credit._graph import edges, residuals, traces
from twinstats.credit._states import anchors, by_row, credit_of_turns, positions
from twinstats.credit.baseline import standardised, uncomparable
from twinstats.episodes import Credit, Group
from twinstats.errors import unknown

Hops = Literal["distinct", "raw"]
_DIGITS = 12  # kept of a credit, against the largest reward: less is the solver's rounding


def graft(
    group: Group,
    *,
    discount: float = 0.99,
    trace: float = 0.95,
    hops: Hops = "distinct",
    normalise: bool = True,
    epsilon: float = 1e-6,
) -> Credit:
    """Credit A_t = r_t + discount * V(s_{t+1}) - V(s_t), V from all the group's turns.

    V solves V(u) = mean over the turns taken in u of (r + discount * V(next)), which is the sum
    over actions and next states with counted frequencies; the end of an episode is worth what its
    last turn earned. Graph GAE adds sum_{k >= 1} (discount * trace)^k * B_k, B_k the mean A over
    the edges that are exactly k hops on, k up to the turns left. Last, `normalise` standardises the
    credits of each state (ddof=1); a turn alone in its state gets A / (|A| + epsilon).

    Reconstructed: which edges count in B_k. The paper's sentence says every turn taken there
    ("raw"), and then B_k is exactly 0, because the A of a state's turns add up to 0 where V solves
    its equation: `trace` has no effect. Its formula has a set of edges, so "distinct" counts equal
    (state, action, next) once. Also ours: the exact solution in place of sweeps down to 1e-8, step
    rewards (the paper has outcomes only), ddof, and that ends are nodes of their own, equal where
    final state and last reward are.

    Inputs: anchor states (`Turn.state`), actions, rewards. Cost: none. With `normalise` the scale
    does not estimate the advantage; without it, at discount 1 and trace 0, it is consistent for
    the advantage where states are Markov, and biased in small groups. A state that comes once
    passes its next state's value on: A = 0 but for the discount, which both sides share. All
    outcomes 0: exactly 0. All outcomes equal: exactly 0 at discount 1 with rewards at the end
    only; a smaller discount prefers short ways. A group of one: null, with a reason in `info`; the
    one scored episode of several: 0. A failed episode: null, and no part of the graph.

    Args:
        group: The rollouts of a task.
        discount: Gamma, above 0 (published .99).
        trace: Lambda (published .95 ALFWorld, .8 WebShop, .6 search).
        hops: "distinct" or "raw", see above.
        normalise: Standardise within states (published default).
        epsilon: Added to the deviations.

    Raises:
        ValueError: A null state, or an option out of range.

    Source: Yao et al., "Back to the definition: estimating step-level advantages via trajectory
    graphs" (GRAFT), equations 5 to 11; read as text, no code is public.
    """
    positive(discount=discount)
    probability(discount=discount, trace=trace)
    at_least_zero(epsilon=epsilon)
    if hops not in ("distinct", "raw"):
        raise unknown("hops", hops, ("distinct", "raw"))
    if (credit := uncomparable(group)) is not None:
        return credit
    episodes = by_row(group)
    labels = anchors("graft", episodes)
    graph = edges(episodes, labels)
    values = residuals(graph, discount)
    if trace and hops == "distinct":
        values = values + traces(graph, values, discount * trace)
    size = float(np.abs(graph.rewards).max()) or 1.0
    values = np.round(values / size, _DIGITS) * size + 0.0
    if normalise:
        values = _within_states(labels, values, epsilon)
    return credit_of_turns(group, episodes, values, labels)


def _within_states(labels: Sequence[Hashable], values: np.ndarray, epsilon: float) -> np.ndarray:
    size = np.abs(values)
    result = values / np.where(size > 0, size + epsilon, 1.0)
    for places in positions(labels).values():
        if len(places) > 1:
            result[places] = standardised(values[places], epsilon=epsilon)
    return result
