"""PPO: generalised advantage estimation over turns, with a critic."""

import numpy as np

from twinstats.credit._checks import probability
from twinstats.credit._tokens import PENDING
from twinstats.credit.baseline import group_info
from twinstats.credit.inputs import needed, returns_to_go, step_rewards
from twinstats.episodes import Credit, Episode, Group


def ppo(
    group: Group, *, discount: float = 0.99, trace_decay: float = 0.9, whiten: bool = False
) -> Credit:
    """Credit A_t = sum over l of (discount * trace_decay)^l delta_{t+l} from a critic.

    delta_t = r_t + discount * V_{t+1} - V_t, with V the critic's expected rewards still to come.
    The need `value` is the expected outcome, rewards already earned included, as worlds give it;
    what was earned is taken off here. Behind the last turn of an episode that terminated V is 0; of
    one that a limit cut short it is the critic's own last entry.

    Inputs: need `value` (a critic). Cost: none besides the critic. An exact critic and a discount
    of 1 make it unbiased for the advantage at every `trace_decay`; with trace_decay = 1 it is then
    the outcome minus V. No member of a group is compared with another, so equal outcomes and
    groups of one are nothing special. A failed episode: null. Without `value`: refused.

    Args:
        group: The rollouts of a task.
        discount: Per turn (gamma, Turn-PPO's default .99).
        trace_decay: lambda (Turn-PPO's default .9).
        whiten: Whiten over the step's tokens, as token-level PPO in verl does; off by default,
            because the scale is the advantage's only without.

    Raises:
        ValueError: `discount` or `trace_decay` outside [0, 1], no `value` for an episode.

    Source: Turn-PPO, arXiv 2512.17008 (turns as actions); Schulman et al., arXiv 1506.02438,
        equation 16; the whitening as in verl's `core_algos.py`.
    """
    probability(discount=discount, trace_decay=trace_decay)
    values = [_advantages(episode, discount, trace_decay) for episode in group.episodes]
    info = group_info(group) | ({"whitening": PENDING} if whiten else {})
    return Credit(episodes=group.episodes, values=values, info=info)


def _advantages(episode: Episode, discount: float, trace_decay: float) -> np.ndarray:
    expected = needed("ppo", episode, "value")
    rewards = step_rewards(episode)
    if episode.outcome is None:
        return rewards
    ahead = np.asarray(expected, np.float64) - np.append(0.0, np.cumsum(rewards))
    if episode.terminated:
        ahead[-1] = 0.0
    deltas = rewards + discount * ahead[1:] - ahead[:-1]
    return returns_to_go(deltas, discount * trace_decay)
