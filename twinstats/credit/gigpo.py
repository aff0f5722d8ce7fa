"""GiGPO: the episode against its group, plus the turn against all turns taken in its state."""

import numpy as np

from twinstats.credit._checks import at_least_zero, probability
from twinstats.credit._states import (
    Mode,
    anchors,
    by_row,
    credit_of_turns,
    episode_term,
    norm,
    per_turn,
    within,
)
from twinstats.credit.baseline import uncomparable
from twinstats.credit.inputs import returns_to_go, step_rewards
from twinstats.episodes import Credit, Group


def gigpo(
    group: Group,
    *,
    discount: float = 0.95,
    weight: float = 1.0,
    mode: Mode = "mean_norm",
    similarity: float | None = None,
    cross_steps: bool = True,
    epsilon: float = 1e-6,
) -> Credit:
    """Credit A_t = A_E + weight * A_S, the episode's term and the state's.

    A_E = R_i - mean of the group's outcomes. A_S = G_t - mean of G over the turns of the group
    taken in the same state, with G_t = sum over k >= t of discount^(k - t) * r_k. Mode
    "mean_std_norm" divides both by (standard deviation with ddof=1, + epsilon). With `cross_steps`
    an outcome counts once for every turn in A_E's mean and deviation (the published default,
    `compute_mean_std_cross_steps`), so that long episodes weigh more.

    Inputs: anchor states (`Turn.state`) and rewards. Cost: none. The scale does not estimate the
    advantage: it is a sum of two. A state that comes once has A_S = 0, so in a world without
    repeated states this is `grpo` without its deviation. All outcomes equal: A_E is exactly 0, and
    so is A_S where the returns of a state are equal. No success is no special case. A group of
    one: null, with a reason in `info`; the one scored episode of several: 0. A failed episode:
    null, and left out of all statistics. `info` counts states and the turns whose state came more
    than once.

    Args:
        group: The rollouts of a task.
        discount: Of the returns in A_S (published .95).
        weight: Of A_S (published 1).
        mode: "mean_norm" (published default), or "mean_std_norm" (published for search).
        similarity: Texts whose difflib ratio is at least this share a state (greedy clusters,
            published .9 for search and .95 in code); null compares states exactly.
        cross_steps: An outcome counts once a turn.
        epsilon: Added to the deviations.

    Raises:
        ValueError: A null state, a state that is no text with `similarity`, or an option out of
            range.

    Source: Feng et al., GiGPO, arXiv 2505.10978, equations 3 to 8; `gigpo/core_gigpo.py` as read
    in forks of langfengQ/verl-agent.
    """
    probability(discount=discount)
    at_least_zero(weight=weight)
    if similarity is not None:
        probability(similarity=similarity)
    scale = norm(mode, epsilon=epsilon)
    if (credit := uncomparable(group)) is not None:
        return credit
    episodes = by_row(group)
    labels = anchors("gigpo", episodes, similarity)
    whole = per_turn(episodes, episode_term(group, scale, cross_steps=cross_steps))
    returns = np.concatenate([returns_to_go(step_rewards(e), discount) for e in episodes])
    return credit_of_turns(group, episodes, whole + weight * within(labels, returns, scale), labels)
