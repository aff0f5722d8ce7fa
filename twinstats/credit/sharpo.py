"""SHARPO: GRPO's advantage, made a little larger or smaller at each turn by a teacher's gap."""

import math

import numpy as np

from twinstats.credit._checks import at_least_zero, positive
from twinstats.credit._teacher import mean_gap, token_gaps
from twinstats.credit.baseline import group_info, outcomes, standardised
from twinstats.episodes import Credit, Group


def sharpo(
    group: Group,
    *,
    strength: float = 0.5,
    temperature: float | None = None,
    signed: bool = True,
    renormalise: bool = False,
    epsilon: float = 1e-6,
) -> Credit:
    """Credit A_s = m_s * A, with A of GRPO and m_s in [1 - strength, 1 + strength].

    m_s = 1 + strength * tanh(sign(A) * (d_s - mean_s d) / temperature), where d_s is the mean over
    the tokens of segment s of log pi_teacher - log pi_student, and the mean runs over the
    episode's segments. A segment is a turn. The sign of A never flips.

    Inputs: outcomes, `teacher_gap`. Cost: none besides the teacher's pass over given tokens.
    Reconstructed: the multiplier as a whole, that a segment's d is a mean and not a sum, that d is
    centred within the episode, and the factor sign(A).
    Degenerate: all d equal, or one turn: m = 1, GRPO. All outcomes equal (no success, say):
    exactly 0. A group of one: null, with a reason; the one scored of several: 0. A failed
    episode: null, left out of mean and standard deviation, its gap unread. A missing or misshapen
    gap raises.

    Args:
        group: The rollouts of a task.
        strength: k, at least 0 and below 1 (our default 0.5).
        temperature: tau; null takes the population standard deviation of the episode's d.
        signed: Whether sign(A) is there. With it a teacher who prefers the turn also weakens the
            blame of a failure; without it she strengthens it.
        renormalise: Divide m by its token-weighted mean over the episode.
        epsilon: GRPO's, added to the standard deviation.

    Raises:
        ValueError: `strength`, `temperature` or `epsilon` out of range; no gap for each token.

    Source: no public text found (30 Sep 2026); reconstructed after its cousin SDAR,
    arXiv 2605.15155.
    """
    if not 0 <= strength < 1:
        raise ValueError(f"`strength` must be in [0, 1), got {strength}.")
    if temperature is not None:
        positive(temperature=temperature)
    at_least_zero(epsilon=epsilon)
    advantages = standardised(outcomes(group.episodes), epsilon=epsilon)
    values = []
    for episode, advantage in zip(group.episodes, advantages, strict=True):
        if episode.outcome is None:
            values.append(np.full(episode.num_turns, np.nan))
            continue
        gaps = np.array([mean_gap(gap) for gap in token_gaps("sharpo", episode)])
        sign = np.sign(advantage) if signed else 1.0
        multipliers = 1 + strength * np.tanh(sign * _centred(gaps, temperature))
        if renormalise:
            tokens = episode.column("num_tokens")
            multipliers = multipliers * (tokens.sum() / math.fsum(tokens * multipliers))
        values.append(multipliers * advantage)
    return Credit(episodes=group.episodes, values=values, info=group_info(group))


def _centred(gaps: np.ndarray, temperature: float | None) -> np.ndarray:
    """(d - mean) / temperature, or over the standard deviation; equal gaps give exactly 0."""
    if gaps.max() == gaps.min():
        return np.zeros(len(gaps))
    centred = gaps - math.fsum(gaps) / len(gaps)
    spread = math.sqrt(math.fsum(centred**2) / len(gaps)) if temperature is None else temperature
    return np.asarray(centred / spread)
