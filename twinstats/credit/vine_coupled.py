"""Coupled VinePPO: the j-th sample of the value at every turn of an episode has luck j."""

from collections.abc import Generator
from typing import Any

from twinstats.credit._checks import at_most_forks, count
from twinstats.credit.vine import valued
from twinstats.episodes import RESAMPLE, Credit, Episode, Fork, Group


def vine_coupled(group: Group, *, rollouts: int = 9) -> Generator[Any, Any, Credit]:
    """Credit A_t = V(s_{t+1}) - V(s_t), both values from the same draws of luck.

    V(s_t) is the mean outcome of `rollouts` forks that resample turn t and all that follows; fork j
    of every turn of an episode draws from luck j, so a turn after both states is decided by the
    same noise in both. Each value keeps its law: unbiased for the advantage, as `vine` is; only
    Cov(V(s_{t+1}), V(s_t)) is added, which lowers the variance where luck outlives a decision. The
    last credit, outcome - V(s_T-1), is `vine`'s in law: the outcome has the factual's luck.

    Inputs: branching with keyed noise. Cost and edge cases: as `vine`. Forks of one luck are
    dependent across turns, so the credits of an episode are too.

    Args:
        group: The rollouts of a task.
        rollouts: Draws of luck, and continuations of each state (as `vine`, default 9).

    Raises:
        ValueError: `rollouts` below 1 or above 65,535.

    Source: Kazemnejad et al., VinePPO, arXiv 2410.01679; the coupling is this project's.
    """
    count(rollouts=rollouts)
    at_most_forks(rollouts=rollouts)
    return valued(group, rollouts, _sample)


def _sample(episode: Episode, turn: int, number: int) -> Fork:
    return Fork(episode, turn, RESAMPLE, luck=number + 1)
