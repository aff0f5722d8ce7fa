"""Plays a credit method in a world and sets its credit beside the exact advantage.

Leaves out what a study does with the errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinstats.credit import assign
from twinstats.credit.registry import Method
from twinstats.episodes import Credit, Group, group_by_task
from twinstats.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """The credit of a step, one entry a turn that got any.

    Attributes:
        group: Number of the turn's group.
        place: Turn, state and action: three rows.
        value: The credit.
        advantage: The exact advantage.
        num_groups: Groups of the step.
        num_episodes: Episodes of the step.
        factual_tokens: Tokens of the episodes.
        auxiliary_tokens: Tokens of the forks.
    """

    group: np.ndarray
    place: np.ndarray
    value: np.ndarray
    advantage: np.ndarray
    num_groups: int
    num_episodes: int
    factual_tokens: int
    auxiliary_tokens: int

    @property
    def error(self) -> np.ndarray:
        """Credit minus advantage."""
        error: np.ndarray = self.value - self.advantage
        return error


def score_step(world: Any, method: Method, *, num_tasks: int, rollouts: int, step: int) -> Scored:
    """Plays one step, lets the method credit it and learn from it, and scores the credit."""
    groups = play_groups(world, num_tasks=num_tasks, rollouts=rollouts, step=step)
    return score(world, credit_groups(world, method, groups, step=step))


def play_groups(world: Any, *, num_tasks: int, rollouts: int, step: int) -> list[Group]:
    """The groups of a step, the same whichever method credits them."""
    episodes = world.play(world.tasks(num_tasks), rollouts, step)
    return group_by_task(episodes, seed=world.seed, step=step)


def credit_groups(
    world: Any, method: Method, groups: Sequence[Group], *, step: int
) -> list[Credit]:
    """What the method makes of a step's groups; it learns from the step."""
    credits = assign(world, groups, method)
    method.observe(step, credits)
    return credits


def score(world: Any, credits: Sequence[Credit]) -> Scored:
    """Credit and exact advantage of all credited turns of the groups' own episodes."""
    own = [
        (number, episode, values)
        for number, credit in enumerate(credits)
        for episode, values in zip(credit.episodes, credit.values, strict=True)
        if episode.fork is None
    ]
    forks = [fork for credit in credits for fork in credit.info["forks"]]
    values = np.concatenate([values for _, _, values in own])
    kept = ~np.isnan(values)
    return Scored(
        group=np.repeat([number for number, _, _ in own], [len(v) for _, _, v in own])[kept],
        place=np.concatenate([world.places(episode) for _, episode, _ in own], axis=1)[:, kept],
        value=values[kept],
        advantage=np.concatenate([world.truth(episode)[2] for _, episode, _ in own])[kept],
        num_groups=len(credits),
        num_episodes=len(own),
        factual_tokens=sum(episode.sampled for _, episode, _ in own),
        auxiliary_tokens=sum(fork.sampled for fork in forks),
    )


def can_play(world: Any, method: Method) -> bool:
    """Whether the world has everything that the method needs."""
    try:
        for need in method.needs:
            world.provide(need.name, [])
    except UsageError:
        return False
    return True


def score_sum(world: Any, place: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Sum over turns of weight * (one-hot of the action - policy), by (turn, state, action).

    Args:
        world: Its policy.
        place: Turn, state and action: three rows.
        weight: One entry a turn.
    """
    policy = world.policy_table()
    turn, state, action = place
    flow = np.zeros(policy.shape)
    np.add.at(flow, (turn, state, action), weight)
    reached = flow.sum(axis=-1, keepdims=True)
    return np.asarray(flow - reached * policy)


def trained_gradient(world: Any, credits: Sequence[Credit]) -> np.ndarray:
    """`score_sum` of share * credit over all trained turns, those of trained forks too.

    A turn without credit is not trained. Token weights have mean 1 within a turn, so that a turn
    of one decision ignores them.
    """
    trained = [
        (episode, values, np.ones(len(values)) if credit.share is None else credit.share[index])
        for credit in credits
        for index, (episode, values) in enumerate(zip(credit.episodes, credit.values, strict=True))
    ]
    weight = np.concatenate([values * share for _, values, share in trained])
    place = np.concatenate([world.places(episode) for episode, _, _ in trained], axis=1)
    return score_sum(world, place, np.nan_to_num(weight))
