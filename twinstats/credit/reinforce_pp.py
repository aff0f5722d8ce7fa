"""REINFORCE++: returns to go, whitened over the whole step."""

from twinstats.credit._checks import probability
from twinstats.credit._tokens import PENDING, whitened
from twinstats.credit.baseline import broadcast, centred, group_info, outcomes
from twinstats.credit.inputs import returns_to_go, step_rewards
from twinstats.episodes import Credit, Group


def reinforce_pp(group: Group, *, baseline: bool = False, discount: float = 1.0) -> Credit:
    """Credit G_t = sum over k >= t of discount^(k - t) r_k, whitened over the tokens of the step.

    `finish` turns G into (G - mean) / sqrt(variance + 1e-8), over all tokens of all groups: a turn
    counts as often as it has tokens. With `baseline` (the paper's REINFORCE++-baseline) the
    outcome minus its group's mean stands on all turns instead, and is whitened in the same way.

    Inputs: outcomes and `Turn.reward`. Cost: none. The scale does not estimate the advantage. The
    step's mean is subtracted, not the group's: a group of equal outcomes keeps a credit unless the
    whole step's are equal (then exactly 0), and with `baseline` gets minus the step's mean, which
    is 0 only where lengths are equal. A group of one: its returns to go are whitened like any;
    with `baseline` null, with a reason in `info`, and a step of nothing else is refused. A failed
    episode: null, and left out of all means. The original's KL penalty is part of the loss here.

    Args:
        group: The rollouts of a task.
        baseline: Subtract the group's mean outcome first.
        discount: Per turn, not per token (published default 1).

    Raises:
        ValueError: `discount` outside [0, 1], or other than 1 with `baseline`, which has no
            returns to go.

    Source: Hu et al., REINFORCE++, arXiv 2501.03262; the whitening as in verl's `core_algos.py`.
    """
    probability(discount=discount)
    if baseline and discount != 1:
        raise ValueError(f"`discount` must be 1 with `baseline`, got {discount}.")
    values = (
        broadcast(group, centred(outcomes(group.episodes))).values
        if baseline
        else [returns_to_go(step_rewards(episode), discount) for episode in group.episodes]
    )
    info = group_info(group) | {"whitening": PENDING, "baseline": baseline}
    return Credit(episodes=group.episodes, values=values, info=info)


def finish(credits: list[Credit]) -> list[Credit]:
    """The step whitened.

    Raises:
        ValueError: All groups have size 1 and each was to be compared with its own mean.
    """
    lonely = [c for c in credits if c.info.get("baseline") and len(c.episodes) == 1]
    if lonely and len(lonely) == len(credits):
        raise ValueError(
            "`baseline` of method 'reinforce_pp' compares the members of a group, "
            f"but all groups have size 1 ({len(credits)} of them)."
        )
    return whitened(credits)
