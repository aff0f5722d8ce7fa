"""TreeRL: leave-one-out outcomes, summed over the leaves below each turn."""

import math
from collections.abc import Generator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from twinstats.credit._checks import at_least_zero, at_most_forks
from twinstats.credit._tree import (
    ROOT,
    Tree,
    branch,
    coins,
    grown,
    node_credit,
    turn_surprisals,
)
from twinstats.credit.baseline import exact_mean, leave_one_out, outcomes
from twinstats.episodes import Credit, Episode, Fork, Group
from twinstats.errors import unknown

Weighting = Literal["sqrt", "count", "paper"]
Centring = Literal["token", "step", "none"]


def treerl(
    group: Group,
    *,
    points: int = 2,
    branches: int = 2,
    rounds: int = 1,
    weighting: Weighting = "sqrt",
    centring: Centring = "token",
) -> Generator[Any, Any, Credit]:
    """Credit A(s) = (S(s) - m |L(s)|) / sqrt(|L(s)|), S(s) = sum of r over the leaves L(s) below.

    r_i = R_i - mean of the other leaves' outcomes. m = sum_s w(s) S(s) / sum_s w(s) |L(s)| with
    w the turn's tokens ("token"), or 1 ("step"), or m = 0 ("none"). With "count" the divisor is
    |L(s)|. With "paper", A(s) = ([V(s) - V(root)] + [V(s) - V(parent)]) / sqrt(|L(s)|), V the mean
    outcome of the leaves below, parent the last branched state above s; nothing is centred.

    Each of the group's episodes starts a tree; all trees hang on the task. In every round the
    `points` turns of each tree with the largest mean -logprob and no sibling yet are sampled anew,
    `branches` times each. Keyed coins break ties.

    Inputs: branching; each turn's log-probability. Cost: points * branches * rounds tails an
    episode. The scale does not estimate the advantage; counting leaves and choosing turns by what
    was sampled there bias. A shared turn stands once, at its owner, with `share` = |L|: the
    published loss trains it with every leaf. All outcomes equal: exactly 0. A single scored leaf:
    null, with a reason. A failed leaf: null, left out of the tree.

    Reconstructed: the paper branches at tokens, this at turns. All leaves are trained, not 16.

    Args:
        group: The rollouts of a task.
        points: Turns of each tree chosen in each round.
        branches: Times each of them is sampled anew.
        rounds: Expansion rounds.
        weighting: Divisor, or the paper's form.
        centring: How the mean that is taken off weighs the turns.

    Raises:
        ValueError: A negative number, more than 65,535 forks, an unknown word, or a turn without
            log-probability.

    Source: Hou et al., TreeRL, ACL 2025, arXiv 2506.11902; repository THUDM/TreeRL.
    """
    at_least_zero(points=points, branches=branches, rounds=rounds)
    at_most_forks(points=points, branches=branches, rounds=rounds)
    if weighting not in get_args(Weighting):
        raise unknown("weighting", weighting, get_args(Weighting))
    if centring not in get_args(Centring):
        raise unknown("centring", centring, get_args(Centring))
    return _expanded(group, (points, branches, rounds), weighting, centring)


def _expanded(
    group: Group, size: tuple[int, int, int], weighting: Weighting, centring: Centring
) -> Generator[Any, Any, Credit]:
    points, branches, rounds = size
    trees = [[episode] for episode in group.episodes]
    for _ in range(rounds if points * branches else 0):
        played = yield [_surprising(group, own, points) * branches for own in trees]
        for own, forks in zip(trees, played, strict=True):
            own += forks
    tree = grown(leaves := [leaf for own in trees for leaf in own])
    kept = outcomes(tree.leaves)
    found = _paper(tree, kept) if weighting == "paper" else _sums(tree, kept, weighting, centring)
    return node_credit(group, leaves, tree, found)


def _surprising(group: Group, leaves: Sequence[Episode], points: int) -> list[Fork]:
    """Branches at the turns of a tree with the largest mean -logprob that have no sibling yet."""
    tree = grown(leaves)
    children, coin = tree.children(), coins(group, tree.places)
    surprisal = tree.per_node(lambda leaf: turn_surprisals("treerl", leaf))
    alone = [node for node, up in enumerate(tree.parents) if len(children[up]) == 1]
    ranked = sorted(alone, key=lambda node: (-surprisal[node], coin[node]))
    return [branch(*tree.places[node]) for node in ranked[:points]]


def _sums(tree: Tree, kept: np.ndarray, weighting: Weighting, centring: Centring) -> np.ndarray:
    relative, number = leave_one_out(kept), tree.num_leaves
    sums = np.array([math.fsum(relative[list(below)]) for below in tree.below])
    if centring != "none" and len(sums):
        tokens = np.array([owner.turns[turn].num_tokens for owner, turn in tree.places])
        weights = tokens if centring == "token" else np.ones(len(sums))
        sums -= math.fsum(weights * sums) / math.fsum(weights * number) * number
    return np.asarray(sums / (np.sqrt(number) if weighting == "sqrt" else number))


def _paper(tree: Tree, kept: np.ndarray) -> np.ndarray:
    if len(kept) < 2:
        return np.full(len(tree.places), np.nan)
    values, root, number = tree.means(kept), exact_mean(kept), tree.num_leaves
    above = np.full(len(values), root)
    for node, up in enumerate(tree.parents):
        if up != ROOT:
            above[node] = above[up] if number[node] == number[up] else values[up]
    return np.asarray(((values - root) + (values - above)) / np.sqrt(number))
