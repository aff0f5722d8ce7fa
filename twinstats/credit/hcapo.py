"""HCAPO: discounted outcomes, weighted by how likely each action looks in hindsight."""

import numpy as np

from twinstats.credit._checks import at_least_zero, positive, probability
from twinstats.credit.baseline import (
    group_info,
    outcomes,
    standardised,
    standardised_turns,
    uncomparable,
)
from twinstats.credit.inputs import needed
from twinstats.episodes import Credit, Episode, Group


def hcapo(
    group: Group,
    *,
    weight: float = 1.0,
    discount: float = 0.95,
    temperature: float = 5.0,
    clip: float = 0.2,
    smooth: bool = False,
) -> Credit:
    """Credit O_i + weight * (Q_it - mean) / std, O_i the outcome standardised within the group.

    Q_t = rho_t * discount^(T - t) * R for t = 1..T, with rho_t = p_t / (mean of p over the episode)
    clipped to 1 +- clip and p_t = exp(h_t / temperature), h_t the mean log-probability of the
    action's tokens given the history and how the episode ended. Mean and std are taken over all
    turns of the group (the paper's "at step t" is loose). On a success, negative hindsight terms
    are set to 0. `smooth` takes half of Q_t and half of Q_{t+1} for Q_t; the last turn, which has
    no next, keeps its own (our reading).

    Inputs: need `hindsight_logprob` (mean over the turn's tokens, one teacher-forced pass an
    episode), outcomes, `Episode.success` (null counts as none). Cost: none besides the pass. The
    scale does not estimate the advantage. All outcomes equal: O = 0, and the discount and hindsight
    still tell turns apart, unless all outcomes are 0: then exactly 0, as Q has nothing to weight.
    No success: nothing is set to 0. A group of one: null, with a reason in `info`. A failed
    episode: null, and left out of mean and std. Without `hindsight_logprob`: refused.

    Args:
        group: The rollouts of a task.
        weight: Of the hindsight term (published 1).
        discount: Per turn (published .95).
        temperature: Divides the log-probability (published 5).
        clip: How far rho may go from 1 (published .2).
        smooth: Average Q with the next turn's.

    Raises:
        ValueError: A negative `weight` or `clip`, `discount` outside [0, 1], `temperature` not
            positive, no `hindsight_logprob` for an episode.

    Source: HCAPO, arXiv 2603.08754, known to us from notes on it.
    """
    at_least_zero(weight=weight, clip=clip)
    probability(discount=discount)
    positive(temperature=temperature)
    quality = [_quality(episode, discount, temperature, clip) for episode in group.episodes]
    if (credit := uncomparable(group)) is not None:
        return credit
    if smooth:
        quality = [np.append((own[:-1] + own[1:]) / 2, own[-1:]) for own in quality]
    outcome = standardised(outcomes(group.episodes))
    values = []
    turns = zip(group.episodes, outcome, standardised_turns(quality), strict=True)
    for episode, whole, hindsight in turns:
        kept = np.maximum(hindsight, 0.0) if episode.success else hindsight
        values.append(whole + weight * kept)
    return Credit(episodes=group.episodes, values=values, info=group_info(group))


def _quality(episode: Episode, discount: float, temperature: float, clip: float) -> np.ndarray:
    found = needed("hcapo", episode, "hindsight_logprob")
    if episode.outcome is None:
        return np.full(episode.num_turns, np.nan)
    logprobs = np.asarray(found, np.float64)
    likelihood = np.exp((logprobs - logprobs.max()) / temperature)
    ratio = np.clip(likelihood / likelihood.mean(), 1 - clip, 1 + clip)
    to_come = np.arange(episode.num_turns - 1, -1, -1)
    quality: np.ndarray = ratio * discount**to_come * episode.outcome
    return quality
