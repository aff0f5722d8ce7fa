"""Keyed noise on tensors: the integers of `twinstats.noise`, the same tokens, the same refusals.

`blocks` is what a device without Triton runs; here it runs on the CPU, through `sample_words`.
"""

import json
import multiprocessing
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from trainer.engines.hf import HfEngine
from trainer.noise import blocks, gumbel, key_words, sample, sample_words, truncate
from trainer.processors.generate import KeyedLogitsProcessor
from trainer.processors.request import KeyedRequest
from twinstats import noise, philox
from twinstats.noise import BLOCK, KeyColumns, LogitsError, NoiseKey

ROOT = Path(__file__).parents[2]
KEY = NoiseKey(7, 3, 5, 2)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NEVER = stats.norm.isf(1e-6 / 2)  # a bound that a right answer passes once in a million runs


def by_numpy(logits, keys, positions, temperature=1.0):
    return noise.sample(logits.double().numpy(), keys, positions, temperature)


def by_torch(logits, keys, positions, temperature=1.0):
    return sample(logits, keys, positions, temperature).numpy()


def by_blocks(logits, keys, positions, temperature=1.0):
    columns = keys if isinstance(keys, KeyColumns) else KeyColumns.of(keys)
    scale = torch.from_numpy(np.broadcast_to(np.float64(temperature), len(logits)).copy())
    where = torch.from_numpy(np.array(positions, np.int64))
    return sample_words(logits, key_words(columns), where, scale, keys).numpy()


def by_processor(logits, keys, positions, temperature=1.0):
    scales = np.broadcast_to(temperature, len(logits)).tolist()
    rows = zip(keys, positions, scales, strict=True)
    requests = [KeyedRequest(key=k, position=int(at), temperature=t) for k, at, t in rows]
    left = KeyedLogitsProcessor(requests, 3)(torch.zeros(len(logits), 3).long(), logits)
    assert bool((torch.isfinite(left).sum(1) == 1).all())
    return left.argmax(1).numpy()


SAMPLERS = {f.__name__: f for f in (by_numpy, by_torch, by_blocks, by_processor)}
every_sampler = pytest.mark.parametrize("draw", SAMPLERS.values(), ids=SAMPLERS)
every_tensor_sampler = pytest.mark.parametrize("draw", [by_torch, by_blocks, by_processor])


def batch(num_rows, size, *, seed=0, kind="normal"):
    """Logits, keys, positions and temperatures (some 0) of a random batch."""
    rng = np.random.default_rng([seed, num_rows, size, len(kind)])
    logits = rng.normal(size=(num_rows, size)) * 3
    if kind == "flat":
        logits[:] = rng.normal(size=(num_rows, 1))
    elif kind == "peaked":
        logits[np.arange(num_rows), rng.integers(0, size, num_rows)] += 15
    elif kind == "masked":
        logits[rng.random((num_rows, size)) < 0.9] = -np.inf
        logits[np.arange(num_rows), rng.integers(0, size, num_rows)] = 0.0
    elif kind == "ties":
        logits = rng.integers(1, 3, (num_rows, size)) * 1.0
    keys = [NoiseKey(seed, int(rng.integers(99)), row, row % 7, row % 3) for row in range(num_rows)]
    # so cold that the noise is lost in rounding: exact ties
    degrees = [0.0, 1e-30] if kind == "ties" else [0.0, 0.05, 0.7, 1.0, 1.5, 9.0]
    temperature = rng.choice(degrees, num_rows)
    return torch.from_numpy(logits), keys, rng.integers(0, 2**32, num_rows), temperature


# --- the integers and the Gumbels -----------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, words):
    lane, position, turn_luck, row = (torch.tensor([int(w, 16)]) for w in counter.split())
    k0, k1 = (torch.tensor([int(w, 16)]) for w in key.split())
    found = blocks.philox4x32(lane, position, torch.stack((k0, k1, turn_luck, row), dim=-1))
    assert [f"{int(word[0]):08x}" for word in found] == words.split()


def test_philox_has_numpys_integers_at_random_counters_and_at_the_extremes():
    rng = np.random.default_rng(0)
    edges = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
    words = rng.integers(0, 2**32, (20_000, 6))
    is_edge = rng.random(words.shape) < 0.3
    words[is_edge] = rng.choice(edges, is_edge.sum())
    lane, position, turn_luck, row, k0, k1 = words.T
    expected = philox.philox4x32((lane, position, turn_luck, row), (k0, k1))
    keys = torch.from_numpy(np.stack((k0, k1, turn_luck, row), axis=1))
    found = blocks.philox4x32(torch.from_numpy(lane), torch.from_numpy(position), keys)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.int64
        assert np.array_equal(one.numpy().astype(np.uint64), other)


def test_key_words_are_the_columns_of_the_keys():
    keys = [KEY, NoiseKey(-1, 2**40, 2**32 - 1, 65535, 65535, "alternative/0.0.shared.resample")]
    columns = KeyColumns.of(keys)
    expected = np.stack((*columns.words, columns.turn_luck, columns.row), axis=1)
    words = key_words(columns)
    assert words.dtype == torch.int64
    assert np.array_equal(words.numpy().astype(np.uint64), expected)
    assert key_words(KeyColumns.of([])).shape == (0, 4)


def test_noise_has_its_golden_values():
    keys = [KEY, NoiseKey(7, 3, 5, 2, 1, "alternative")]
    ids = torch.tensor([[0, 1, 2, 3, 255, 256, 1000, 151935]] * 2)
    golden = [
        [1.0206202721422601, 2.4959897948505514, 0.7783864878414736, -0.17033030826753126]
        + [-0.10289553184483508, 0.7169954517828189, 1.3910429987659523, 4.771685053413678],
        [1.4159148513307676, -0.38292606227496867, 1.1498715051076416, 0.6105397276027605]
        + [-0.6886487864946228, -1.1931758169343354, 2.3376531975064574, 0.4976450436629311],
    ]
    found = gumbel(key_words(KeyColumns.of(keys)), torch.tensor([11, 0]), ids)
    np.testing.assert_allclose(found.numpy(), golden, rtol=1e-14)


def test_noise_is_numpys_whatever_the_key_the_position_and_the_id():
    rng = np.random.default_rng(1)
    keys = [NoiseKey(r, -r, 2**32 - 1 - r, 65535 - r, r, f"purpose {r}") for r in range(20)]
    positions = rng.integers(0, 2**32, 20)
    ids = np.concatenate((np.arange(600), rng.integers(0, 2**32, 100), [2**32 - 1, 2**31]))
    at, tokens = torch.from_numpy(positions), torch.from_numpy(np.tile(ids, (20, 1)))
    found = gumbel(key_words(KeyColumns.of(keys)), at, tokens).numpy()
    for key, position, values in zip(keys, positions, found, strict=True):
        np.testing.assert_allclose(values, noise.gumbel(key, int(position), ids), rtol=1e-13)


def test_rounding_lifts_no_noise_above_its_blocks_maximum(monkeypatch):
    monkeypatch.setattr(
        blocks, "_uniform52", lambda high, low: torch.full(high.shape, 1 - 2.0**-53).double()
    )
    maximum = torch.linspace(-2, 30, 5000, dtype=torch.double)[None]
    words, ids = key_words(KeyColumns.of([KEY]))[:, None], torch.zeros(1, 5000, dtype=torch.long)
    below = blocks._below(words, torch.zeros(1, 1).long(), ids, maximum, ids + 1)
    assert bool((below <= maximum).all())


# --- the tokens -----------------------------------------------------------------------------


@every_tensor_sampler
@pytest.mark.parametrize("kind", ["normal", "flat", "peaked", "masked", "ties"])
@pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 700, 3072])
def test_every_sampler_takes_numpys_tokens(draw, kind, size):
    for seed, dtype in enumerate(DTYPES):
        logits, keys, positions, temperature = batch(40, size, seed=seed, kind=kind)
        logits = logits.to(dtype)
        expected = by_numpy(logits, keys, positions, temperature)
        assert np.array_equal(draw(logits, keys, positions, temperature), expected), dtype


@every_tensor_sampler
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_sampler_takes_numpys_tokens_at_a_real_vocabulary(draw, dtype):
    logits, keys, positions, temperature = batch(6, 151_936)
    logits[3:] = logits[3:] * 3
    expected = by_numpy(logits.to(dtype), keys, positions, temperature)
    assert np.array_equal(draw(logits.to(dtype), keys, positions, temperature), expected)


@every_tensor_sampler
def test_logits_may_lie_in_memory_as_they_like(draw):
    logits, keys, positions, temperature = batch(30, 700)
    expected = by_numpy(logits, keys, positions, temperature)
    wide = torch.full((60, 1500), torch.inf, dtype=torch.double)
    wide[::2, 1:1401:2] = logits
    for same in (logits.T.contiguous().T, wide[::2, 1:1401:2]):
        assert not same.is_contiguous()
        assert np.array_equal(draw(same, keys, positions, temperature), expected)
    one = logits[:1].expand(30, -1)
    expected = by_numpy(one.contiguous(), keys, positions, temperature)
    assert np.array_equal(draw(one, keys, positions, temperature), expected)


@pytest.mark.parametrize("draw", [by_torch, by_blocks])
def test_columns_and_one_temperature_serve_as_keys_and_temperatures(draw):
    logits, keys, positions, _ = batch(20, 300)
    for temperature in (0.0, 0.8):
        expected = by_numpy(logits, keys, positions, temperature)
        assert np.array_equal(draw(logits, KeyColumns.of(keys), positions, temperature), expected)


@every_tensor_sampler
def test_an_empty_batch_gives_no_tokens(draw):
    logits = torch.zeros(0, 300)
    assert draw(logits, [], [], np.zeros(0)).tolist() == []


def test_a_score_is_the_winners_own():
    logits, keys, positions, temperature = batch(50, 700)
    words, where = key_words(KeyColumns.of(keys)), torch.from_numpy(positions)
    ids, score = blocks.sample(logits, words, where, torch.from_numpy(temperature))
    luck = gumbel(words, where, ids[:, None])[:, 0].numpy() * (temperature > 0)
    scaled = logits.gather(1, ids[:, None])[:, 0].numpy() / np.where(temperature, temperature, 1)
    np.testing.assert_allclose(score.numpy(), scaled + luck, rtol=1e-12)


# --- refusals -------------------------------------------------------------------------------


def spoilt(fault):
    """Row 2 has the fault; NaN hides in a block that need not be looked into."""
    logits, keys, positions, temperature = batch(5, 700)
    logits[2] = -torch.inf if fault == "masked" else logits[2]
    if fault != "masked":
        logits[2, 10], logits[2, 600] = {"nan": torch.nan, "inf": torch.inf}[fault], 90.0
    return logits, keys, positions, temperature


@every_sampler
@pytest.mark.parametrize("fault", ["nan", "inf", "masked"])
@pytest.mark.parametrize("is_greedy", [False, True])
def test_logits_without_a_law_are_refused_by_row_and_key(draw, fault, is_greedy):
    logits, keys, positions, temperature = spoilt(fault)
    temperature = np.zeros(5) if is_greedy else temperature
    message = f"in row 2 ({keys[2]})"
    with pytest.raises(LogitsError, match=re.escape(message)) as refused:
        draw(logits, keys, positions, temperature)
    assert refused.value.row == 2


@every_tensor_sampler
def test_a_nan_is_never_missed(draw):
    """Whether or not its block can win: it was missed where another block's score was finite."""
    for row in range(30):
        logits, keys, positions, _ = batch(1, 700, seed=row)
        logits[0, 7] = torch.nan
        with pytest.raises(LogitsError, match="must not be NaN"):
            draw(logits, keys, positions, np.ones(1))


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_temperature_without_a_law_names_its_row_and_key(bad):
    logits, keys, positions, temperature = batch(5, 30)
    temperature[3] = bad
    with pytest.raises(ValueError, match=re.escape(f"got {bad} in row 3 ({keys[3]})")):
        sample(logits, keys, positions, temperature)


@pytest.mark.parametrize("position", [-1, 2**32])
def test_a_position_that_would_wrap_is_refused(position):
    with pytest.raises(ValueError, match="`positions` must be in"):
        sample(torch.zeros(1, 3), [KEY], np.array([position]))


@pytest.mark.parametrize(
    ("rows", "keys", "positions", "temperature", "message"),
    [
        (2, 1, 2, 1.0, "one key and one position a row, got 2 rows, 1 keys and 2 positions"),
        (2, 2, 1, 1.0, "one key and one position a row, got 2 rows, 2 keys and 1 positions"),
        (2, 2, 2, np.ones(3), "`temperature` must be one number or one a row"),
        (2, 2, 2, np.ones((2, 1)), "`temperature` must be one number or one a row"),
    ],
)
def test_shapes_that_do_not_agree_are_refused(rows, keys, positions, temperature, message):
    with pytest.raises(ValueError, match=message):
        sample(torch.zeros(rows, 3), [KEY] * keys, [0] * positions, temperature)


# --- truncation -----------------------------------------------------------------------------


def settings(num_rows, rng):
    choices = {
        "top_k": [0, 1, 2, 7, 40, 10_000],
        "top_p": [1.0, 1e-9, 0.3, 0.5, 0.9, 0.999],
        "temperature": [0.3, 1.0, 2.5],
    }
    return {name: rng.choice(values, num_rows).tolist() for name, values in choices.items()}


@pytest.mark.parametrize("kind", ["normal", "flat", "masked", "rounded"])
@pytest.mark.parametrize("size", [1, 3, 300, 3000])
def test_truncation_is_numpys_row_by_row(kind, size):
    rng = np.random.default_rng(size)
    for dtype in DTYPES:
        logits = batch(30, size, kind=kind)[0]
        logits = (logits.round() if kind == "rounded" else logits).to(dtype)
        columns = settings(30, rng)
        found = truncate(logits, **{n: torch.tensor(np.array(c)) for n, c in columns.items()})
        assert found.dtype == dtype
        for row, values in enumerate(found.double().numpy()):
            options = {name: column[row] for name, column in columns.items()}
            expected = noise.truncate(logits[row].double().numpy(), **options)
            assert np.array_equal(values, expected), (dtype, options)


def one_rule(logits, *, top_k=0, top_p=1.0, temperature=1.0):
    rows = len(logits)
    return truncate(
        logits,
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p, dtype=torch.double),
        temperature=torch.full((rows,), temperature, dtype=torch.double),
    )


def test_top_p_forgives_the_rounding_of_sums():
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.double).log()
    for top_p, expected in ((0.39, [3]), (0.4, [3]), (0.41, [2, 3]), (0.7, [2, 3]), (1e-9, [3])):
        assert torch.isfinite(one_rule(logits, top_p=top_p)).nonzero()[:, 1].tolist() == expected
    for low, high, kept in ((2, 3, 1), (2, 5, 3), (2, 6, 3)):  # where the sum falls short of it
        many = torch.tensor([[low] * 5 + [high] * 12], dtype=torch.double)
        found = one_rule(many.log(), top_p=kept * high / float(many.sum()))
        assert torch.isfinite(found).nonzero()[:, 1].tolist() == list(range(5, 5 + kept))


def test_truncation_off_gives_the_logits_themselves():
    logits = torch.zeros(2, 9)
    assert one_rule(logits) is logits


def test_truncation_leaves_the_given_logits_as_they_are():
    logits = batch(5, 90)[0]
    before = logits.clone()
    assert torch.isinf(one_rule(logits, top_k=4)).sum() == 5 * 86
    assert torch.equal(logits, before)


def test_truncation_at_temperature_zero_keeps_the_largest():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    kept = one_rule(logits, top_p=0.2, temperature=0.0)
    assert torch.isfinite(kept).nonzero()[:, 1].tolist() == [1]


# --- what the tokens must not depend on ----------------------------------------------------


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


# --- laws -----------------------------------------------------------------------------------


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


# --- a turn of another length --------------------------------------------------------------


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
