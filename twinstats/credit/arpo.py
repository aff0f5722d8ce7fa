"""ARPO: branches where the first tokens after an observation became less certain."""

from collections.abc import Generator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from twinstats.credit._checks import at_least_zero, at_most_forks, count, probability
from twinstats.credit._tree import branch, coins, grown, leaf_credit, node_credit, scored
from twinstats.credit.baseline import outcomes, standardised
from twinstats.credit.inputs import needed
from twinstats.episodes import Credit, Episode, Fork, Group
from twinstats.errors import unknown

Sharing = Literal["soft", "hard"]


def arpo(
    group: Group,
    *,
    leaves: int = 16,
    beam: int = 2,
    base: float = 0.5,
    weight: float = 0.2,
    sharing: Sharing = "soft",
) -> Generator[Any, Any, Credit]:
    """Credit A_leaf = (R - mean) / (std + 1e-6) over all leaves, on the leaf's whole path.

    After each observation, that is before turn t >= 1, a leaf branches with probability
    clip(base + weight * (H_t - H_0), 0, 1): when u - weight * (H_t - H_0) <= base, u a keyed coin.
    H_t is the normalised entropy (0 to 1) of the turn's first tokens. There are beam - 1 coins a
    turn. Turns are gone through in order, branches included; what would exceed `leaves` is left
    out, smallest left side first. If leaves are missing at the end, turn 0 is sampled anew.

    "soft": a turn that several leaves share is trained with each of them by that leaf's advantage.
    "hard": it gets the mean of their advantages; it stands once, at its owner, with `share` = the
    leaves through it.

    Inputs: branching, `first_entropy` (on forks as well). Cost: leaves - (group's size) tails, in
    one round a turn. The scale does not estimate the advantage. All outcomes equal: exactly 0. A
    group that has `leaves` episodes already: GRPO. A single leaf: null, with a reason. A failed
    leaf: null, left out of mean and std, and not branched.

    Args:
        group: The rollouts of a task (published 8).
        leaves: Leaves of the task in all, at most (published 16).
        beam: Ways a state goes on at most when it is met.
        base: Probability of branching at unchanged entropy.
        weight: Change of that probability for each unit of entropy gained.
        sharing: What shared turns get.

    Raises:
        ValueError: `leaves` or `beam` below 1 or above 65,535, `base` outside [0, 1], a negative
            `weight`, an unknown `sharing`, or an episode without `first_entropy`.

    Source: Dong et al., ARPO, arXiv 2507.19849; repository RUC-NLPIR/ARPO. There branching happens
    while episodes are played; here it looks back at them in the same order.
    """
    count(leaves=leaves, beam=beam)
    at_most_forks(leaves=leaves, beam=beam)
    probability(base=base)
    at_least_zero(weight=weight)
    if sharing not in get_args(Sharing):
        raise unknown("sharing", sharing, get_args(Sharing))
    return _branched(group, leaves, (beam, base, weight), sharing)


def _branched(
    group: Group, most: int, rule: tuple[int, float, float], sharing: Sharing
) -> Generator[Any, Any, Credit]:
    leaves = list(group.episodes)
    turn = 1
    while len(leaves) < most and any(leaf.num_turns > turn for leaf in scored(leaves)):
        chosen = _eager(group, leaves, turn, rule)[: most - len(leaves)]
        if chosen:
            leaves += yield chosen
        turn += 1
    missing = _from_the_start(group, most - len(leaves))
    if missing:
        leaves += yield missing
    advantages = standardised(outcomes(leaves))
    if sharing == "soft":
        return leaf_credit(group, leaves, advantages)
    tree = grown(leaves)
    kept = ~np.isnan(outcomes(leaves))
    return node_credit(group, leaves, tree, tree.means(advantages[kept]))


def _eager(
    group: Group, leaves: Sequence[Episode], turn: int, rule: tuple[int, float, float]
) -> list[Fork]:
    """The branches at a turn, most eager first; forks of earlier turns have theirs too."""
    beam, base, weight = rule
    met = [leaf for leaf in scored(leaves) if leaf.num_turns > turn]
    entropies = [needed("arpo", leaf, "first_entropy") for leaf in met]
    gained = np.array([entropy[turn] - entropy[0] for entropy in entropies])
    found = []
    for lane in range(beam - 1):
        left = coins(group, [(leaf, turn) for leaf in met], lane) - weight * gained
        found += [(left[i], leaf.name, lane, leaf) for i, leaf in enumerate(met) if left[i] <= base]
    return [branch(leaf, turn) for *_, leaf in sorted(found, key=lambda one: one[:3])]


def _from_the_start(group: Group, number: int) -> list[Fork]:
    """New plays of the task: turn 0 sampled anew, episodes in row order, again and again."""
    starts = sorted(scored(group.episodes), key=lambda episode: episode.row)
    return [branch(starts[k % len(starts)], 0) for k in range(number if starts else 0)]
