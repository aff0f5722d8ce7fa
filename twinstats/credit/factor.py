"""FACTOR: how much credit an action gets, by differences of value; then where, token by token."""

from collections.abc import Generator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from twinstats.credit._checks import at_most_forks, count, positive
from twinstats.credit._teacher import softmax_weights, token_gaps, unit_weights
from twinstats.credit.baseline import exact_mean, group_info, outcomes, uncomparable
from twinstats.credit.inputs import needed
from twinstats.credit.registry import Need
from twinstats.episodes import FRESH, RESAMPLE, Credit, Episode, Fork, Group
from twinstats.errors import unknown

Value = Literal["rollouts", "value", "group"]


def factor(
    group: Group,
    *,
    value: Value = "rollouts",
    rollouts: int = 9,
    every: int = 1,
    temperature: float = 1.0,
    low: float = 0.2,
    high: float = 5.0,
) -> Generator[Any, Any, Credit]:
    """Credit c_k = V(s_{k+1}) - V(s_k) of action k, and weights w_kj over its tokens.

    V(s_1) is the group's mean outcome and V(end) the episode's own, so that the credits of an
    episode add up to R - mean. Between them V is known at checkpoints, every `every` turns, and
    runs in a straight line from one known value to the next (the credit of the actions between is
    shared evenly). w_kj = n_k softmax_j(gap_kj / temperature), clipped to [low, high] and rescaled
    to mean 1: they move credit, never add any or flip its sign. The loss that goes with it takes
    the mean over an action's tokens first (aggregation "turn").

    Inputs: outcomes, `teacher_gap`; by `value`: "rollouts" forks each checkpoint as `vine` does,
    "value" reads a critic's `value`, "group" has no checkpoint. Cost: checkpoints * rollouts
    tails, or none. With rollouts at every turn and no fork lost, unbiased for the advantage at all
    actions but the first, whose mean is (n - 1) / n of it: the group's mean holds its own outcome.
    "group" estimates no action's advantage.
    Reconstructed: where V comes from, straight lines, and the weights' formula.
    Degenerate: all outcomes equal (no success, say): exactly 0 each in "group", and 0 in sum, up
    to rounding, elsewhere. A group of one: null, with a reason; the one scored of several: 0. A
    failed episode: null, out of the mean, not forked. A checkpoint whose forks all failed, or
    whose value is null, is none; "missing_checkpoints" counts them. Equal gaps: weights 1. A
    missing input raises, before anything is forked.

    Args:
        group: The rollouts of a task.
        value: Where values come from.
        rollouts: Continuations of a checkpoint (VinePPO's 9).
        every: Turns from one checkpoint to the next.
        temperature: Of the weights (our default 1).
        low: Least weight before they are rescaled, at most 1 (our default 0.2).
        high: Largest weight before they are rescaled, at least 1 (our default 5).

    Raises:
        ValueError: An option out of range, a missing input, no gap for each token.

    Source: "How Much, Then Where", arXiv 2608.07118, known to us from its abstract.
    """
    if value not in get_args(Value):
        raise unknown("value", value, get_args(Value))
    count(rollouts=rollouts, every=every)
    at_most_forks(rollouts=rollouts)
    positive(temperature=temperature)
    if not 0 <= low <= 1 <= high:
        raise ValueError(f"`low` and `high` must hold 0 <= low <= 1 <= high, got {low}, {high}.")
    bounds = {"temperature": temperature, "low": low, "high": high}
    return _factored(group, value, (rollouts, every), bounds)


def option_needs(options: dict[str, Any]) -> tuple[Need, ...]:
    """The critic's value, where it is asked for."""
    return (Need("value"),) if options.get("value") == "value" else ()


def _factored(
    group: Group, value: Value, plan: tuple[int, int], bounds: dict[str, float]
) -> Generator[Any, Any, Credit]:
    weights = [
        [softmax_weights(gap, **bounds) for gap in token_gaps("factor", e)] or unit_weights(e)
        for e in group.episodes
    ]
    if (credit := uncomparable(group)) is not None:
        return credit
    rollouts, every = plan
    turns = [
        () if value == "group" or e.outcome is None else tuple(range(every, e.num_turns, every))
        for e in group.episodes
    ]
    pairs = list(zip(group.episodes, turns, strict=True))
    if value == "value":
        known = [
            np.array(needed("factor", e, "value") if own else [], np.float64)[list(own)]
            for e, own in pairs
        ]
    else:
        played = yield [
            [[Fork(e, t, RESAMPLE, FRESH, alternative=k) for k in range(rollouts)] for t in own]
            for e, own in pairs
        ]
        known = [np.array([exact_mean(outcomes(found)) for found in own]) for own in played]
    mean = exact_mean(outcomes(group.episodes))
    values = [_differences(e, mean, own, v) for (e, own), v in zip(pairs, known, strict=True)]
    info = group_info(group) | {"missing_checkpoints": sum(int(np.isnan(v).sum()) for v in known)}
    return Credit(episodes=group.episodes, values=values, weights=weights, info=info)


def _differences(
    episode: Episode, mean: float, turns: Sequence[int], known: np.ndarray
) -> np.ndarray:
    """Steps of the lines through the group's mean, the known values and the outcome."""
    if episode.outcome is None:
        return np.full(episode.num_turns, np.nan)
    found = [(t, v) for t, v in zip(turns, known, strict=True) if not np.isnan(v)]
    places = [0, *(t for t, _ in found), episode.num_turns]
    heights = [mean, *(v for _, v in found), float(episode.outcome)]
    return np.repeat(np.diff(heights) / np.diff(places), np.diff(places))
