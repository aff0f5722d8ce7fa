"""GRPO: the outcome, standardised within the group, on every turn."""

from twinstats.credit._checks import at_least_zero, zero_or_one
from twinstats.credit.baseline import (
    broadcast,
    group_info,
    outcomes,
    standardised,
    standardised_turns,
    uncomparable,
)
from twinstats.credit.inputs import returns_to_go, step_rewards
from twinstats.episodes import Credit, Group


def grpo(group: Group, *, ddof: int = 1, epsilon: float = 1e-6, process: bool = False) -> Credit:
    """Credit A_i = (R_i - mean) / (std + epsilon) on all turns of episode i.

    With `process` the rewards of single turns are standardised over all turns of the group, and
    A_it = sum over k >= t of the standardised rewards; with one turn an episode both are the same.
    Where a task pays at the end alone, a long episode then collects many below-average zeros.

    Inputs: outcomes; with `process` also `Turn.reward`. Cost: none. The scale does not estimate the
    advantage, because the standard deviation depends on the group's own outcomes. All outcomes
    equal (with `process`: all rewards equal): exactly 0. A group of one: null, with a reason in
    `info`. A failed episode: null, and left out of mean and std.

    Raises:
        ValueError: `ddof` other than 0 or 1, a negative `epsilon`.

    Source: Shao et al., DeepSeekMath, arXiv 2402.03300, sections 4.1.2 and 4.1.3 (std with ddof=1).
    """
    zero_or_one(ddof=ddof)
    at_least_zero(epsilon=epsilon)
    if not process:
        return broadcast(group, standardised(outcomes(group.episodes), ddof=ddof, epsilon=epsilon))
    if (credit := uncomparable(group)) is not None:
        return credit
    rewards = [step_rewards(episode) for episode in group.episodes]
    values = [returns_to_go(own) for own in standardised_turns(rewards, ddof=ddof, epsilon=epsilon)]
    return Credit(episodes=group.episodes, values=values, info=group_info(group))
