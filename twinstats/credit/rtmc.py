"""RTMC: Monte Carlo values of states and actions that rollouts of a task share by signature."""

import math
from collections.abc import Generator, Hashable, Sequence
from typing import Any

import numpy as np

from twinstats.credit._checks import at_least_zero, at_most_forks, probability
from twinstats.credit._tree import branch, coins, scored, tree_info
from twinstats.credit.baseline import centred, exact_mean, outcomes
from twinstats.credit.inputs import needed, returns_to_go, step_rewards
from twinstats.episodes import Credit, Episode, Fork, Group


def rtmc(
    group: Group, *, prior: float = 1.0, discount: float = 1.0, expansions: int = 0
) -> Generator[Any, Any, Credit]:
    """Credit A_t = Q(s_t, a_t) - V(s_t), with states and actions told apart by their signatures.

    Q(s, a) = mean return-to-go of first visits to (s, a), one an episode at most. V(s) =
    (sum of the returns-to-go of all visits to s + prior * V0) / (visits + prior), V0 = mean
    outcome of the group.

    By default nothing is forked: the published tree is the group itself, merged where signatures
    agree. With `expansions`, keyed random turns of each episode are sampled anew and add visits: a
    fork counts from its own turn on (its prefix was visited by its parent), and is trained there.

    Inputs: `signature`, a pair (state, action) a turn (on forks as well). Cost: expansions tails an
    episode. All outcomes equal, rewards at the end: exactly 0. A state visited once, with return
    G: prior / (1 + prior) * (G - V0), so the prior decides in small groups; with prior 0: exactly
    0. The one scored leaf of several: exactly 0; a group of one: null; both with a reason. A failed
    episode: null, and not visited.

    Reconstructed: the published prior is not known, nor its strength; a default of one visit is
    ours.

    Args:
        group: The rollouts of a task.
        prior: Visits that V0 counts for (m).
        discount: Of returns-to-go.
        expansions: Turns of each episode that are sampled anew.

    Raises:
        ValueError: A negative `prior`, `expansions` below 0 or above 65,535, `discount` outside
            [0, 1], or an episode without `signature`.

    Source: RTMC, arXiv 2604.11037, from notes and from GRAFT's appendix A.4. No repository.
    """
    at_least_zero(prior=prior, expansions=expansions)
    at_most_forks(expansions=expansions)
    probability(discount=discount)
    return _visited(group, prior, discount, expansions)


def _visited(
    group: Group, prior: float, discount: float, expansions: int
) -> Generator[Any, Any, Credit]:
    forks: list[Episode] = []
    if expansions:
        played = yield [_drawn(group, episode, expansions) for episode in scored(group.episodes)]
        forks = [fork for own in played for fork in scored(own)]
    leaves = [*group.episodes, *forks]
    alone = centred(outcomes(leaves)) if len(scored(leaves)) < 2 else np.full(len(leaves), np.nan)
    values = [np.full(leaf.num_turns, a) for leaf, a in zip(leaves, alone, strict=True)]
    info = tree_info(group, leaves)
    if len(scored(leaves)) > 1:
        _fill(values, leaves, exact_mean(outcomes(group.episodes)), prior, discount)
    return Credit(episodes=leaves, values=values, info=info)


def _drawn(group: Group, episode: Episode, expansions: int) -> list[Fork]:
    drawn = [coins(group, [(episode, 0)], lane)[0] for lane in range(expansions)]
    last = episode.num_turns - 1
    return [branch(episode, min(int(u * episode.num_turns), last)) for u in drawn]


def _fill(
    values: list[np.ndarray],
    leaves: Sequence[Episode],
    center: float,
    prior: float,
    discount: float,
) -> None:
    """Writes the credit of every visit; returns are relative to V0, so that equal ones are 0."""
    first: dict[tuple[Hashable, Hashable], list[float]] = {}
    every: dict[Hashable, list[float]] = {}
    visits = []
    for index, leaf in enumerate(leaves):
        if leaf.outcome is None:
            continue
        relative = returns_to_go(step_rewards(leaf), discount) - center
        seen = set()
        signatures = needed("rtmc", leaf, "signature")
        for turn in range(leaf.fork.turn if leaf.fork else 0, leaf.num_turns):
            state, action = signatures[turn]
            every.setdefault(state, []).append(relative[turn])
            if (state, action) not in seen:
                first.setdefault((state, action), []).append(relative[turn])
            seen.add((state, action))
            visits.append((index, turn, state, action))
    for index, turn, state, action in visits:
        quality = exact_mean(np.array(first[state, action]))
        value = math.fsum(every[state]) / (len(every[state]) + prior)
        values[index][turn] = quality - value
