"""MT-GRPO: a standardised reward for each turn besides the standardised outcome."""

import numpy as np

from twinstats.credit._checks import at_least_zero, zero_or_one
from twinstats.credit.baseline import group_info, outcomes, standardised, standardised_by_index
from twinstats.credit.inputs import needed
from twinstats.episodes import Credit, Episode, Group


def mt_grpo(
    group: Group,
    *,
    turn_weight: float = 1.0,
    outcome_weight: float = 1.0,
    ddof: int = 1,
    epsilon: float = 1e-4,
) -> Credit:
    """Credit turn_weight * T_it + outcome_weight * O_i, and O_i alone on an episode's last turn.

    O_i is the outcome standardised within the group, T_it the reward of turn t standardised over
    the group's turns of the same index that are not the last of their episode. The paper has two
    turns and one turn reward; several turns, compared by index, are our reading.

    Inputs: need `turn_reward` (the last turn's entry is not used), outcomes. Cost: none. The scale
    does not estimate the advantage. All outcomes equal: O = 0, and only turn rewards speak; these
    equal as well: exactly 0. A turn index that only one episode has: T = 0. A group of one: null,
    with a reason in `info`. A failed episode: null, and left out of mean and std. Without
    `turn_reward`: refused.

    Args:
        group: The rollouts of a task.
        turn_weight: Of the turn rewards (the authors' `turn_advantage_coef`, published 1).
        outcome_weight: Of the outcome before the last turn (published 1; .5 in atropos).
        ddof: Of both standard deviations.
        epsilon: Added to them (published 1e-4).

    Raises:
        ValueError: A negative weight, `ddof` other than 0 or 1, no `turn_reward` for an episode.

    Source: Zeng et al., arXiv 2505.11821, and github.com/SiliangZeng/Multi-Turn-RL-Agent; atropos
        pull request 162.
    """
    at_least_zero(turn_weight=turn_weight, outcome_weight=outcome_weight, epsilon=epsilon)
    zero_or_one(ddof=ddof)
    rewards = [_rewards(episode) for episode in group.episodes]
    scaled = standardised_by_index(rewards, ddof=ddof, epsilon=epsilon)
    outcome = standardised(outcomes(group.episodes), ddof=ddof, epsilon=epsilon)
    values = [
        np.append(turn_weight * own + outcome_weight * whole, whole)[: episode.num_turns]
        for episode, own, whole in zip(group.episodes, scaled, outcome, strict=True)
    ]
    return Credit(episodes=group.episodes, values=values, info=group_info(group))


def _rewards(episode: Episode) -> np.ndarray:
    """Of the turns before the last."""
    found = needed("mt_grpo", episode, "turn_reward")[:-1]
    if episode.outcome is None:
        return np.full(len(found), np.nan)
    return np.asarray(found, np.float64)
