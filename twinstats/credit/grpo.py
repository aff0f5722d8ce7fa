"""GRPO: the outcome, standardised within the group, on every turn."""

from twinstats.credit.baseline import broadcast, outcomes, standardised
from twinstats.episodes import Credit, Group


def grpo(group: Group, *, ddof: int = 1, epsilon: float = 1e-6) -> Credit:
    """Credit A_i = (R_i - mean) / (std + epsilon) on all turns of episode i.

    Inputs: outcomes. Cost: none. The scale does not estimate the advantage, because the standard
    deviation depends on the group's own outcomes. All outcomes equal: exactly 0. A group of one:
    null, with a reason in `info`. A failed episode: null, and left out of mean and std.

    Source: Shao et al., DeepSeekMath, arXiv 2402.03300, section 4.1.2 (std with ddof=1).
    """
    return broadcast(group, standardised(outcomes(group.episodes), ddof=ddof, epsilon=epsilon))
