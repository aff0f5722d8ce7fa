import math
import re

import numpy as np
import pytest
from scipy import stats

from tests.golden import GOLDEN, IDS
from twinstats import _gumbel_blocks
from twinstats.noise import (
    BLOCK,
    KeyColumns,
    LogitsError,
    NoiseKey,
    generator,
    gumbel,
    sample,
    truncate,
    uniform,
    uniforms,
)
from twinstats.philox import philox4x32, uniform52

KEY = NoiseKey(7, 3, 5, 2)
NEVER = stats.norm.isf(1e-6 / 2)  # a bound that a right answer passes once in a million runs


def plain(logits, keys, positions, temperature):
    """The definition: the noise of every id, then one argmax."""
    ids = np.arange(logits.shape[1])
    scores = [
        row.astype(np.float64) / temperature + gumbel(key, int(position), ids)
        for row, key, position in zip(logits, keys, positions, strict=True)
    ]
    return np.argmax(scores, axis=1)


def correlation(one, other):
    return np.corrcoef(one, other)[0, 1] * math.sqrt(len(one))


# --- Philox ---------------------------------------------------------------------------------


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
    c, k = (tuple(np.array([int(w, 16)]) for w in text.split()) for text in (counter, key))
    assert [f"{int(word[0]):08x}" for word in philox4x32(c, k)] == words.split()


def test_philox_of_arrays_is_philox_of_each_entry():
    rng = np.random.default_rng(0)
    counter = tuple(rng.integers(0, 2**32, 50, np.uint64) for _ in range(4))
    together = np.array(philox4x32(counter, (1, 2**32 - 1)))
    for i in range(50):
        alone = philox4x32(tuple(word[i : i + 1] for word in counter), (1, 2**32 - 1))
        assert [int(word[0]) for word in alone] == together[:, i].tolist()


def test_uniforms_keep_off_both_ends():
    ends = np.array([0, 2**32 - 1], np.uint64)
    low, high = uniform52(ends, ends)
    assert (low, high) == (2.0**-53, 1 - 2.0**-53)
    assert uniform52(np.array([2**31], np.uint64), np.array([2**12 - 1], np.uint64)) == 0.5 + 2**-53
    assert np.isfinite(-np.log(-np.log([low, high]))).all()


# --- one key's Gumbels ----------------------------------------------------------------------


@pytest.mark.parametrize(("key", "position", "values"), GOLDEN)
def test_noise_has_its_golden_values(key, position, values):
    np.testing.assert_allclose(gumbel(key, position, IDS), values, rtol=1e-14)


def test_noise_of_an_id_does_not_depend_on_the_other_ids():
    ids = np.array([300, 5, 5, 999, 0])
    alone = [gumbel(KEY, 11, [int(token)])[0] for token in ids]
    assert gumbel(KEY, 11, ids).tolist() == alone
    assert gumbel(KEY, 11, ids.reshape(5, 1)).shape == (5, 1)
    assert gumbel(KEY, 11, []).shape == (0,)


def test_rounding_lifts_no_noise_above_its_blocks_maximum(monkeypatch):
    """Skipping blocks rests on it: at uniforms near 1 the formula alone gives a bit more."""
    monkeypatch.setattr(
        _gumbel_blocks, "uniform52", lambda high, low: np.full(high.shape, 1 - 2.0**-53)
    )
    maximum = np.linspace(-2, 30, 5000)
    unclamped = -np.log(np.exp(-maximum) - np.log(1 - 2.0**-53))
    assert (unclamped > maximum).any()
    zeros = np.zeros(5000, np.int64)
    below = _gumbel_blocks.below((zeros.astype(np.uint64),) * 4, zeros, maximum, zeros + 1)
    assert (below <= maximum).all()


def test_a_blocks_maximum_is_attained_at_the_id_its_header_names():
    columns = KeyColumns.of([KEY])
    for block in range(40):
        w0, w1, w2, _ = (int(w[0]) for w in columns.blocks(np.array([block]), np.array([11])))
        values = gumbel(KEY, 11, np.arange(block * BLOCK, (block + 1) * BLOCK))
        assert values.argmax() == w2 >> 24
        u = (w0 * 2**20 + (w1 >> 12) + 0.5) / 2**52
        assert values.max() == pytest.approx(-math.log(-math.log(u)) + math.log(256), abs=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8},
        {"step": 4},
        {"row": 6},
        {"turn": 3},
        {"luck": 1},
        {"purpose": "fresh/2.0.fresh.resample"},
    ],
)
def test_every_part_of_the_key_changes_the_noise(change):
    fields = {"seed": 7, "step": 3, "row": 5, "turn": 2} | change
    one, other = gumbel(KEY, 11, np.arange(5000)), gumbel(NoiseKey(**fields), 11, np.arange(5000))
    assert not np.any(one == other)
    assert abs(correlation(one, other)) < NEVER


def test_turn_and_luck_do_not_run_into_each_other():
    a = uniform(NoiseKey(0, 0, 0, 1, 0), 0)
    b = uniform(NoiseKey(0, 0, 0, 0, 65535), 0)
    assert a != b


@pytest.mark.parametrize("name", ["row", "turn", "luck"])
@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_key_outside_its_counter_is_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be in"):
        NoiseKey(**({"seed": 0, "step": 0, "row": 0, "turn": 0} | {name: value}))


def test_turn_and_luck_end_at_65535():
    NoiseKey(-1, 0, 2**32 - 1, 65535, 65535)
    for field in ("turn", "luck"):
        with pytest.raises(ValueError, match="2\\*\\*16"):
            NoiseKey(**({"seed": 0, "step": 0, "row": 0, "turn": 0} | {field: 65536}))
    with pytest.raises(ValueError, match="`purpose` must not be empty"):
        NoiseKey(0, 0, 0, 0, purpose="")


def test_positions_and_ids_that_would_wrap_are_refused():
    with pytest.raises(ValueError, match="`ids` must be in"):
        gumbel(KEY, 0, [-1])
    with pytest.raises(ValueError, match="`ids` must be in"):
        gumbel(KEY, 0, [2**32])
    with pytest.raises(ValueError, match="`position` must be in"):
        gumbel(KEY, -1, [0])
    with pytest.raises(ValueError, match="`position` must be in"):
        uniform(KEY, 2**32)
    with pytest.raises(ValueError, match="`positions` must be in"):
        sample(np.zeros((1, 3)), [KEY], np.array([-1]))
    with pytest.raises(ValueError, match="`row` must be in"):
        KeyColumns.grid(0, 0, "x", row=np.array([3, -1]), turn=0)


# --- laws -----------------------------------------------------------------------------------


def test_noise_follows_the_gumbel_law():
    values = gumbel(KEY, 4, np.arange(200_000))
    assert stats.kstest(values, "gumbel_r").pvalue > 1e-6


@pytest.mark.parametrize("vary", ["position", "row"])
def test_one_ids_noise_follows_the_gumbel_law(vary):
    keys = [KEY] * 1500 if vary == "position" else [NoiseKey(7, 3, r, 2) for r in range(1500)]
    positions = range(1500) if vary == "position" else [0] * 1500
    values = [gumbel(key, position, [77])[0] for key, position in zip(keys, positions, strict=True)]
    assert stats.kstest(values, "gumbel_r").pvalue > 1e-6


def test_noise_of_neighbours_is_uncorrelated():
    values = np.array([gumbel(KEY, position, np.arange(4096)) for position in range(20)])
    neighbours = {
        "ids of one block word": (values[:, 0::2], values[:, 1::2]),
        "ids of neighbouring lanes": (values[:, 1:-1:2], values[:, 2::2]),
        "blocks": (values[:, :-BLOCK], values[:, BLOCK:]),
        "positions": (values[:-1], values[1:]),
    }
    for name, (one, other) in neighbours.items():
        assert abs(correlation(one.ravel(), other.ravel())) < NEVER, name
        largest = np.abs(one) ** 2, np.abs(other) ** 2
        assert abs(correlation(largest[0].ravel(), largest[1].ravel())) < 2 * NEVER, name


def chi_square(draws, probability):
    counts = np.bincount(draws, minlength=len(probability))
    assert not counts[probability == 0].any()
    live = probability > 0
    expected = probability[live] * len(draws)
    return stats.chisquare(counts[live], expected).pvalue


def softmax_draws(logits, temperature, num_draws, seed, chunk=20_000):
    for start in range(0, num_draws, chunk):
        rows = np.arange(start, min(start + chunk, num_draws))
        keys = KeyColumns.grid(seed, 0, "sample", row=rows, turn=1)
        yield sample(np.broadcast_to(logits, (len(rows), len(logits))), keys, rows % 7, temperature)


@pytest.mark.parametrize(
    ("size", "temperature", "num_draws"),
    [(3, 1.0, 200_000), (40, 0.7, 50_000), (530, 1.3, 12_000)],
)
def test_sampling_follows_the_softmax(size, temperature, num_draws):
    logits = np.random.default_rng(size).normal(size=size) * 1.5
    logits[1] = -np.inf
    weight = np.exp((logits - logits.max()) / temperature)
    draws = np.concatenate(list(softmax_draws(logits, temperature, num_draws, seed=size)))
    assert chi_square(draws, weight / weight.sum()) > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 256, 257, 1000])
def test_a_million_draws_follow_the_softmax(size):
    logits = np.random.default_rng(size).normal(size=size) * 2
    weight = np.exp(logits - logits.max())
    draws = np.concatenate(list(softmax_draws(logits, 1.0, 1_000_000, seed=1)))
    assert chi_square(draws, weight / weight.sum()) > 1e-6


# --- the block form -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 100, 255, 256, 257, 511, 700, 1500])
@pytest.mark.parametrize("kind", ["normal", "flat", "masked", "peaked", "float16", "ties"])
def test_the_block_form_is_the_plain_form(size, kind):
    rng = np.random.default_rng([size, len(kind)])
    rows = 40
    logits = rng.normal(size=(rows, size)) * 3
    if kind == "flat":
        logits[:] = rng.normal(size=(rows, 1))
    elif kind == "masked":
        logits[rng.random((rows, size)) < 0.9] = -np.inf
        logits[:, -1] = 0.0
    elif kind == "peaked":
        logits[np.arange(rows), rng.integers(0, size, rows)] += 12
    elif kind == "float16":
        logits = logits.astype(np.float16)
    elif kind == "ties":  # so large that the noise is lost in rounding: exact ties
        logits = rng.integers(1, 3, (rows, size)) * 1e30
    keys = [NoiseKey(1, int(rng.integers(99)), row, size % 7, row % 3) for row in range(rows)]
    positions = rng.integers(0, 1000, rows)
    for temperature in (0.05, 1.0, 7.0):
        expected = plain(logits, keys, positions, temperature)
        assert np.array_equal(sample(logits, keys, positions, temperature), expected)


def test_the_block_form_is_the_plain_form_at_a_real_vocabulary():
    rng = np.random.default_rng(3)
    logits = (rng.normal(size=(6, 151_936)) * 2).astype(np.float32)
    keys = [NoiseKey(2, 0, row, 0) for row in range(6)]
    assert np.array_equal(sample(logits, keys, [9] * 6), plain(logits, keys, [9] * 6, 1.0))


def test_a_certain_token_is_always_sampled():
    """Whatever its noise: also where its block's maximum is the smallest of the row."""
    certain = np.random.default_rng(0).integers(0, 601, 6000)
    logits = np.zeros((6000, 601), np.float32)
    logits[np.arange(6000), certain] = 60.0
    keys = KeyColumns.grid(3, 0, "sample", row=np.arange(6000), turn=0)
    assert np.array_equal(sample(logits, keys, np.zeros(6000, np.int64)), certain)


@pytest.mark.parametrize("live", [1, 5])
def test_masked_tokens_are_never_looked_into(monkeypatch, live):
    """However few tokens a filter left: those of masked blocks would be the whole vocabulary."""
    logits = np.full((30, 50_000), -np.inf)
    logits[:, np.arange(live) * 10_000 + 7] = 0.0
    looked = []
    below = _gumbel_blocks.below

    def counted(words, ids, maximum, winner):
        looked.append(len(ids))
        return below(words, ids, maximum, winner)

    monkeypatch.setattr(_gumbel_blocks, "below", counted)
    sample(logits, [NoiseKey(0, 0, row, 0) for row in range(30)], [0] * 30)
    assert 30 <= sum(looked) <= 30 * (live + 1)


def test_batch_mates_order_and_batch_size_change_nothing():
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(64, 300))
    keys = [NoiseKey(1, 0, row, 3) for row in range(64)]
    positions = rng.integers(0, 50, 64)
    together = sample(logits, keys, positions)
    order = rng.permutation(64)
    mixed = sample(logits[order], [keys[i] for i in order], positions[order])
    assert np.array_equal(mixed, together[order])
    alone = [sample(logits[i : i + 1], [keys[i]], positions[i : i + 1])[0] for i in range(64)]
    assert together.tolist() == alone
    assert np.array_equal(sample(logits, KeyColumns.of(keys), positions), together)


@pytest.mark.parametrize("padding", [1, 20, 256, 1000])
def test_vocabulary_padding_changes_nothing(padding):
    rng = np.random.default_rng(padding)
    logits = rng.normal(size=(50, 300))
    keys = [NoiseKey(1, 0, row, 3) for row in range(50)]
    padded = np.concatenate([logits, np.full((50, padding), -np.inf)], axis=1)
    assert np.array_equal(sample(padded, keys, [0] * 50), sample(logits, keys, [0] * 50))


def test_global_random_state_is_neither_read_nor_written():
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = sample(np.zeros((4, 50)), [NoiseKey(0, 0, r, 0) for r in range(4)], [0] * 4)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    again = sample(np.zeros((4, 50)), [NoiseKey(0, 0, r, 0) for r in range(4)], [0] * 4)
    assert np.array_equal(first, again)


def test_temperature_zero_takes_the_lowest_of_the_largest():
    logits = np.array([[0.0, 2.0, 2.0], [1.0, -np.inf, 1.0]])
    assert sample(logits, [KEY, KEY], [0, 0], 0.0).tolist() == [1, 0]


def test_an_empty_batch_gives_no_tokens():
    for temperature in (0.0, 1.0):
        assert sample(np.zeros((0, 5)), [], [], temperature).tolist() == []


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([[0.0, np.nan]], "must not be NaN"),
        ([[np.inf, np.nan]], "must not be NaN"),
        ([[0.0, np.inf]], "finite maximum"),
        ([[-np.inf, -np.inf]], "finite maximum"),
        ([[]], "finite maximum"),
        ([0.0, 1.0], "must be \\(rows, vocabulary\\)"),
        ([[0.0], [1.0]], "one key and one position a row"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_law_are_refused(logits, message, temperature):
    with pytest.raises(ValueError, match=message):
        sample(np.array(logits), [KEY], [0], temperature)


@pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf])
def test_a_temperature_without_a_law_is_refused(temperature):
    with pytest.raises(ValueError, match="`temperature` must be"):
        sample(np.zeros((1, 2)), [KEY], [0], temperature)


# --- a temperature a row --------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 257, 1500])
def test_a_temperature_a_row_is_the_rows_one_by_one(size):
    rng = np.random.default_rng(size)
    logits = (rng.normal(size=(60, size)) * 3).astype(np.float32)
    logits[:, rng.random(size) < 0.2] = -np.inf
    logits[:, -1] = 0.0
    keys = [NoiseKey(1, 0, row, 3) for row in range(60)]
    positions = rng.integers(0, 50, 60)
    degrees = rng.choice([0.0, 1e-3, 0.7, 1.0, 30.0], 60)
    found = sample(logits, keys, positions, degrees)
    for row in range(60):
        one = slice(row, row + 1)
        alone = sample(logits[one], keys[one], positions[one], float(degrees[row]))
        assert alone[0] == found[row]
    cold = degrees == 0
    assert 0 < cold.sum() < 60
    assert np.array_equal(found[cold], logits[cold].argmax(axis=1))
    assert np.array_equal(sample(logits, KeyColumns.of(keys), positions, degrees), found)


def test_one_temperature_is_that_temperature_in_every_row():
    logits = np.random.default_rng(0).normal(size=(30, 300))
    keys = [NoiseKey(1, 0, row, 3) for row in range(30)]
    for degree in (0.0, 0.6):
        expected = sample(logits, keys, [4] * 30, degree)
        assert np.array_equal(sample(logits, keys, [4] * 30, np.full(30, degree)), expected)
    assert sample(np.zeros((0, 5)), [], [], np.zeros(0)).tolist() == []


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 1), (2, 2)])
def test_temperatures_that_are_not_one_a_row_are_refused(shape):
    with pytest.raises(ValueError, match="`temperature` must be one number or one a row, got"):
        sample(np.zeros((2, 4)), [KEY, KEY], [0, 0], np.ones(shape))


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_temperature_without_a_law_names_its_row_and_key(bad):
    keys = [NoiseKey(1, 0, row, 3) for row in range(4)]
    with pytest.raises(ValueError, match=re.escape(f"got {bad} in row 2 ({keys[2]})")):
        sample(np.zeros((4, 5)), keys, [0] * 4, np.array([1.0, 0.0, bad, bad]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_without_a_law_name_their_row_and_key(bad):
    keys = [NoiseKey(1, 0, row, 3) for row in range(4)]
    logits = np.zeros((4, 600))
    logits[2:, 500] = bad
    for temperature in (0.0, 1.0, np.array([1.0, 0.0, 0.0, 1.0])):
        with pytest.raises(LogitsError, match=re.escape(f"in row 2 ({keys[2]})")) as refused:
            sample(logits, keys, [0] * 4, temperature)
        assert refused.value.row == 2
        with pytest.raises(LogitsError, match="in row 2\\."):  # columns name no key
            sample(logits, KeyColumns.of(keys), [0] * 4, temperature)


# --- keys as columns, uniforms, generators --------------------------------------------------


def test_uniforms_of_many_keys_are_the_uniform_of_each():
    keys = [NoiseKey(1, 2, row, row % 5, row % 3, "choose") for row in range(30)]
    for position, lane in ((0, 0), (2, 1)):
        expected = [float(uniform(key, position, lane)) for key in keys]
        assert uniforms(KeyColumns.of(keys), position, lane).tolist() == expected
        lanes = uniform(keys[0], position, np.arange(3).reshape(3, 1))
        assert lanes.shape == (3, 1)
        assert lanes[lane, 0] == expected[0]


def test_grid_and_take_are_the_keys_one_by_one():
    rows = np.array([4, 0, 9])
    grid = KeyColumns.grid(1, 2, "environment", row=rows, turn=3, luck=7)
    keys = KeyColumns.of([NoiseKey(1, 2, int(row), 3, 7, "environment") for row in rows])
    assert len(grid) == 3
    assert uniforms(grid, 1).tolist() == uniforms(keys, 1).tolist()
    index = np.array([2, 2, 0])
    assert uniforms(grid.take(index), 1).tolist() == uniforms(keys, 1)[index].tolist()
    assert len(KeyColumns.of([])) == 0


def test_a_named_generator_is_the_same_anywhere_and_no_other():
    draws = {
        name: generator(*name).random(4).tolist()
        for name in [(0, "a", 0), (0, "a", 1), (1, "a", 0), (0, "b", 0)]
    }
    assert generator(0, "a").random(4).tolist() == draws[(0, "a", 0)]
    assert len({tuple(values) for values in draws.values()}) == len(draws)


# --- truncation -----------------------------------------------------------------------------


def kept(logits, **options):
    return np.isfinite(truncate(np.array(logits), **options)).nonzero()[0].tolist()


def test_truncation_off_changes_nothing():
    logits = np.random.default_rng(0).normal(size=(3, 9))
    logits[0, 2] = -np.inf
    assert np.array_equal(truncate(logits), logits)
    assert np.array_equal(truncate(logits, top_k=99), logits)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = np.log([0.1, 0.2, 0.3, 0.4])
    assert kept(logits, top_p=0.39) == [3]
    assert kept(logits, top_p=0.4) == [3]
    assert kept(logits, top_p=0.41) == [2, 3]
    assert kept(logits, top_p=0.7) == [2, 3]
    assert kept(logits, top_p=1e-9) == [3]


def test_top_p_is_taken_at_the_sampling_temperature():
    logits = np.log([0.5, 0.3, 0.2])
    assert kept(logits, top_p=0.5) == [0]
    assert kept(logits, top_p=0.5, temperature=3.0) == [0, 1]


def test_truncation_keeps_the_values_that_stay():
    logits = np.array([[0.3, 2.0, 1.0]])
    assert truncate(logits, top_k=2).tolist() == [[-np.inf, 2.0, 1.0]]


def test_truncation_treats_each_row_alone():
    logits = np.random.default_rng(1).normal(size=(20, 50))
    together = truncate(logits, top_k=9, top_p=0.8)
    for row, result in zip(logits, together, strict=True):
        assert np.array_equal(truncate(row, top_k=9, top_p=0.8), result)


@pytest.mark.parametrize(
    "options", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"temperature": 0.0}]
)
def test_options_without_a_meaning_are_refused(options):
    with pytest.raises(ValueError, match="`top_k` must be at least 0"):
        truncate(np.zeros(3), **options)


@pytest.mark.parametrize("bad", [[0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf]])
def test_truncation_refuses_logits_without_a_law(bad):
    with pytest.raises(ValueError, match="`logits` must"):
        truncate(np.array(bad), top_p=0.9)


def test_ids_that_are_not_whole_are_refused():
    with pytest.raises(ValueError, match="`ids` must hold whole numbers"):
        gumbel(KEY, 0, np.array([0.5]))
