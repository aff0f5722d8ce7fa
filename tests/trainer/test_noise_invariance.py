"""What keyed tokens do not depend on: batch, padding, workers, threads, restarts, position."""

import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.samplers import batch, by_numpy, every_sampler, every_tensor_sampler
from trainer.engines.hf import HfEngine
from twinstats import noise
from twinstats.noise import NoiseKey

ROOT = Path(__file__).parents[2]


@every_sampler
def test_batch_mates_and_row_order_change_nothing(draw):
    logits, keys, positions, temperature = batch(24, 700, seed=2)
    together = draw(logits, keys, positions, temperature)
    order = np.random.default_rng(0).permutation(24)
    mixed = draw(logits[order], [keys[i] for i in order], positions[order], temperature[order])
    assert np.array_equal(mixed, together[order])
    for row in range(24):
        one = slice(row, row + 1)
        alone = draw(logits[one], keys[one], positions[one], temperature[one])
        assert alone[0] == together[row]


@every_sampler
@pytest.mark.parametrize("padding", [1, 57, 256, 1000])
def test_vocabulary_padding_changes_nothing(draw, padding):
    logits, keys, positions, temperature = batch(40, 455, seed=3)
    padded = torch.nn.functional.pad(logits, (0, padding), value=-torch.inf)
    expected = draw(logits, keys, positions, temperature)
    assert np.array_equal(draw(padded, keys, positions, temperature), expected)


@every_sampler
def test_the_global_generators_are_neither_read_nor_written(draw):
    given = batch(20, 300, seed=4)
    expected = draw(*given)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert np.array_equal(draw(*given), expected)
    assert torch.equal(torch.get_rng_state(), state)


def numpy_tokens(rows):
    """What a worker samples: its rows of one batch."""
    logits, keys, positions, temperature = batch(40, 700, seed=5)
    some = [keys[row] for row in rows]
    return by_numpy(logits[rows], some, positions[rows], temperature[rows]).tolist()


def test_the_number_of_workers_changes_nothing():
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    rows = [list(range(start, 40, 3)) for start in range(3)]
    with ProcessPoolExecutor(3, context) as pool:
        found = dict(zip(range(3), pool.map(numpy_tokens, rows, timeout=60), strict=True))
    expected = numpy_tokens(list(range(40)))
    for start in range(3):
        assert found[start] == expected[start::3]


@every_tensor_sampler
def test_the_number_of_threads_changes_nothing(draw):
    given = batch(60, 3000, seed=6)
    found = []
    try:
        for threads in (2, 1):
            torch.set_num_threads(threads)
            found.append(draw(*given).tolist())
    finally:
        torch.set_num_threads(1)
    assert found[0] == found[1] == by_numpy(*given).tolist()


RESTARTED = """
import json
import numpy as np, torch
from trainer.noise import key_words, sample, sample_words
from trainer.processors.request import request_of
from trainer.processors.generate import KeyedLogitsProcessor
from twinstats import noise
from twinstats.noise import KeyColumns, NoiseKey

keys = [NoiseKey(11, 3, row, row % 4, row % 3, "sample") for row in range(30)]
logits = torch.tensor(np.sin(np.arange(30 * 700) ** 1.5).reshape(30, 700))
words, at = key_words(KeyColumns.of(keys)), torch.arange(30)
fields = dict(seed=11, step=3, purpose="sample")
requests = [
    request_of({"twinstats": json.dumps(
        fields | dict(row=row, turn=row % 4, luck=row % 3, position=row))})
    for row in range(30)
]
left = KeyedLogitsProcessor(requests, 1)(torch.zeros(30, 1).long(), logits)
print(json.dumps([
    noise.sample(logits.numpy(), keys, range(30)).tolist(),
    sample(logits, keys, range(30)).tolist(),
    sample_words(logits, words, at, torch.ones(30).double()).tolist(),
    left.argmax(1).tolist(),
]))
"""


def test_another_process_draws_the_same_tokens():
    keys = [NoiseKey(11, 3, row, row % 4, row % 3, "sample") for row in range(30)]
    logits = torch.tensor(np.sin(np.arange(30 * 700) ** 1.5).reshape(30, 700))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"}
    ran = subprocess.run(
        [sys.executable, "-c", RESTARTED],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    expected = by_numpy(logits, keys, list(range(30))).tolist()
    assert json.loads(ran.stdout) == [expected] * 4


class Talk:
    """A session of three turns with fixed texts between; turn 1 of a twin has a key of its own."""

    def __init__(self, *, is_twin=False):
        self.is_twin, self.turns = is_twin, []

    def start(self):
        return [300, 301, 302]

    def key(self):
        turn = len(self.turns)
        if self.is_twin and turn == 1:
            return NoiseKey(1, 2, 4, turn, luck=1, purpose="alternative")
        return NoiseKey(1, 2, 4, turn)

    def advance(self, turn):
        self.turns.append(turn.tokens)
        return [310, 311] if len(self.turns) < 4 else None


@pytest.fixture
def flat(policy):
    """A policy whose logits are all 0: its tokens are its luck, and nothing else."""
    with torch.no_grad():
        policy.model.base_model.norm.weight.zero_()
    return policy.model


def test_a_twins_later_turns_have_the_factuals_luck_at_other_absolute_positions(flat):
    engine = HfEngine(flat, stop=frozenset(range(60)), max_turn_tokens=40)
    factual, twin = Talk(), Talk(is_twin=True)
    engine.run([factual, twin], temperature=1.0)
    assert len(factual.turns[1]) != len(twin.turns[1])
    for turn in (0, 2, 3):
        assert twin.turns[turn] == factual.turns[turn]
        luck = [noise.gumbel(NoiseKey(1, 2, 4, turn), p, np.arange(600)) for p in range(40)]
        tokens = factual.turns[turn]
        assert list(tokens) == [int(one.argmax()) for one in luck[: len(tokens)]]
