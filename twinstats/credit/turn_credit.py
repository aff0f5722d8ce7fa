"""Turn credit: progress between scored states, smeared back over the turns that led to it."""

import numpy as np

from twinstats.credit._checks import at_least_zero, probability
from twinstats.credit._tokens import centred_by_tokens
from twinstats.credit.baseline import centred, group_info, outcomes
from twinstats.credit.inputs import needed, returns_to_go
from twinstats.episodes import Credit, Episode, Group


def turn_credit(group: Group, *, discount: float = 0.9, strength: float = 1.0) -> Credit:
    """Credit (R_i + P_i) - group mean + strength * (c_it - mean of c_i over the episode's tokens).

    Progress of turn t is s_{t+1} - s_t, P_i its sum s_T - s_0; c spreads each turn's progress over
    that turn and those before it with weights discount^distance that sum to 1, so that the c_it of
    an episode sum to P_i. Centred by tokens, they move credit between turns and leave the episode's
    total as it is. A state without a score (NaN) hands its progress on to the next scored one.

    Inputs: need `state_score` (a check or a judge of states), outcomes. Cost: none besides the
    scores. The scale does not estimate the advantage: outcome and progress are counted both. All of
    R + P equal: the first part is 0; all progress within an episode 0, or equal credit everywhere:
    the second is exactly 0. A group of one has first part 0 and is trained on the second alone, as
    published. A failed episode: null, and left out of the mean. Without `state_score`: refused.
    The repository scores only states after a turn, so its first turn has no progress; here it has.

    Args:
        group: The rollouts of a task.
        discount: Of the smear per turn of distance (published .9); 0 credits only the turn whose
            state changed, 1 spreads evenly over all turns so far.
        strength: Of the second part (published 1); 0 leaves the outcome and the progress alone.

    Raises:
        ValueError: `discount` outside [0, 1], a negative `strength`, no `state_score` for an
            episode.

    Source: PrimeIntellect-ai/prime-rl, pull request 3282, `algo/turn_credit.py`.
    """
    probability(discount=discount)
    at_least_zero(strength=strength)
    progress = [_progress(episode) for episode in group.episodes]
    totals = outcomes(group.episodes) + np.array([own.sum() for own in progress])
    levels = centred(totals)
    if len(levels) == 1:
        levels = np.where(np.isnan(totals), np.nan, 0.0)
    values = []
    for episode, level, own in zip(group.episodes, levels, progress, strict=True):
        shift = centred_by_tokens(_smeared(own, discount), episode.column("num_tokens"))
        values.append(level + strength * shift)
    return Credit(episodes=group.episodes, values=values, info=group_info(group))


def _progress(episode: Episode) -> np.ndarray:
    found = needed("turn_credit", episode, "state_score")
    progress = np.zeros(episode.num_turns)
    if episode.outcome is None:
        return progress
    scores = np.asarray(found, np.float64)
    scored = np.flatnonzero(~np.isnan(scores))
    progress[scored[1:] - 1] = np.diff(scores[scored])
    return progress


def _smeared(progress: np.ndarray, discount: float) -> np.ndarray:
    weights = np.cumsum(discount ** np.arange(len(progress)))
    return returns_to_go(progress / weights, discount)
