"""Runs every benchmark: `python -m benchmarks [--quick]`."""

import sys

from benchmarks import noise, rollout, statistics, trainer

if __name__ == "__main__":
    for benchmark in (noise, rollout, statistics, trainer):
        benchmark.main(quick="--quick" in sys.argv[1:])
