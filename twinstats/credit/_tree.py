"""Trees of leaves: a group's episodes, their forks, and the turns that leaves share.

A leaf is a finished episode, a node is a turn as it was sampled: the episode that owns it, and its
number. Leaves out which turns a method branches at, and how it values nodes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from twinstats.credit import _coins
from twinstats.credit.baseline import exact_mean, group_info
from twinstats.episodes import FRESH, RESAMPLE, Credit, Episode, Fork, Group

Place = tuple[Episode, int]
"""An episode and one of its turns."""

ROOT = -1
"""Number of the state before turn 0, where no turn has been sampled yet."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tree:
    """Scored leaves and the nodes on their paths, parents before children.

    Attributes:
        leaves: The scored leaves.
        paths: The nodes of each leaf's turns.
        places: Each node's owner and turn.
        parents: The node before each node, or `ROOT`.
        below: The leaves that pass through each node, by their index.
    """

    leaves: Sequence[Episode]
    paths: Sequence[Sequence[int]]
    places: Sequence[Place]
    parents: Sequence[int]
    below: Sequence[Sequence[int]]

    @property
    def num_leaves(self) -> np.ndarray:
        """How many leaves pass through each node."""
        return np.array([len(leaves) for leaves in self.below], np.int64)

    def children(self) -> list[list[int]]:
        """The children of each node, and last, where `ROOT` points, those of the root."""
        found: list[list[int]] = [[] for _ in range(len(self.places) + 1)]
        for node, parent in enumerate(self.parents):
            found[parent].append(node)
        return found

    def per_node(self, read: Callable[[Episode], np.ndarray]) -> np.ndarray:
        """What `read` gives for each turn of an episode, as each node's owner has it."""
        known = {id(leaf): read(leaf) for leaf in self.leaves}
        return np.array([known[id(owner)][turn] for owner, turn in self.places])

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean over the leaves through each node of `values`, one entry a leaf."""
        return np.array([exact_mean(values[list(leaves)]) for leaves in self.below])


def scored(leaves: Iterable[Episode]) -> list[Episode]:
    """The leaves that did not fail."""
    return [leaf for leaf in leaves if leaf.outcome is not None]


def grown(leaves: Iterable[Episode]) -> Tree:
    """The tree of the scored leaves; a parent has to come before its forks."""
    kept = scored(leaves)
    numbers: dict[tuple[int, int], int] = {}
    places: list[Place] = []
    parents: list[int] = []
    below: list[list[int]] = []
    paths = []
    for index, leaf in enumerate(kept):
        path: list[int] = []
        for turn in range(leaf.num_turns):
            owner = leaf.owner(turn)
            node = numbers.setdefault((id(owner), turn), len(places))
            if node == len(places):
                places.append((owner, turn))
                parents.append(path[-1] if path else ROOT)
                below.append([])
            below[node].append(index)
            path.append(node)
        paths.append(path)
    return Tree(leaves=kept, paths=paths, places=places, parents=parents, below=below)


def branch(episode: Episode, turn: int) -> Fork:
    """Samples a turn and its tail anew, from the oldest episode in which the turn's state stood."""
    while episode.fork is not None and turn <= episode.fork.turn:
        episode = episode.fork.episode
    return Fork(episode, turn, RESAMPLE, FRESH, alternative=None)


def coins(group: Group, places: Sequence[Place], lane: int = 0) -> np.ndarray:
    """A uniform in (0, 1) for each place, keyed: the order of places or leaves changes no coin."""
    return _coins.coins(group, places, _coins.TREE, lane)


def turn_surprisals(method: str, episode: Episode) -> np.ndarray:
    """Mean -logprob of each turn's tokens, nats.

    Raises:
        ValueError: A turn whose log-probability is not known.
    """
    values = -episode.column("logprob") / np.maximum(episode.column("num_tokens"), 1)
    return _known(method, episode, values, "log-probability")


def turn_entropies(method: str, episode: Episode) -> np.ndarray:
    """Entropy of each turn, nats a token; where it is not known, the turn's mean -logprob.

    Raises:
        ValueError: A turn of which neither is known.
    """
    entropy = episode.column("entropy")
    tokens = np.maximum(episode.column("num_tokens"), 1)
    values = np.where(np.isnan(entropy), -episode.column("logprob") / tokens, entropy)
    return _known(method, episode, values, "entropy or log-probability")


def softmax_mean(values: np.ndarray, heights: np.ndarray) -> float:
    """Mean of v with weights exp(h): sums exactly rounded, equal values give that very value."""
    if values.max() == values.min():
        return float(values[0])
    weights = np.exp(heights - heights.max())
    return math.fsum(values * weights) / math.fsum(weights)


def leaf_credit(group: Group, leaves: Sequence[Episode], advantages: np.ndarray) -> Credit:
    """Gives every turn on a leaf's path the leaf's advantage.

    A turn that several leaves share is trained once with each of them.
    """
    advantage = {id(leaf): a for leaf, a in zip(leaves, advantages, strict=True)}
    episodes = _trained(group, leaves)
    values = [np.full(e.num_turns, advantage[id(e)]) for e in episodes]
    return Credit(episodes=episodes, values=values, info=tree_info(group, leaves))


def node_credit(
    group: Group, leaves: Sequence[Episode], tree: Tree, advantages: np.ndarray
) -> Credit:
    """Gives each node its advantage once, at its owner, shared by the number of leaves through it.

    The gradient is that of training every leaf's whole path with the advantages of its nodes, at
    the price of training each sampled token once.
    """
    episodes = _trained(group, leaves)
    row = {id(episode): index for index, episode in enumerate(episodes)}
    values = [np.full(episode.num_turns, np.nan) for episode in episodes]
    share = [np.full(episode.num_turns, np.nan) for episode in episodes]
    for (owner, turn), value, count in zip(tree.places, advantages, tree.num_leaves, strict=True):
        values[row[id(owner)]][turn] = value
        share[row[id(owner)]][turn] = count
    return Credit(episodes=episodes, values=values, share=share, info=tree_info(group, leaves))


def tree_info(group: Group, leaves: Sequence[Episode]) -> dict[str, Any]:
    """The counts of `group_info`, over all leaves, and how many there are."""
    return group_info(replace(group, episodes=leaves)) | {"leaves": len(leaves)}


def _trained(group: Group, leaves: Sequence[Episode]) -> list[Episode]:
    return [*group.episodes, *(leaf for leaf in scored(leaves) if leaf.fork is not None)]


def _known(method: str, episode: Episode, values: np.ndarray, what: str) -> np.ndarray:
    if np.isnan(values).any():
        turn = int(np.flatnonzero(np.isnan(values))[0])
        raise ValueError(
            f"Method {method!r} needs the {what} of every turn (from the engine that sampled it), "
            f"which turn {turn} of episode {episode.name} lacks."
        )
    return values
