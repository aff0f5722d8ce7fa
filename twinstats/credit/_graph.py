"""The graph of a group's states: what the empirical policy is worth in each, and hops between them.

Built from the group's episodes alone. Leaves out shortest ways (`graphgpo`).
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import spsolve

from twinstats.credit.inputs import step_rewards
from twinstats.episodes import Episode


class Edges(NamedTuple):
    """All turns as edges, by number of their nodes: states first, then the ways to end.

    Attributes:
        tail: The state each turn was taken in.
        head: The state it led to, or an end.
        kind: Equal for turns with equal (tail, action, head).
        rewards: Reward of each turn, the last one's being the rest of the outcome.
        left: Turns of the episode still to come.
        num_states: How many states there are; larger numbers are ends.
    """

    tail: np.ndarray
    head: np.ndarray
    kind: np.ndarray
    rewards: np.ndarray
    left: np.ndarray
    num_states: int


def edges(episodes: Sequence[Episode], states: Sequence[Hashable]) -> Edges:
    """The turns of scored episodes as edges; ends with equal final state and reward are one."""
    rewards = [step_rewards(episode) for episode in episodes]
    left = np.concatenate([np.arange(episode.num_turns)[::-1] for episode in episodes])
    tail = numbered(states)
    size = int(tail.max()) + 1
    ends = [(e.final_state, own[-1]) for e, own in zip(episodes, rewards, strict=True)]
    head = np.roll(tail, -1)
    head[left == 0] = size + numbered(ends)
    actions = [turn.action for episode in episodes for turn in episode.turns]
    kind = numbered(list(zip(tail.tolist(), actions, head.tolist(), strict=True)))
    return Edges(tail, head, kind, np.concatenate(rewards), left, size)


def numbered(labels: Sequence[Hashable]) -> np.ndarray:
    """Each label's number, in order of first appearance.

    >>> numbered(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    number = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    return np.array([number[label] for label in labels])


def residuals(graph: Edges, discount: float) -> np.ndarray:
    """Reward + discount * V(next) - V(state) of every turn.

    V solves V(u) = mean over the turns taken in u of (r + discount * V(next)); an end is worth what
    the last turn earned, so that this is discounted once.
    """
    inner = graph.left > 0
    gained = np.where(inner, 1.0, discount) * graph.rewards
    share = 1.0 / np.bincount(graph.tail)
    moves = csr_array(
        (discount * share[graph.tail[inner]], (graph.tail[inner], graph.head[inner])),
        shape=(graph.num_states, graph.num_states),
    )
    constant = share * np.bincount(graph.tail, weights=gained)
    value = np.zeros(int(graph.head.max()) + 1)
    value[: graph.num_states] = spsolve((eye_array(graph.num_states) - moves).tocsc(), constant)
    result: np.ndarray = gained + discount * value[graph.head] - value[graph.tail]
    return result


def traces(graph: Edges, values: np.ndarray, factor: float) -> np.ndarray:
    """Sum over k of factor^k times the mean value of the distinct edges exactly k hops on.

    k runs to the number of turns left. An end has no edges.
    """
    size = graph.num_states
    _, first, kind = np.unique(graph.kind, return_index=True, return_inverse=True)
    means = np.bincount(kind, weights=values) / np.bincount(kind)
    tails = graph.tail[first]
    columns = np.stack([np.bincount(tails, weights=means), np.bincount(tails)], axis=1)
    inner = graph.left > 0
    steps = csr_array(
        (np.ones(int(inner.sum())), (graph.tail[inner], graph.head[inner])), shape=(size, size)
    )
    reached = eye_array(size, format="csr")
    total = np.zeros(int(graph.head.max()) + 1)
    result = np.zeros(len(values))
    for hop in range(1, int(graph.left.max()) + 1):
        sums, counts = (reached @ columns).T
        total[:size] += factor**hop * sums / np.maximum(counts, 1.0)
        ripe = graph.left == hop
        result[ripe] = total[graph.head[ripe]]
        reached = steps @ reached
        reached.data[:] = 1.0
    return result
