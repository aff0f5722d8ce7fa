"""Statistics against what users call today, and against the limits that we promise."""

import subprocess
import sys

import numpy as np
from statsmodels.regression.linear_model import OLS

from benchmarks.measure import Comparison, Limit, peak_bytes, report
from twinstats import agreement, paired, paired_power, pairs_needed, sqrt_allocation
from twinstats.noise import generator

VOCABULARY = 151_936


def main(*, quick: bool = False) -> None:
    """Prints the table."""
    rows = [*_pairs(10**6 if quick else 10**7), *_clusters(), *_designs()]
    report("Statistics", rows, repeats=5 if quick else 9)


def _pairs(num_pairs: int) -> list[Comparison | Limit]:
    factual, twin = generator(0, "benchmark").normal(size=(2, num_pairs))

    def moments() -> object:
        difference = factual - twin
        return difference.mean(), difference.var(), factual.var(), twin.var()

    return [
        Comparison(
            what=f"paired(), {num_pairs:,} pairs, against mean and variances in NumPy",
            ours=lambda: paired(factual, twin),
            theirs=moments,
            goal=2.0,
        ),
        Limit(
            what=f"paired(), {num_pairs:,} pairs: arrays of the input's size at the peak",
            ours=lambda: paired(factual, twin),
            limit=3.0,
            unit="arrays",
            measure=peak_bytes,
            per=factual.nbytes,
        ),
    ]


def _clusters() -> list[Comparison | Limit]:
    factual, twin = generator(1, "benchmark").normal(size=(2, 100_000))
    prompt = np.repeat(np.arange(20_000), 5)
    return [
        Comparison(
            what="paired(), 100,000 pairs in 20,000 clusters, against statsmodels OLS",
            ours=lambda: paired(factual, twin, cluster=prompt),
            theirs=lambda: _least_squares(factual - twin, prompt),
            goal=10.0,
        ),
        Comparison(
            what="import twinstats against import scipy.stats",
            ours=lambda: _imported("twinstats"),
            theirs=lambda: _imported("scipy.stats"),
            goal=1.0,
        ),
    ]


def _designs() -> list[Comparison | Limit]:
    rng = generator(2, "benchmark")
    variance, cost = rng.exponential(size=10**6), rng.uniform(1.0, 3.0, 10**6)
    p, q = rng.dirichlet(np.ones(VOCABULARY), 2)
    return [
        Limit(
            what="paired_power(), exact, n = 1,000,000, discordance 0.5",
            ours=lambda: paired_power(0.002, 10**6, discordance=0.5),
            limit=0.2,
        ),
        Limit(
            what="pairs_needed(), exact, effect = discordance = 1e-5",
            ours=lambda: pairs_needed(1e-5, discordance=1e-5),
            limit=1.0,
        ),
        Limit(
            what="sqrt_allocation(), 1,000,000 items, whole counts, unequal costs",
            ours=lambda: sqrt_allocation(variance, cost, budget=1e7, integer=True),
            limit=2.0,
        ),
        Limit(
            what=f"agreement(), {VOCABULARY:,} categories",
            ours=lambda: agreement(p, q),
            limit=0.1,
        ),
    ]


def _least_squares(difference: np.ndarray, cluster: np.ndarray) -> object:
    model = OLS(difference, np.ones(len(difference)))
    return model.fit(cov_type="cluster", cov_kwds={"groups": cluster})


def _imported(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
