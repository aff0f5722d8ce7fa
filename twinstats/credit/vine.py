"""VinePPO: differences of Monte Carlo values of the states along an episode."""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from twinstats.credit._checks import at_most_forks, count
from twinstats.credit.baseline import exact_mean, group_info, outcomes
from twinstats.episodes import FRESH, RESAMPLE, Credit, Episode, Fork, Group


def vine(group: Group, *, rollouts: int = 9) -> Generator[Any, Any, Credit]:
    """Credit A_t = V(s_{t+1}) - V(s_t) from independent continuations of every state.

    V(s_t) is the mean outcome of `rollouts` forks that resample turn t and all that follows
    (outcomes include earlier rewards, so step rewards need no term of their own). After the last
    turn V is the outcome itself. Unbiased for the advantage.

    Inputs: branching. Cost: (number of turns) * rollouts tails, the largest of the simple methods.
    All outcomes equal: exactly 0. No member of a group is compared with another, so a group of one
    is nothing special. A failed fork is left out of its mean; a state without any is null, and so
    are its two turns. A failed episode: its last turn is null.

    Left out: that the repository fills values backwards behind a cut-off and before the last step,
    and its penalty for unfinished continuations.

    Args:
        group: The rollouts of a task.
        rollouts: Continuations of each state (K, published default 9).

    Raises:
        ValueError: `rollouts` below 1 or above 65,535.

    Source: Kazemnejad et al., VinePPO, arXiv 2410.01679; a turn is our step.
    """
    count(rollouts=rollouts)
    at_most_forks(rollouts=rollouts)
    return valued(group, rollouts, _sample)


def _sample(episode: Episode, turn: int, number: int) -> Fork:
    return Fork(episode, turn, RESAMPLE, FRESH, alternative=number)


def valued(
    group: Group, rollouts: int, sample: Callable[[Episode, int, int], Fork]
) -> Generator[Any, Any, Credit]:
    """What `vine` and `vine_coupled` share: V(s_{t+1}) - V(s_t), `sample` naming the forks."""
    forks = [
        [
            [sample(episode, turn, number) for number in range(rollouts)]
            for turn in range(episode.num_turns)
        ]
        for episode in group.episodes
    ]
    played = yield forks
    credits = []
    for episode, states in zip(group.episodes, played, strict=True):
        last = outcomes([episode])
        values = np.array([exact_mean(outcomes(continuations)) for continuations in states])
        credits.append(np.diff(np.concatenate([values, last])))
    return Credit(episodes=group.episodes, values=credits, info=group_info(group))
