"""CRAFT: what a teacher's preference among sibling turns says about their advantage."""

import math

import numpy as np

from twinstats.credit._checks import at_least_zero, positive
from twinstats.credit._teacher import (
    mean_gap,
    softmax,
    softmax_weights,
    token_gaps,
    unit_weights,
)
from twinstats.credit.baseline import group_info, outcomes, standardised, uncomparable
from twinstats.episodes import Credit, Group


def craft(
    group: Group,
    *,
    weight: float = 0.5,
    beta: float = 1.0,
    temperature: float = 1.0,
    high: float = 5.0,
    epsilon: float = 1e-6,
) -> Credit:
    """Credit A_i + weight * CTI_t * (n w_it - 1), with A of GRPO; plays no counterfactual.

    CTI_t = sum_j w_jt A_j - mean_j A_j: the change of the mean advantage when the n siblings that
    have a turn t are re-weighted by w_jt = softmax_j(beta d_jt), d_jt the mean over the turn's
    tokens of log pi_teacher - log pi_student. CTI_t is the covariance of n w - 1 and A, so the
    second term is, up to scale, the regression of the advantage on the teacher's preference at t;
    it adds up to 0 over the siblings. Where the teacher misleads, CTI_t < 0 turns it round.
    Within a turn, token k weighs n exp(s g_k / temperature) / sum, g its gap, s the sign of CTI_t
    times that of the credit: praise goes to the tokens that a teacher who is right prefers, blame
    to those she would not have said. Clipped at `high`, then rescaled to mean 1.

    Inputs: outcomes, `teacher_gap`. Cost: none besides the teacher's pass over given tokens.
    Reconstructed: CTI_t, the term (n w - 1) that gives each sibling its part (CTI_t alone is the
    same for all and moves no gradient), and the token weights. Left out, because they belong to a
    distillation loss: the controller of the distillation's weight, forward and reverse KL.
    Degenerate: a turn index that one member reached, or equal d at it: A alone, weights 1. All
    outcomes equal (no success, say): exactly 0, weights 1. A group of one: null, with a reason; the
    one scored of several: 0. A failed episode: null, in nobody's statistics, its gap unread. A
    missing or misshapen gap raises.

    Args:
        group: The rollouts of a task.
        weight: Of the second term (our default 0.5); 0 leaves GRPO's values.
        beta: Sharpness of the preference among siblings (our default 1).
        temperature: Of the token weights (our default 1).
        high: Largest token weight before they are rescaled, at least 1 (our default 5).
        epsilon: GRPO's, added to the standard deviation.

    Raises:
        ValueError: An option out of range; no gap for each token.

    Source: CRAFT, arXiv 2606.29476, known to us from its abstract: reconstructed.
    """
    at_least_zero(weight=weight, beta=beta, epsilon=epsilon)
    positive(temperature=temperature)
    if not high >= 1:
        raise ValueError(f"`high` must be at least 1, got {high}.")
    gaps = [token_gaps("craft", episode) for episode in group.episodes]
    if (credit := uncomparable(group)) is not None:
        return credit
    advantages = standardised(outcomes(group.episodes), epsilon=epsilon)
    values = [np.full(e.num_turns, a) for e, a in zip(group.episodes, advantages, strict=True)]
    weights = [unit_weights(episode) for episode in group.episodes]
    changes = []
    for turn in range(max(map(len, gaps), default=0)):
        rows = [row for row, own in enumerate(gaps) if turn < len(own)]
        preference = _preference(np.array([mean_gap(gaps[row][turn]) for row in rows]), beta)
        change = math.fsum(preference * advantages[rows]) / len(rows)
        changes.append(change)
        for row, excess in zip(rows, preference, strict=True):
            values[row][turn] += weight * change * excess
            sign = np.sign(change) * np.sign(values[row][turn])
            if sign:
                weights[row][turn] = softmax_weights(
                    sign * gaps[row][turn], temperature=temperature, high=high
                )
    info = group_info(group) | {"change": changes}
    return Credit(episodes=group.episodes, values=values, weights=weights, info=info)


def _preference(gaps: np.ndarray, beta: float) -> np.ndarray:
    """By how much n softmax(beta d) exceeds 1: the teacher's preference over an even one."""
    if gaps.max() == gaps.min():
        return np.zeros(len(gaps))
    return np.asarray(len(gaps) * softmax(beta * gaps) - 1)
