"""The mean of independent values, such as one a seed, with its t interval.

Leaves out clusters, weights and pairs (`pairs`).
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit


def mean_interval(
    values: Sequence[float] | np.ndarray, confidence: float = 0.95
) -> tuple[float, float] | None:
    """Mean -+ t * s / sqrt(n), with t of n - 1 degrees of freedom; null for fewer than two values.

    It assumes independent values whose mean is about normal. Equal values give a width of 0.

    >>> low, high = mean_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    found = np.asarray(values, np.float64)
    if len(found) < 2:
        return None
    quantile = stdtrit(len(found) - 1, (1 + confidence) / 2)
    mean = float(found.mean())
    half = float(quantile * found.std(ddof=1) / np.sqrt(len(found)))
    return mean - half, mean + half
