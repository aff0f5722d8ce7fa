"""Keyed sampling against softmax and multinomial, 64 rows x 151,936 logits on the CPU."""

import sys

import numpy as np
import torch

from benchmarks.measure import Comparison, report
from twinstats.noise import KeyColumns, NoiseKey, generator, sample

ROWS, VOCABULARY = 64, 151_936
# Scales of normal logits plus a bonus on one token, and the goal for each.
CASES = ((1.0, 18.0, 0.10), (1.0, 12.0, 0.34), (1.0, 8.0, 1.04))


def main(*, quick: bool = False) -> None:
    """Prints the table."""
    report(
        f"Sampling, {ROWS} rows x {VOCABULARY}: ours against torch softmax + multinomial",
        [_comparison(*case) for case in CASES],
        repeats=5 if quick else 9,
    )


def _comparison(scale: float, bonus: float, goal: float) -> Comparison:
    rng = generator(0, "benchmark")
    logits = rng.normal(size=(ROWS, VOCABULARY)).astype(np.float32) * scale
    logits[:, 7] += bonus
    tensor = torch.from_numpy(logits)
    top = float(torch.softmax(tensor, -1).max(-1).values.mean())
    keys = KeyColumns.of([NoiseKey(0, 0, row, 0) for row in range(ROWS)])
    positions = np.zeros(ROWS, np.int64)
    return Comparison(
        what=f"top probability {top:.2f}",
        ours=lambda: sample(logits, keys, positions),
        theirs=lambda: torch.multinomial(torch.softmax(tensor, -1), 1),
        goal=goal,
    )


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
