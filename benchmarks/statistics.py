"""Statistics against what users call today."""

import subprocess
import sys

import numpy as np
from statsmodels.regression.linear_model import OLS

from benchmarks.measure import Comparison, report
from twinstats import paired
from twinstats.noise import generator


def main(*, quick: bool = False) -> None:
    """Prints the table."""
    rng = generator(0, "benchmark")
    first, second = rng.normal(size=(2, 100_000))
    prompt = np.repeat(np.arange(20_000), 5)
    report(
        "Statistics",
        [
            Comparison(
                what="paired(), 100,000 pairs in 20,000 clusters, against statsmodels OLS",
                ours=lambda: paired(first, second, cluster=prompt),
                theirs=lambda: _least_squares(first - second, prompt),
                goal=10.0,
            ),
            Comparison(
                what="import twinstats against import scipy.stats",
                ours=lambda: _imported("twinstats"),
                theirs=lambda: _imported("scipy.stats"),
                goal=1.0,
            ),
        ],
        repeats=5 if quick else 9,
    )


def _least_squares(difference: np.ndarray, cluster: np.ndarray) -> object:
    model = OLS(difference, np.ones(len(difference)))
    return model.fit(cov_type="cluster", cov_kwds={"groups": cluster})


def _imported(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
