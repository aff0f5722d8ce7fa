"""AT2PO: a tree grown where the policy is unsure, valued from its leaves upwards."""

from collections.abc import Generator
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
    softmax_mean,
    turn_entropies,
)
from twinstats.credit.baseline import exact_mean, outcomes, standardised
from twinstats.episodes import Credit, Fork, Group
from twinstats.errors import unknown

NodeValue = Literal["child_softmax", "child_mean", "leaf_mean"]
Advantage = Literal["node_value", "diff_parent", "diff_global", "diff_localglobal"]


def at2po(
    group: Group,
    *,
    beam: int = 6,
    rounds: int = 2,
    penalty: float = 0.05,
    node_value: NodeValue = "child_softmax",
    advantage: Advantage = "node_value",
) -> Generator[Any, Any, Credit]:
    """Credit A = V of the turn's node (or V minus its parent's, the root's, or both minus V).

    A leaf's V is z(R) = (R - mean) / (std + 1e-6) over all leaves (population std). Above it V =
    sum_c V_c exp(H_c) / sum_c exp(H_c) over the children c with entropy H_c, or their plain mean,
    or the mean over leaves. "diff_localglobal" is (V - V_root) + (V - V_parent).

    All of the group's episodes and their forks are one tree, whose root is the task. In every
    round the `beam` turns with the largest H - penalty * (siblings - 1) are sampled anew, last
    turns excepted; siblings counts the turns sampled at the same state, the turn itself included.
    Ties are broken by keyed coins; with fewer turns than `beam` the list is gone through again.

    Inputs: branching; each turn's entropy, nats a token, or where it is null the mean -logprob of
    the turn's tokens (the repository's estimate). Cost: beam * rounds tails a group. The scale
    does not estimate the advantage, and choosing turns by what was sampled there biases. A shared
    turn stands once, at its owner, with `share` = the leaves through it: the published loss trains
    it with each. All outcomes equal: exactly 0. A single leaf: null, with a reason. A failed leaf:
    null, left out of the tree.

    Args:
        group: The rollouts of a task (published 10).
        beam: Turns sampled anew in each round.
        rounds: Expansion rounds.
        penalty: Taken off a turn's entropy for each further sibling.
        node_value: How a node's value comes from those below.
        advantage: How a turn's credit comes from the values.

    Raises:
        ValueError: A negative number, more than 65,535 forks, an unknown word, or a turn without
            entropy and logprob.

    Source: AT2PO, arXiv 2601.04767; repository zzfoutofspace/ATPO. Its turn-level GSPO ratio
    belongs to the loss, and drawing 22 of the leaves changes nothing at the defaults.
    """
    at_least_zero(beam=beam, rounds=rounds, penalty=penalty)
    at_most_forks(beam=beam, rounds=rounds)
    if node_value not in get_args(NodeValue):
        raise unknown("node_value", node_value, get_args(NodeValue))
    if advantage not in get_args(Advantage):
        raise unknown("advantage", advantage, get_args(Advantage))
    return _expanded(group, (beam, rounds, penalty), node_value, advantage)


def _expanded(
    group: Group, size: tuple[int, int, float], node_value: NodeValue, advantage: Advantage
) -> Generator[Any, Any, Credit]:
    beam, rounds, penalty = size
    leaves = list(group.episodes)
    for _ in range(rounds if beam else 0):
        leaves += yield _unsure(group, grown(leaves), beam, penalty)
    tree, results = grown(leaves), outcomes(leaves)
    values = _values(tree, standardised(results, ddof=0)[~np.isnan(results)], node_value)
    return node_credit(group, leaves, tree, _advantages(tree, values, advantage))


def _unsure(group: Group, tree: Tree, beam: int, penalty: float) -> list[Fork]:
    """Branches at the turns with the best scores; last turns have nothing after them to explore."""
    children = tree.children()
    siblings = np.array([len(children[parent]) for parent in tree.parents])
    score, coin = _entropies(tree) - penalty * (siblings - 1), coins(group, tree.places)
    inner = [node for node in range(len(tree.places)) if children[node]]
    ranked = sorted(inner, key=lambda node: (-score[node], coin[node]))
    return [branch(*tree.places[ranked[k % len(ranked)]]) for k in range(beam if ranked else 0)]


def _entropies(tree: Tree) -> np.ndarray:
    return tree.per_node(lambda leaf: turn_entropies("at2po", leaf))


def _values(tree: Tree, leaf_values: np.ndarray, rule: NodeValue) -> np.ndarray:
    """The value of each node, and last, where `ROOT` points, the root's."""
    values = np.full(len(tree.places) + 1, np.nan)
    heights, children = _entropies(tree) * (rule == "child_softmax"), tree.children()
    values[[path[-1] for path in tree.paths]] = leaf_values
    if rule == "leaf_mean" and len(leaf_values):
        return np.append(tree.means(leaf_values), exact_mean(leaf_values))
    for node in [*reversed(range(len(tree.places))), ROOT]:
        if below := children[node]:
            values[node] = softmax_mean(values[below], heights[below])
    return values


def _advantages(tree: Tree, values: np.ndarray, rule: Advantage) -> np.ndarray:
    own = values[:-1]
    local, overall = own - values[np.array(tree.parents, np.int64)], own - values[ROOT]
    found = {"node_value": own, "diff_parent": local, "diff_global": overall}
    return np.asarray(found.get(rule, overall + local))
