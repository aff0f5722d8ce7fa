"""Bounds on biases of several places at once, from sums over independent units."""

from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit


class Bias(NamedTuple):
    """A mean over units, its standard error and the half width of its interval."""

    mean: float
    stderr: float
    half: float


def simultaneous(total: float, square: float, count: int, num_places: int) -> Bias:
    """The mean of `count` units, with an interval that holds for all places at once.

    95% t intervals with Bonferroni's correction.

    Args:
        total: Sum over the units.
        square: Sum of their squares.
        count: Number of units, at least 2.
        num_places: How many places are judged together.
    """
    mean = total / count
    variance = (square - count * mean**2) / (count - 1)
    stderr = float(np.sqrt(max(0.0, variance) / count))
    half = float(stdtrit(count - 1, 1 - 0.025 / num_places)) * stderr
    return Bias(mean, stderr, half)
