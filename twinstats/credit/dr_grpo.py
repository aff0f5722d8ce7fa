"""Dr. GRPO: the outcome minus the group's mean, on every turn."""

from twinstats.credit.baseline import broadcast, centred, outcomes
from twinstats.episodes import Credit, Group


def dr_grpo(group: Group) -> Credit:
    """Credit A_i = R_i - mean over the group, on all turns of episode i.

    GRPO without its standard deviation. (n - 1) / n times RLOO for a group of n scored episodes,
    so its policy gradient has the exact direction and is (n - 1) / n as long. The method's other
    half, a constant divisor in place of each episode's length, belongs to the loss.

    Inputs: outcomes. Cost: none. All outcomes equal: exactly 0. A group of one: null, with a reason
    in `info`; the one scored episode of several: 0. A failed episode: null, and left out of the
    mean.

    Source: Liu et al., "Understanding R1-Zero-like training", arXiv 2503.20783, section 3.
    """
    return broadcast(group, centred(outcomes(group.episodes)))
