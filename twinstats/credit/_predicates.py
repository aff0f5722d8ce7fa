"""Predicates of a task and how far each is from the goal, as `dars` weighs them."""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from twinstats.credit.inputs import task_constant
from twinstats.episodes import Task

Heavier = Literal["near", "far"]
State = Collection[Hashable]


class Predicates(NamedTuple):
    """Each predicate's weight, and what builds on it."""

    weights: Mapping[Hashable, float]
    dependants: Mapping[Hashable, Sequence[Hashable]]


def predicates(method: str, task: Task, *, decay: float, heavier: Heavier) -> Predicates:
    """The predicates of a task's graph and goal.

    `task.info["predicate_graph"]` are pairs (u, v), u a precondition of v; `task.info["goal"]` the
    goal predicates. A weight is decay^distance / number of predicates, the distance in edges to the
    nearest goal ("near"), or what is missing to the largest one ("far"); 0 without a way.

    Raises:
        ValueError: Either is missing, or the goal is empty.
    """
    pairs = list(task_constant(method, task, "predicate_graph"))
    goal = list(task_constant(method, task, "goal"))
    if not goal:
        raise ValueError(f"`task.info['goal']` of task {task.id!r} must not be empty.")
    found = [*goal, *(p for pair in pairs for p in pair)]
    number = {p: index for index, p in enumerate(dict.fromkeys(found))}
    tails, heads = [number[u] for u, _ in pairs], [number[v] for _, v in pairs]
    backward = csr_array((np.ones(len(pairs)), (heads, tails)), shape=(len(number), len(number)))
    goals = sorted({number[p] for p in goal})
    distance = dijkstra(backward, indices=goals, unweighted=True, min_only=True)
    reachable = np.isfinite(distance)
    exponent = distance if heavier == "near" else distance[reachable].max() - distance
    weight = np.where(reachable, decay ** np.where(reachable, exponent, 0.0), 0.0) / len(number)
    dependants: dict[Hashable, list[Hashable]] = {}
    for u, v in pairs:
        dependants.setdefault(u, []).append(v)
    return Predicates(dict(zip(number, weight.tolist(), strict=True)), dependants)


def potential(known: Predicates, state: State) -> float:
    """Minus the weight of all predicates that do not hold."""
    return -math.fsum(weight for p, weight in known.weights.items() if p not in state)


def broken(known: Predicates, before: State, after: State) -> float:
    """Weight of the preconditions that no longer hold while something that builds on them waits."""
    return math.fsum(
        known.weights[p]
        for p, dependants in known.dependants.items()
        if p in before and p not in after and any(v not in after for v in dependants)
    )
