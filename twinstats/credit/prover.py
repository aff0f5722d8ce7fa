"""ProVer: a judge says where credit is due, rollouts say how much, and whether at all."""

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from twinstats.credit._checks import at_least_zero, at_most_forks
from twinstats.credit._tree import branch, scored
from twinstats.credit.baseline import exact_mean, group_info, outcomes, standardised
from twinstats.credit.inputs import needed
from twinstats.episodes import Credit, Episode, Group


def prover(
    group: Group,
    *,
    rollouts: int = 4,
    threshold: float = 1.0,
    weight: float = 1.0,
    sequential: bool = False,
) -> Generator[Any, Any, Credit]:
    """Credit A_t = A_GRPO + weight * sum of d_k over the accepted segments k that hold turn t.

    The judge proposes segments (begin, end, sign), end included. d_k = S(after) - S(before), S the
    mean outcome of `rollouts` plays from the state before turn begin, and from that after turn
    end; after the last turn S is the outcome itself. Segment k is accepted if d_k has the judge's
    sign and |d_k| > threshold * SE, SE = sqrt(var_before / n + var_after / n) with ddof=1. With
    `sequential` the plays come one a side and round; from two a side on a test stops, as not
    accepted, once its d_k has not the judge's sign: nothing is accepted that the full test refuses.

    Inputs: branching, `segments`. Cost: 2 * rollouts tails a proposal; a state that proposals
    share is played once. The scale does not estimate the advantage, and accepted effects are too
    large on average, being selected by size. No proposal accepted: GRPO. All outcomes equal: A_GRPO
    is exactly 0, and each d_k of equal plays. A group of one: null, with a reason. A failed
    episode: null, its proposals untested. Failed plays are left out; fewer than two on a side have
    no SE, and nothing is accepted. Reconstructed from a summary; all defaults are ours.

    Args:
        group: The rollouts of a task.
        rollouts: Plays from each state (M).
        threshold: Standard errors that an effect must exceed (z).
        weight: Of accepted effects (w).
        sequential: Stop a test early.

    Raises:
        ValueError: `rollouts` below 2 or above 65,535, a negative number, no `segments`, or a
            malformed one.

    Source: ProVer, 28 September 2026, known from a summary only; its cousin CSO: arXiv 2602.03412.
    """
    if rollouts < 2:
        raise ValueError(f"`rollouts` must be at least 2 for a standard error, got {rollouts}.")
    at_least_zero(threshold=threshold, weight=weight)
    at_most_forks(rollouts=rollouts)
    return _tested(group, rollouts, threshold, weight, sequential)


_Segment = tuple[Episode, int, int, int]  # begin, end, sign
_State = tuple[Episode, int]  # before a turn, or after the last one


def _tested(
    group: Group, rollouts: int, threshold: float, weight: float, sequential: bool
) -> Generator[Any, Any, Credit]:
    proposed = [one for episode in scored(group.episodes) for one in _segments(episode)]
    going, plays = proposed, dict[_State, list[float]]()
    for size in [1] * rollouts if sequential else [rollouts]:
        states = _states(going)
        if states:
            played = yield [[branch(*state)] * size for state in states]
            for state, episodes in zip(states, played, strict=True):
                plays.setdefault(state, []).extend(outcomes(scored(episodes)))
        if sequential:
            going = [one for one in going if not _effect(plays, one)[0] * one[3] <= 0]
    base = standardised(outcomes(group.episodes))
    values = {e: np.full(e.num_turns, b) for e, b in zip(group.episodes, base, strict=True)}
    accepted = 0
    for episode, begin, end, sign in going:
        effect, stderr = _effect(plays, (episode, begin, end, sign))
        if effect * sign > 0 and abs(effect) > threshold * stderr:
            values[episode][begin : end + 1] += weight * effect
            accepted += 1
    info = group_info(group) | {"proposed": len(proposed), "accepted": accepted}
    return Credit(episodes=group.episodes, values=list(values.values()), info=info)


def _segments(episode: Episode) -> list[_Segment]:
    found, last = needed("prover", episode, "segments"), episode.num_turns - 1
    for begin, end, sign in found:
        if not 0 <= begin <= end <= last or sign not in (1, -1):
            raise ValueError(
                f"'segments' of episode {episode.name} must be (begin, end, sign) with 0 <= begin "
                f"<= end <= {last} and sign 1 or -1, got {(begin, end, sign)}."
            )
    return [(episode, *segment) for segment in found]


def _states(segments: Sequence[_Segment]) -> list[_State]:
    """The states at both ends of the segments, once each; after the last turn there is no play."""
    ends = [(episode, t) for episode, begin, end, _ in segments for t in (begin, end + 1)]
    return [(episode, t) for episode, t in dict.fromkeys(ends) if t < episode.num_turns]


def _effect(plays: dict[_State, list[float]], segment: _Segment) -> tuple[float, float]:
    """d_k and its standard error; NaN with fewer than two plays on a side."""
    episode, begin, end, _ = segment
    before, noise_before = _score(plays, (episode, begin))
    after, noise_after = _score(plays, (episode, end + 1))
    return after - before, math.sqrt(noise_before + noise_after)


def _score(plays: dict[_State, list[float]], state: _State) -> tuple[float, float]:
    """The mean outcome from a state and its squared standard error."""
    episode, turn = state
    if turn == episode.num_turns:
        return float(outcomes([episode])[0]), 0.0
    found = np.array(plays[state])
    if len(found) < 2:
        return math.nan, math.nan
    return exact_mean(found), float(found.var(ddof=1)) / len(found)
