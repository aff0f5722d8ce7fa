"""Token level: the teacher's gaps, checked, and the weights that spread a turn's credit.

Leaves out how much credit a turn has. Weights have mean 1, so that they move credit between the
tokens of a turn and never add any.
"""

import math

import numpy as np

from twinstats.credit.inputs import needed
from twinstats.episodes import Episode


def token_gaps(method: str, episode: Episode) -> list[np.ndarray]:
    """The gap log pi_teacher - log pi_student of each sampled token, one array a turn.

    None for a failed episode, whose gaps nobody has to provide.

    Raises:
        ValueError: `teacher_gap` is missing; a turn has no token, another number of gaps than of
            tokens, or a gap that is not finite. Nothing is padded or cut.
    """
    if episode.outcome is None:
        return []
    gaps = [np.asarray(gap, np.float64) for gap in needed(method, episode, "teacher_gap")]
    tokens = episode.column("num_tokens").tolist()
    for turn, (gap, num_tokens) in enumerate(zip(gaps, tokens, strict=True)):
        place = f"'teacher_gap' of episode {episode.name}, turn {turn}"
        if gap.shape != (num_tokens,) or not num_tokens:
            raise ValueError(
                f"{place} must have one number a token, at least one: "
                f"got {gap.size} for {num_tokens} tokens."
            )
        if not np.isfinite(gap).all():
            raise ValueError(f"{place} must be finite.")
    return gaps


def mean_gap(gap: np.ndarray) -> float:
    """Mean over a turn's tokens, exactly rounded.

    >>> mean_gap(np.array([1.0, 0.0, 2.0]))
    1.0
    """
    return math.fsum(gap) / len(gap)


def softmax(scores: np.ndarray) -> np.ndarray:
    """The parts exp(scores) over their sum; the order of the scores changes no bit.

    >>> softmax(np.array([0.0, np.log(3.0)])).round(12).tolist()
    [0.25, 0.75]
    """
    raised = np.exp(scores - scores.max())
    return np.asarray(raised / math.fsum(raised))


def softmax_weights(
    scores: np.ndarray, *, temperature: float = 1.0, low: float = 0.0, high: float = math.inf
) -> np.ndarray:
    """Weights n * softmax(scores / temperature), clipped to [low, high], rescaled to mean 1.

    Equal scores give exactly 1.

    >>> softmax_weights(np.array([0.0, np.log(3.0)])).round(12).tolist()
    [0.5, 1.5]
    """
    if scores.max() == scores.min():
        return np.ones(len(scores))
    return rescaled(np.clip(len(scores) * softmax(scores / temperature), low, high))


def rescaled(weights: np.ndarray) -> np.ndarray:
    """Weights times what makes their mean 1.

    >>> rescaled(np.array([1.0, 3.0, 0.0])).tolist()
    [0.75, 2.25, 0.0]
    """
    return np.asarray(weights * (len(weights) / math.fsum(weights)))


def unit_weights(episode: Episode) -> list[np.ndarray]:
    """Weights that change nothing, one array a turn."""
    return [np.ones(tokens) for tokens in episode.column("num_tokens").tolist()]
