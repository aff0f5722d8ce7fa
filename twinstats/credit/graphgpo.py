"""GraphGPO: how much nearer to success each turn led, on the graph of the group's states."""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from twinstats.credit._checks import at_least_zero, positive
from twinstats.credit._states import (
    anchors,
    by_row,
    credit_of_turns,
    episode_term,
    norm,
    per_turn,
    within,
)
from twinstats.credit.baseline import uncomparable
from twinstats.episodes import Credit, Episode, Group
from twinstats.errors import unknown

Convention = Literal["reference", "paper"]
_SUCCESS = object()


def graphgpo(
    group: Group,
    *,
    omega: float = 0.1,
    success_reward: float = 10.0,
    episode_weight: float = 1.0,
    graph_weight: float = 1.0,
    convention: Convention = "reference",
    success_above: float = 0.0,
    cross_steps: bool = True,
    epsilon: float = 1e-6,
) -> Credit:
    """Credit A_t = episode_weight * A_E + graph_weight * A_G.

    One directed graph over the group: states are nodes, turns are edges, and the last turn of a
    successful episode leads to SUCCESS. d(s) = number of edges to SUCCESS, the largest finite one
    plus 1 where there is no way. A_G standardises g = success_reward * omega^d(next) over the
    turns that leave the same state (ddof=1); convention "paper" has omega^(d(next) + 1). A_E is the
    outcome standardised within the group.

    The ranking of a state's turns survives, not the magnitude: two different turns always get
    +-.71. With the published omega and epsilon that ends about seven edges from SUCCESS, where g
    differs by less than epsilon and A_G fades.

    Inputs: anchor states (`Turn.state`), `Episode.final_state` for episodes without success (null:
    a dead end), `Episode.success` (null: an outcome above `success_above`). Cost: none. The
    scale does not estimate the advantage. No success in the group: A_G = 0. A state that comes
    once, or whose turns lead equally far: A_G exactly 0. All outcomes equal: A_E exactly 0, and A_G
    still tells short ways from detours. A group of one: null, with a reason in `info`; the one
    scored episode of several: 0. A failed episode: null, and no part of the graph.

    Args:
        group: The rollouts of a task.
        omega: Discount an edge (published .1).
        success_reward: R_succ (published 10); matters against `epsilon` only.
        episode_weight: b_E (published 1).
        graph_weight: b_G (published 1).
        convention: "reference" (the authors' recipe) or "paper"; they differ by the factor omega.
        success_above: What counts as success where the world does not say.
        cross_steps: An outcome counts once a turn in A_E (the authors' recipe; a port has False).
        epsilon: Added to the deviations.

    Raises:
        ValueError: A null state, or an option out of range.

    Source: Cheng et al., GraphGPO, arXiv 2605.26684, equation 4; redai-studio/Relax pull request
    280 (`graph_credit.py`), which follows verl-agent/recipe/GraphGPO.
    """
    positive(omega=omega, success_reward=success_reward)
    if omega >= 1:
        raise ValueError(f"`omega` must be below 1, got {omega}.")
    at_least_zero(episode_weight=episode_weight, graph_weight=graph_weight)
    if convention not in ("reference", "paper"):
        raise unknown("convention", convention, ("reference", "paper"))
    scale = norm("mean_std_norm", epsilon=epsilon)
    if (credit := uncomparable(group)) is not None:
        return credit
    episodes = by_row(group)
    labels = anchors("graphgpo", episodes)
    distances = _distances(labels, _next_states(episodes, success_above))
    reached = success_reward * omega ** (distances + (convention == "paper"))
    whole = per_turn(episodes, episode_term(group, scale, cross_steps=cross_steps))
    values = episode_weight * whole + graph_weight * within(labels, reached, scale)
    return credit_of_turns(group, episodes, values, labels)


def _next_states(episodes: Sequence[Episode], success_above: float) -> list[Hashable]:
    """Where each turn led: the next state, SUCCESS, or where the episode ended without it."""
    found: list[Hashable] = []
    for episode in episodes:
        found += [turn.state for turn in episode.turns[1:]]
        won = episode.success
        if won is None:
            won = episode.outcome is not None and episode.outcome > success_above
        found.append(_SUCCESS if won else episode.final_state)
    return found


def _distances(sources: Sequence[Hashable], targets: Sequence[Hashable]) -> np.ndarray:
    """Edges from each target to SUCCESS; all equal where the graph has none."""
    number = {node: index for index, node in enumerate(dict.fromkeys([*sources, *targets]))}
    if _SUCCESS not in number:
        return np.ones(len(targets))
    tails, heads = [number[node] for node in sources], [number[node] for node in targets]
    backward = csr_array((np.ones(len(heads)), (heads, tails)), shape=(len(number),) * 2)
    distances = dijkstra(backward, indices=number[_SUCCESS], unweighted=True)
    finite = np.isfinite(distances)
    distances[~finite] = distances[finite].max() + 1
    result: np.ndarray = distances[heads]
    return result
