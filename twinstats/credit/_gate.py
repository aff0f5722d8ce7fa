"""Gates over the tokens of a turn: sparse weights of mean 1.

Leaves out how many tokens a turn may open, and what their scores are.
"""

import numpy as np

from twinstats.credit._teacher import rescaled


def top_weights(importance: np.ndarray, num_open: int) -> np.ndarray:
    """The `num_open` largest in proportion to their importance, 0 elsewhere; mean 1.

    Equal importances go to the earlier token.

    >>> top_weights(np.array([0.25, 0.1, 0.75]), 2).tolist()
    [0.75, 0.0, 2.25]
    """
    kept = np.argsort(-importance, kind="stable")[:num_open]
    weights = np.zeros(len(importance))
    weights[kept] = importance[kept]
    return rescaled(weights)


def sparsemax(scores: np.ndarray) -> np.ndarray:
    """The point of the probability simplex that is nearest to the scores.

    max(score - threshold, 0), the threshold such that the parts add up to 1: with the k largest
    scores z_1 >= .. >= z_k, k the last for which 1 + k z_k > sum of them, (sum - 1) / k.

    >>> sparsemax(np.array([1.0, 0.5, -1.0])).tolist()
    [0.75, 0.25, 0.0]

    Source: Martins and Astudillo, arXiv 1602.02068, algorithm 1.
    """
    highest = np.sort(scores)[::-1]
    ranks = np.arange(1, len(scores) + 1)
    sums = np.cumsum(highest)
    last = int(np.flatnonzero(1 + ranks * highest > sums)[-1])
    return np.asarray(np.maximum(scores - (sums[last] - 1) / ranks[last], 0.0))


def sparsemax_weights(scores: np.ndarray) -> np.ndarray:
    """`sparsemax` rescaled to mean 1; equal scores give exactly 1."""
    if scores.max() == scores.min():
        return np.ones(len(scores))
    return rescaled(sparsemax(scores))
