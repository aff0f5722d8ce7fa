"""The laws of keyed noise on tensors: Gumbel, independent by key, and softmax once sampled."""

import numpy as np
import pytest
import torch
from scipy import stats

from tests.samplers import by_blocks
from trainer.noise import gumbel, key_words
from twinstats.noise import BLOCK, KeyColumns, NoiseKey


def every_id(keys, positions, num_ids):
    ids = torch.arange(num_ids).expand(len(keys), -1)
    return gumbel(key_words(KeyColumns.of(keys)), torch.tensor(positions), ids).numpy()


@pytest.mark.parametrize("vary", ["id", "row", "position"])
def test_noise_follows_the_gumbel_law(vary):
    keys = [NoiseKey(7, 3, row, 2) for row in range(3000 if vary == "row" else 1)]
    if vary == "position":
        keys, positions = keys * 3000, list(range(3000))
    else:
        positions = [4] * len(keys)
    values = every_id(keys, positions, 100_000 if vary == "id" else 2).ravel()
    assert stats.kstest(values, "gumbel_r").pvalue > 1e-6


def test_noise_of_rows_turns_lucks_purposes_positions_and_blocks_is_uncorrelated():
    grid = [NoiseKey(7, 3, row, turn) for row in (5, 6) for turn in (2, 3)]
    others = [NoiseKey(8, 3, 5, 2), NoiseKey(7, 4, 5, 2), NoiseKey(7, 3, 5, 2, 1)]
    apart = [NoiseKey(7, 3, 5, 2, purpose=name) for name in ("alternative", "choose", "fresh/2")]
    keys = [*grid, *others, *apart]
    keys, positions = keys * 3, [at for at in (0, 1, 2**32 - 1) for _ in keys]
    values = every_id(keys, positions, 8192)
    assert len(np.unique(values)) == values.size  # no two share a number
    shifted = values[0].reshape(-1, BLOCK)
    series = np.concatenate((values, shifted[::-1].reshape(1, -1), shifted[:, ::-1].reshape(1, -1)))
    found = np.corrcoef(series) - np.eye(len(series))
    pairs = len(series) * (len(series) - 1) / 2
    assert np.abs(found).max() * np.sqrt(8192) < stats.norm.isf(1e-6 / 2 / pairs)
    large = np.corrcoef(series > 2) - np.eye(len(series))  # also in the tail, which wins
    assert np.abs(large).max() * np.sqrt(8192) < 1.5 * stats.norm.isf(1e-6 / 2 / pairs)


def chi_square(draw, logits, temperature, num_draws, chunk=25_000):
    counts = np.zeros(len(logits), np.int64)
    for start in range(0, num_draws, chunk):
        rows = np.arange(start, min(start + chunk, num_draws))
        keys = KeyColumns.grid(3, 0, "sample", row=rows, turn=1)
        tokens = draw(logits.expand(len(rows), -1), keys, rows % 7, temperature)
        counts += np.bincount(tokens, minlength=len(logits))
    law = torch.softmax(logits.double() / temperature, 0).numpy()
    assert not counts[law == 0].any()
    return stats.chisquare(counts[law > 0], law[law > 0] * num_draws).pvalue


def law(size):
    logits = torch.from_numpy(np.random.default_rng(size).normal(size=size) * 1.5)
    logits[size // 2] = -torch.inf
    return logits


@pytest.mark.parametrize(("size", "num_draws"), [(3, 100_000), (40, 40_000), (530, 12_000)])
def test_sampling_follows_the_softmax(size, num_draws):
    assert chi_square(by_blocks, law(size), 0.8, num_draws) > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 257])
def test_a_million_draws_follow_the_softmax(size):
    assert chi_square(by_blocks, law(size), 1.2, 1_000_000, chunk=10_000) > 1e-6
