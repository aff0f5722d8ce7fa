"""RLOO: the outcome minus the mean of the group's others, on every turn."""

from twinstats.credit.baseline import broadcast, leave_one_out, outcomes
from twinstats.episodes import Credit, Group


def rloo(group: Group) -> Credit:
    """Credit A_i = R_i - mean of the other outcomes, on all turns of episode i.

    Inputs: outcomes. Cost: none. Gradient-unbiased: the others do not depend on episode i.
    All outcomes equal: exactly 0. A group of one: null, with a reason in `info`. A failed
    episode: null, and left out of the others' mean.

    Source: Ahmadian et al., "Back to basics", arXiv 2402.14740, equation for RLOO with k samples.
    """
    return broadcast(group, leave_one_out(outcomes(group.episodes)))
