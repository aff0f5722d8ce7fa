"""Runs every benchmark: `python -m benchmarks [--quick]`."""

import sys

from benchmarks import noise, rollout, statistics

if __name__ == "__main__":
    for benchmark in (noise, rollout, statistics):
        benchmark.main(quick="--quick" in sys.argv[1:])
