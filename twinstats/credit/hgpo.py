"""HGPO: a turn against the turns that share its state, its last two states, and so on."""

from collections.abc import Hashable

import numpy as np

from twinstats.credit._checks import at_least_zero, probability
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
from twinstats.credit.inputs import returns_to_go, step_rewards
from twinstats.episodes import Credit, Group


def hgpo(
    group: Group,
    *,
    discount: float = 0.95,
    history: int = 2,
    alpha: float = 1.0,
    mode: Mode = "mean_std_norm",
    base: bool = False,
    epsilon: float = 1e-6,
) -> Credit:
    """Credit A_t = sum_k w_k a_k over groups of turns that share their last k states.

    k = 1..history + 1, k = 1 being GiGPO's grouping by state. a_k = (G_t - mean) / (population
    standard deviation + epsilon) within the group of turns with the same last k states, where G_t
    is the discounted return to go; a group of one, and a turn with fewer than k states behind it,
    give none. w_k is proportional to (k + 1)^alpha over the a_k that are not 0. With `base` the
    episode's term of `gigpo` (ddof=1, outcomes counted once a turn) joins as k = 0.

    Inputs: anchor states (`Turn.state`) and rewards. Cost: none. The scale does not estimate the
    advantage. A state that comes once: credit 0 (with `base`: the episode's term). All returns of
    a group equal: exactly 0. No success is no special case. A group of one: null, with a reason
    in `info`; the one scored episode of several: 0. A failed episode: null, and left out of all
    statistics.

    Args:
        group: The rollouts of a task.
        discount: Of the returns (published .95).
        history: K, how many earlier states are compared (published 2 and 4).
        alpha: How much longer histories weigh (published 1).
        mode: "mean_std_norm" (published default) or "mean_norm".
        base: The episode's term as k = 0 (published default: off).
        epsilon: Added to the deviations.

    Raises:
        ValueError: A null state, or an option out of range.

    Source: He et al., HGPO, arXiv 2602.22817; `recipe/hgpo/core_hgpo.py` as read in forks of
    langfengQ/verl-agent (weights k + 1, and their 1e-6 in the sum of weights left out).
    """
    probability(discount=discount)
    at_least_zero(history=history, alpha=alpha)
    scale = norm(mode, ddof=0, epsilon=epsilon)
    if (credit := uncomparable(group)) is not None:
        return credit
    episodes = by_row(group)
    labels = anchors("hgpo", episodes)
    returns = np.concatenate([returns_to_go(step_rewards(e), discount) for e in episodes])
    turns = [turn for episode in episodes for turn in range(episode.num_turns)]
    history = min(history, max(turns, default=0))  # no turn has more states behind it
    terms = [
        within(_pasts(labels, turns, length), returns, scale) for length in range(1, history + 2)
    ]
    if base:
        whole = episode_term(group, norm(mode, epsilon=epsilon), cross_steps=True)
        terms.insert(0, per_turn(episodes, whole))
    weights = (np.arange(0 if base else 1, history + 2) + 1.0) ** alpha
    return credit_of_turns(group, episodes, _weighed(np.array(terms), weights[:, None]), labels)


def _pasts(labels: list[Hashable], turns: list[int], length: int) -> list[Hashable]:
    """The last `length` states of each turn; something of its own where there are not so many."""
    return [
        tuple(labels[index - length + 1 : index + 1]) if turn + 1 >= length else (index, None)
        for index, turn in enumerate(turns)
    ]


def _weighed(terms: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted mean of each column's terms that are not 0; 0 where all are."""
    own = np.where(terms != 0, weights, 0.0)
    total = own.sum(axis=0)
    result: np.ndarray = (own * terms).sum(axis=0) / np.where(total > 0, total, 1.0)
    return result
