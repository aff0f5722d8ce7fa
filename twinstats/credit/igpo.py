"""IGPO: how much each turn raised the probability of the gold answer."""

from typing import Literal

import numpy as np

from twinstats.credit._checks import at_least_zero, probability, zero_or_one
from twinstats.credit.baseline import (
    group_info,
    outcomes,
    standardised,
    standardised_by_index,
    standardised_turns,
    uncomparable,
)
from twinstats.credit.inputs import needed, returns_to_go
from twinstats.episodes import Credit, Episode, Group
from twinstats.errors import unknown

Pooling = Literal["joint", "separate", "turn"]


def igpo(
    group: Group,
    *,
    discount: float = 1.0,
    pooling: Pooling = "joint",
    discount_first: bool = False,
    ddof: int = 1,
    epsilon: float = 1e-6,
) -> Credit:
    """Credit A_t = sum over k >= t of discount^(k - t) times the standardised reward of turn k.

    r_t = P_{t+1} - P_t, where P_t = exp(mean log-probability of a gold answer's token before turn
    t); the last turn has r = outcome instead. Standardised over all turns of the group ("joint",
    the paper), gains and outcomes each for themselves ("separate"), or turns of one index ("turn").
    `discount_first` standardises the discounted sums instead, an order the authors took back.

    Inputs: need `gold_logprob` (the mean over the answer's tokens, one teacher-forced pass a
    state), outcomes. Cost: none besides these passes. The scale does not estimate the advantage.
    All outcomes equal: only gains speak; all rewards equal: exactly 0. A gain of 1 and an outcome
    of 1 are the same size, so the outcome's scale matters. "turn": an index that only one episode
    has counts 0. A group of one: null, with a reason in `info`. A failed episode: null, and left
    out of mean and std. Without `gold_logprob`: refused.

    Args:
        group: The rollouts of a task.
        discount: Per turn (published default 1).
        pooling: What is standardised together.
        discount_first: Discount before standardising.
        ddof: Of the standard deviation.
        epsilon: Added to it (published 1e-6).

    Raises:
        ValueError: `discount` outside [0, 1], an unknown `pooling`, `ddof` other than 0 or 1, no
            `gold_logprob` for an episode.

    Source: Wang et al., arXiv 2510.14967, equations 6 and 7, and github.com/GuoqingWang1/IGPO
        (issue 5 on the order; "joint" and "separate" are its modes).
    """
    probability(discount=discount)
    zero_or_one(ddof=ddof)
    at_least_zero(epsilon=epsilon)
    if pooling not in ("joint", "separate", "turn"):
        raise unknown("pooling", pooling, ("joint", "separate", "turn"))
    values = [_rewards(episode) for episode in group.episodes]
    if (credit := uncomparable(group)) is not None:
        return credit
    if discount_first:
        values = [returns_to_go(own, discount) for own in values]
    values = _scaled(group, values, pooling, ddof=ddof, epsilon=epsilon)
    if not discount_first:
        values = [returns_to_go(own, discount) for own in values]
    return Credit(episodes=group.episodes, values=values, info=group_info(group))


def _rewards(episode: Episode) -> np.ndarray:
    logprobs = needed("igpo", episode, "gold_logprob")
    if episode.outcome is None:
        return np.full(episode.num_turns, np.nan)
    gains = np.diff(np.exp(np.asarray(logprobs, np.float64)))
    gains[-1] = episode.outcome
    return gains


def _scaled(
    group: Group, turns: list[np.ndarray], pooling: Pooling, *, ddof: int, epsilon: float
) -> list[np.ndarray]:
    if pooling == "joint":
        return standardised_turns(turns, ddof=ddof, epsilon=epsilon)
    if pooling == "separate":
        gains = standardised_turns([own[:-1] for own in turns], ddof=ddof, epsilon=epsilon)
        last = standardised(outcomes(group.episodes), ddof=ddof, epsilon=epsilon)
        return [np.append(gains[row], last[row])[: len(own)] for row, own in enumerate(turns)]
    return standardised_by_index(turns, ddof=ddof, epsilon=epsilon)
