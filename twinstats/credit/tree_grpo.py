"""Tree-GRPO: outcomes standardised inside their own tree and among all trees of the task."""

from collections.abc import Generator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from twinstats.credit._checks import at_least_zero, at_most_forks, count
from twinstats.credit._tree import Place, branch, coins, leaf_credit, scored
from twinstats.credit.baseline import outcomes, standardised
from twinstats.episodes import Credit, Episode, Fork, Group
from twinstats.errors import unknown

Norm = Literal["tree", "tree_inner", "tree_2norm"]


def tree_grpo(
    group: Group, *, expansions: int = 2, rounds: int = 1, norm: Norm = "tree"
) -> Generator[Any, Any, Credit]:
    """Credit A_leaf = z(R among the leaves of its tree) + z(R among all leaves), on the whole path.

    z(x) = (x - mean) / (std + 1e-6), std with ddof=1. Each of the group's episodes is a tree. In
    every round each tree is continued from `expansions` of its states, drawn uniformly with
    replacement: the root, and the state after any turn but a last one. A turn that several leaves
    share is trained with each of them by that leaf's advantage, as published: `Credit.episodes`
    holds the group's, then the forks, all of them with the credit of their whole path.

    Inputs: branching. Cost: expansions * rounds tails an episode. The scale does not estimate the
    advantage. All outcomes equal: exactly 0. A tree of one leaf has no contrast: z = 0 inside it
    (the repository adds the outcome itself), and "tree_2norm" keeps its z among all; so without
    expansions both are GRPO. A group of one is one tree; a single leaf in all: null, with a reason.
    A failed leaf: null, left out of all means, and not continued.

    Args:
        group: The rollouts of a task (M of them; published 2).
        expansions: States continued in each tree and round (N).
        rounds: Rounds (L); later ones may continue forks of earlier ones.
        norm: "tree" the sum, "tree_inner" the first term only, "tree_2norm" z among all leaves,
            then z of that inside the tree.

    Raises:
        ValueError: `expansions` below 0, `rounds` below 1, either above 65,535, an unknown `norm`.

    Source: Ji et al., Tree-GRPO, arXiv 2509.21240, equations 6 and 7; repository
    AMAP-ML/Tree-GRPO. Its pruning to k leaves, and the reward "tree_diff", are left out.
    """
    at_least_zero(expansions=expansions)
    count(rounds=rounds)
    at_most_forks(expansions=expansions, rounds=rounds)
    if norm not in get_args(Norm):
        raise unknown("norm", norm, get_args(Norm))
    return _continued(group, expansions, rounds, norm)


def _continued(
    group: Group, expansions: int, rounds: int, norm: Norm
) -> Generator[Any, Any, Credit]:
    trees = [[episode] for episode in group.episodes]
    for number in range(rounds if expansions else 0):
        lanes = range(number * expansions, (number + 1) * expansions)
        played = yield [_drawn(group, tree, lanes) for tree in trees]
        for tree, forks in zip(trees, played, strict=True):
            tree += forks
    leaves = [leaf for tree in trees for leaf in tree]
    return leaf_credit(group, leaves, _advantages(trees, norm))


def _drawn(group: Group, tree: Sequence[Episode], lanes: range) -> list[Fork]:
    """Branches from states drawn with replacement, by coins of the tree's own episode."""
    states = [
        (leaf, turn)
        for leaf in scored(tree)
        for turn in range(leaf.fork.turn + 1 if leaf.fork else 0, leaf.num_turns)
    ]
    if not states:
        return []
    root: list[Place] = [(tree[0], 0)]
    drawn = [int(coins(group, root, lane)[0] * len(states)) for lane in lanes]
    return [branch(*states[min(index, len(states) - 1)]) for index in drawn]


def _advantages(trees: Sequence[Sequence[Episode]], norm: Norm) -> np.ndarray:
    """One entry a leaf, tree by tree."""
    own = [outcomes(tree) for tree in trees]
    among_all = standardised(np.concatenate(own))
    if norm == "tree_2norm":
        ends = np.cumsum([len(tree) for tree in trees])
        return np.concatenate([_inside(z, alone=1.0) for z in np.split(among_all, ends[:-1])])
    inside = np.concatenate([_inside(values, alone=0.0) for values in own])
    return np.asarray(inside + among_all * (norm == "tree"))


def _inside(values: np.ndarray, *, alone: float) -> np.ndarray:
    """Standardised inside a tree; one leaf alone, which has no contrast, is scaled by `alone`."""
    if np.sum(~np.isnan(values)) < 2:
        return values * alone
    return standardised(values)
