"""Keyed noise on tensors: the integers of `twinstats.noise`, the same tokens, the same refusals."""

import re

import numpy as np
import pytest
import torch

from tests.golden import GOLDEN, IDS
from tests.samplers import (
    DTYPES,
    batch,
    by_blocks,
    by_numpy,
    by_torch,
    every_sampler,
    every_tensor_sampler,
)
from trainer.noise import blocks, gumbel, key_words, sample
from twinstats import noise, philox
from twinstats.noise import KeyColumns, LogitsError, NoiseKey

KEY = NoiseKey(7, 3, 5, 2)


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
    keys, positions, golden = zip(*GOLDEN, strict=True)
    words = key_words(KeyColumns.of(keys))
    found = gumbel(words, torch.tensor(positions), torch.tensor([IDS] * len(GOLDEN)))
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


# --- hostile logits -------------------------------------------------------------------------


@every_sampler
@pytest.mark.parametrize("largest", [1.0, -5.0])
def test_logits_that_overflow_at_their_temperature_are_refused_by_row(draw, largest):
    logits = torch.tensor([[0.0, 1.0], [largest, largest - 1]], dtype=torch.double)
    keys = [NoiseKey(1, 0, row, 0) for row in range(2)]
    with pytest.raises(LogitsError, match=r"stay finite .* in row 1 \(NoiseKey") as refused:
        draw(logits, keys, [0, 0], np.array([1.0, 5e-324]))
    assert refused.value.row == 1


@pytest.mark.parametrize(
    "logits",
    [torch.zeros(2, 5, dtype=kind) for kind in (torch.long, torch.bool, torch.cfloat)]
    + [torch.zeros(5), torch.zeros(2, 5, 1)],
    ids=lambda logits: f"{logits.dtype} {logits.ndim}",
)
def test_logits_that_are_no_rows_of_floats_are_refused(logits):
    with pytest.raises(ValueError, match=r"`logits` must be \(rows, vocabulary\) of floats, got"):
        sample(logits, [KEY, KEY], [0, 0])


@every_tensor_sampler
def test_logits_that_need_a_gradient_are_drawn_from_like_any(draw):
    logits, keys, positions, temperature = batch(20, 300)
    needing = logits.clone().requires_grad_()
    found = draw(needing, keys, positions, temperature)
    assert found.tolist() == draw(logits, keys, positions, temperature).tolist()
