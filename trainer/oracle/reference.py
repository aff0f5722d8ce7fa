"""The reference that an oracle study measures credit against: values from many fresh rollouts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.oracle.worlds import outcome_of
from twinstats.episodes import FRESH, RESAMPLE, Episode, Fork, World

FIRST_ALTERNATIVE = 2**15
"""Methods number their alternatives from 0: those of the reference are none of theirs."""

MOST_ROLLOUTS = 2**15 - 2
"""A noise key has room for no more."""

_AT_ONCE = 1024  # forks that are held at a time

# T turns of an episode, K rollouts of a state


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """An episode's credit by Monte Carlo, one entry a turn; NaN where too few rollouts are scored.

    Attributes:
        value: V(h_t), the mean outcome of fresh rollouts from the state before the turn.
        value_stderr: Its standard error.
        num_rollouts: Rollouts that have an outcome.
        advantage: V(h_t+1) - V(h_t); after the last turn V is the outcome.
        stderr: Standard error of the advantage; neighbours share a value, so errors of turns are
            dependent, but the sum of their squares is right.
    """

    value: np.ndarray
    value_stderr: np.ndarray
    num_rollouts: np.ndarray
    advantage: np.ndarray
    stderr: np.ndarray


def references(
    world: World, episodes: Sequence[Episode], outcomes: Sequence[str], *, rollouts: int
) -> dict[str, list[Reference]]:
    """By outcome, the reference of each episode, from `rollouts` fresh rollouts of every state.

    It reads scored rollouts only: one that failed is left out, so a value is the mean over those
    that did not, and where failing goes with how an episode ends it is that much off. The forks are
    dropped once their outcomes are read, some 1,000 at a time.
    """
    forks = (
        Fork(episode, turn, RESAMPLE, FRESH, alternative=FIRST_ALTERNATIVE + number)
        for episode in episodes
        for turn in range(episode.num_turns)
        for number in range(rollouts)
    )
    sizes = [episode.num_turns * rollouts for episode in episodes]
    table = np.array(list(_scores(world, list(forks), outcomes)), np.float64)
    found = {}
    for column, name in zip(table.reshape(-1, len(outcomes)).T, outcomes, strict=True):
        own = np.split(column, np.cumsum(sizes)[:-1])
        found[name] = [
            reference(part.reshape(-1, rollouts), _outcome(episode, name))
            for part, episode in zip(own, episodes, strict=True)
        ]
    return found


def _scores(world: World, forks: Sequence[Fork], outcomes: Sequence[str]) -> Iterator[list[float]]:
    for start in range(0, len(forks), _AT_ONCE):
        for played in world.fork(forks[start : start + _AT_ONCE]):
            yield [_outcome(played, name) for name in outcomes]


def _outcome(episode: Episode, name: str) -> float:
    outcome = outcome_of(episode, name)
    return math.nan if outcome is None else outcome


def reference(scores_TK: np.ndarray, outcome: float) -> Reference:
    """The reference of an episode from the outcomes of its states' rollouts; NaN: one that failed.

    A state with fewer than two scored rollouts has no standard error, hence no value either.
    """
    scored_TK = ~np.isnan(scores_TK)
    count_T = scored_TK.sum(axis=1)
    known_T = count_T > 1
    total_T = np.where(scored_TK, scores_TK, 0.0).sum(axis=1)
    value_T = np.where(known_T, total_T / np.maximum(count_T, 1), np.nan)
    gaps_TK = np.where(scored_TK, scores_TK - value_T[:, None], 0.0)
    variance_T = (gaps_TK**2).sum(axis=1) / np.maximum(count_T - 1, 1) / np.maximum(count_T, 1)
    variance_T = np.where(known_T, variance_T, np.nan)
    return Reference(
        value=value_T,
        value_stderr=np.sqrt(variance_T),
        num_rollouts=count_T,
        advantage=np.append(value_T[1:], outcome) - value_T,
        stderr=np.sqrt(np.append(variance_T[1:], 0.0) + variance_T),
    )
