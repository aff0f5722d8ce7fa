"""Other samples' column sums: Dirichlet weights over clusters or 2x2 cells, clusters left out.

Leaves out what is computed from the sums (`_variance_columns`).
"""

import numpy as np

from twinstats._outcomes import Pairs
from twinstats._paired_tests import chunk_sizes
from twinstats._variance_columns import Arrays
from twinstats.noise import generator

NUM_DRAWS = 20_000
NORMAL_CLUSTERS = 20_000
_NORMAL_PARTICIPATION = 1_000


def cell_sums(pairs: Pairs, seed: int = 0) -> dict[str, np.ndarray]:
    """Column sums under the Dirichlet(1/2) posterior of the four cells of binary pairs.

    Source: Jeffreys prior of a multinomial.
    """
    factual, twin = pairs.factual, pairs.twin
    counts = np.bincount((2 * factual + twin).astype(np.int64), minlength=4)
    share = generator(seed, "bootstrap").dirichlet(counts + 0.5, NUM_DRAWS)
    lower, higher, both = share[:, 1], share[:, 2], share[:, 3]
    first, second = both + higher, both + lower
    return {
        "n": np.ones(NUM_DRAWS),
        "f": first,
        "t": second,
        "x": higher - lower,
        "ff": first,
        "tt": second,
        "ft": both,
        "xx": higher + lower,
        "differs": higher + lower,
    }


def cluster_draws(columns: Arrays, cluster: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Column sums under Dirichlet(1) weights over clusters (Bayesian bootstrap).

    The weights are left unnormalised, iid Exp(1), since every statistic is a ratio of sums. Equal
    clusters are drawn together, as one Gamma. Beyond 20,000 different clusters, if each column is
    spread over at least 1,000 of them, the sums come from their normal limit.

    Source: Rubin 1981, The Bayesian bootstrap, Annals of Statistics 9:130-134.
    """
    matrix = np.column_stack([np.bincount(cluster, weights=column) for column in columns.values()])
    peak = np.max(np.abs(matrix), axis=0)
    peak = np.where(peak > 0, peak, 1.0)
    matrix, counts = _distinct(matrix[(matrix != 0).any(axis=1)] / peak)
    rng = generator(seed, "bootstrap")
    if len(matrix) > NORMAL_CLUSTERS and _participation(matrix, counts) > _NORMAL_PARTICIPATION:
        spread = (matrix * counts[:, None]).T @ matrix
        sums = rng.multivariate_normal(counts @ matrix, spread, NUM_DRAWS, method="eigh")
    else:
        sums = np.concatenate(_weighted_sums(matrix, counts, rng))
    return dict(zip(columns, (sums * peak).T, strict=True))


def sums_without_each(columns: Arrays, cluster: np.ndarray) -> dict[str, np.ndarray]:
    """Column sums without each cluster in turn, for the jackknife; clusters of zeros stay."""
    matrix = np.column_stack([np.bincount(cluster, weights=column) for column in columns.values()])
    kept = matrix[(matrix != 0).any(axis=1)]
    return dict(zip(columns, (matrix.sum(axis=0) - kept).T, strict=True))


def _distinct(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different rows and how often each occurs, told apart by a random projection."""
    projection = generator(0, "bootstrap", 1).uniform(1, 2, matrix.shape[1])
    _, first, inverse, counts = np.unique(
        np.einsum("ij,j->i", matrix, projection),
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    if not np.array_equal(matrix[first][inverse], matrix):
        return matrix, np.ones(len(matrix))
    return matrix[first], counts.astype(np.float64)


def _participation(matrix: np.ndarray, counts: np.ndarray) -> float:
    """Effective number of clusters of the column that rests on the fewest."""
    total = counts @ np.abs(matrix)
    square = counts @ matrix**2
    return float(np.min(total[square > 0] ** 2 / square[square > 0]))


def _weighted_sums(
    matrix: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    shape = counts.astype(np.float32)
    is_single = bool((counts == 1).all())
    pieces = []
    for size in chunk_sizes(NUM_DRAWS, len(matrix)):
        if is_single:
            weight = rng.standard_exponential((size, len(matrix)), dtype=np.float32)
        else:
            weight = rng.standard_gamma(shape, (size, len(matrix)), dtype=np.float32)
        pieces.append(weight.astype(np.float64) @ matrix)
    return pieces
