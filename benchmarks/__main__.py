"""Runs every benchmark: `python -m benchmarks [--quick]`."""

import sys

from benchmarks import noise, rollout, simulations, statistics, trainer

if __name__ == "__main__":
    for benchmark in (noise, simulations, rollout, statistics, trainer):
        benchmark.main(quick="--quick" in sys.argv[1:])
