"""SPADER: discovered entities, rare ones above all, against the group at the same turn index."""

import math
from collections import Counter
from collections.abc import Hashable

import numpy as np

from twinstats.credit._checks import at_least_zero, probability
from twinstats.credit._states import by_row
from twinstats.credit.baseline import exact_mean, group_info, uncomparable
from twinstats.credit.inputs import needed, returns_to_go, task_constant
from twinstats.episodes import Credit, Episode, Group

_EPSILON = 1e-6  # added to the variance, as published


def spader(
    group: Group,
    *,
    discount: float = 0.9,
    alpha: float = 1.0,
    beta: float = 4.0,
    decay: float = 1.0,
    cost: float = 0.01,
    free_steps: int = 100,
    ramp_steps: int = 100,
    final_weight: float = 1.0,
) -> Credit:
    """Credit A_it = (G_it - mean_t) / sqrt(variance_t + 1e-6) over all members at turn index t.

    G_it = sum over k >= t of discount^(k - t) * r_ik, and 0 for a member that has ended: it counts
    in mean and (population) variance. r_it = (1 / |targets|) * (sum over the targets that turn t
    found first in its episode of [alpha + beta * exp(-decay * (N - 1))] - cost * calls), N being
    how many members found that target; the last turn also gets final_weight * outcome.

    Inputs: need `entities` (the targets found so far, one set a state), and
    `task.info["entities"]`, all targets. Cost: none. The scale does not estimate the advantage.
    Ours: the outcome stands for the final answer's F1; a turn's calls are `Turn.info["calls"]`
    where there, else 1 for every turn but the last. No targets: discovery is worth 0. All returns
    of a turn index equal (outcomes and discoveries): exactly 0. No success: discoveries still
    count. A group of one: null, with a reason in `info`; the one scored episode of several: 0. A
    failed episode: null, in no mean, and its discoveries make nothing less rare.

    Args:
        group: The rollouts of a task.
        discount: Of the returns (published .9).
        alpha: For any target found (published 1).
        beta: More for one that nobody else found (published 4).
        decay: How fast that fades with the number of finders (published 1).
        cost: Of a call, in full from step `free_steps + ramp_steps` on (published .01).
        free_steps: Steps of the run without a cost (published 100).
        ramp_steps: Steps over which the cost then grows (published 100).
        final_weight: Of the outcome (published 1).

    Raises:
        ValueError: No `entities` for an episode or its task, or an option out of range.

    Source: SPADER, arXiv 2606.00593; github.com/KhanCold/spader (`qampari_spader_step.py`,
    `spader_step.py`).
    """
    probability(discount=discount)
    at_least_zero(alpha=alpha, beta=beta, decay=decay, cost=cost, final_weight=final_weight)
    at_least_zero(free_steps=free_steps, ramp_steps=ramp_steps)
    targets = frozenset(task_constant("spader", group.task, "entities"))
    for episode in group.episodes:
        needed("spader", episode, "entities")
    if (credit := uncomparable(group)) is not None:
        return credit
    episodes = by_row(group)
    found = [_first_found(episode, targets) for episode in episodes]
    finders = Counter(target for own in found for target in frozenset().union(*own))
    worth = {t: alpha + beta * math.exp(-decay * (n - 1)) for t, n in finders.items()}
    price = cost * _ramp(group.step - free_steps, ramp_steps)
    returns = np.zeros((len(episodes), max(episode.num_turns for episode in episodes)))
    for row, (episode, own) in enumerate(zip(episodes, found, strict=True)):
        rewards = [
            math.fsum([*(worth[target] for target in new), -price * calls]) / max(len(targets), 1)
            for new, calls in zip(own, _calls(episode), strict=True)
        ]
        assert episode.outcome is not None
        rewards[-1] += final_weight * episode.outcome
        returns[row, : episode.num_turns] = returns_to_go(np.array(rewards), discount)
    scaled = np.stack([_scaled(column) for column in returns.T], axis=1)
    rows = {id(episode): own for episode, own in zip(episodes, scaled, strict=True)}
    values = [rows.get(id(e), np.full(e.num_turns, np.nan))[: e.num_turns] for e in group.episodes]
    return Credit(episodes=group.episodes, values=values, info=group_info(group))


def _first_found(episode: Episode, targets: frozenset[Hashable]) -> list[frozenset[Hashable]]:
    states = [frozenset(state) & targets for state in needed("spader", episode, "entities")]
    known = states[0]
    new = []
    for state in states[1:]:
        new.append(state - known)
        known |= state
    return new


def _calls(episode: Episode) -> list[int]:
    *turns, last = episode.turns
    return [*(turn.info.get("calls", 1) for turn in turns), last.info.get("calls", 0)]


def _ramp(elapsed: int, ramp_steps: int) -> float:
    """Share of the cost that is due: 0 before, 1 after, a line between."""
    if 0 <= elapsed < ramp_steps:
        return elapsed / ramp_steps
    return float(elapsed >= 0)


def _scaled(column: np.ndarray) -> np.ndarray:
    deviations = column - exact_mean(column)
    return deviations / math.sqrt(math.fsum(deviations**2) / len(column) + _EPSILON)
