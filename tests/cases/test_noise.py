"""Determinism and noise: rows D02 to D18 of the case list that the noise itself can answer.

D12 (a log-density) has no counterpart here: nothing in twinstats evaluates one. Of D18 only the
ties are here; replayed prefixes belong to the worlds.
"""

import multiprocessing
import re
import tomllib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import twinstats
from twinstats.episodes import Episode, Fork, Task, Turn
from twinstats.keys import episode_streams
from twinstats.noise import KeyColumns, NoiseKey, generator, gumbel, sample, truncate, uniform

ROOT = Path(twinstats.__file__).parents[1]
PURPOSES = ("sample", "alternative", "choose", "evaluation", "bootstrap")


def keys(num_rows, seed=1, step=0, turn=0):
    return [NoiseKey(seed, step, row, turn) for row in range(num_rows)]


def test_d02_a_masked_token_is_never_sampled_whatever_its_noise(monkeypatch):
    logits = np.tile([-np.inf, 0.0], (5000, 1))
    assert sample(logits, keys(5000), np.arange(5000)).tolist() == [1] * 5000
    for extreme in (1 - 2.0**-53, 2.0**-53):
        monkeypatch.setattr(
            "twinstats.noise.uniform52", lambda w, _, u=extreme: np.full(w.shape, u)
        )
        noise = gumbel(NoiseKey(0, 0, 0, 0), 0, np.arange(600))
        assert np.isfinite(noise).all()
        assert sample(logits[:9], keys(9), np.arange(9)).tolist() == [1] * 9


def test_d02_nan_logits_raise():
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="must not be NaN"):
            sample(np.array([[0.0, np.nan]]), keys(1), [0], temperature)


def test_d03_noise_is_looked_up_by_vocabulary_id():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 300))
    plain = sample(logits, keys(200), [4] * 200)
    assert np.array_equal(sample(truncate(logits, top_k=300), keys(200), [4] * 200), plain)
    filtered = truncate(logits, top_k=40)
    kept = np.isfinite(filtered[np.arange(200), plain])
    assert 20 < kept.sum() < 200
    assert np.array_equal(sample(filtered, keys(200), [4] * 200)[kept], plain[kept])
    mixed = np.concatenate([logits[:1], filtered[1:]])  # a batch-mate that filters, a row that not
    assert sample(mixed, keys(200), [4] * 200)[0] == plain[0]


def test_d04_questions_and_rollouts_never_share_noise():
    def noise(row, position=3):
        return gumbel(NoiseKey(1, 0, row, 2), position, np.arange(10_000))

    for row, other in ((0, 1), (0, 2**31), (7, 8)):
        assert abs(np.corrcoef(noise(row), noise(other))[0, 1]) < 0.05
        assert not np.any(noise(row) == noise(other))


def test_d04_only_a_twin_after_its_fork_shares_the_factuals_noise():
    turns = [Turn(0, None, None, 1, "s") for _ in range(3)]
    factual = Episode(Task("q"), 0, 4, turns, 1.0, True, False)
    fork = Fork(factual, 1)
    twin = Episode(Task("q"), 0, 4, turns, 1.0, True, False, fork=fork)
    tails = [episode_streams(one).tail.key(1, 0, one.row, 2) for one in (factual, twin)]
    assert (
        gumbel(tails[0], 0, np.arange(99)).tobytes() == gumbel(tails[1], 0, np.arange(99)).tobytes()
    )
    decision = episode_streams(twin).decision.key(1, 0, 4, 1)
    own = episode_streams(factual).tail.key(1, 0, 4, 1)
    assert not np.any(gumbel(decision, 0, np.arange(99)) == gumbel(own, 0, np.arange(99)))


def test_d05_no_block_repeats_across_purposes():
    lanes = np.arange(100_000)
    blocks = []
    for purpose in PURPOSES:
        words = KeyColumns.of([NoiseKey(1, 2, 3, 4, purpose=purpose)]).blocks(lanes, np.array([5]))
        high, low = (words[i] << np.uint64(32) | words[i + 1] for i in (0, 2))
        blocks.append(np.stack([high, low], axis=1))
    together = np.concatenate(blocks)
    assert len(np.unique(together, axis=0)) == len(together) == 500_000


def test_d05_the_alternatives_noise_is_independent_of_the_factuals():
    noise = [
        gumbel(NoiseKey(1, 2, 3, 4, luck, purpose), 0, np.arange(100_000))
        for luck, purpose in ((0, "sample"), (1, "alternative"), (2, "alternative"), (1, "draw"))
    ]
    bound = stats.norm.isf(5e-7) / np.sqrt(100_000)
    correlation = np.corrcoef(noise) - np.eye(4)
    assert np.abs(correlation).max() < bound


@pytest.mark.parametrize("field", ["seed", "step", "row", "turn", "luck"])
def test_d06_consecutive_keys_are_well_mixed(field):
    base = {"seed": 1, "step": 0, "row": 0, "turn": 0}
    series = [NoiseKey(**(base | {field: number})) for number in range(200)]
    first = np.array([float(uniform(key, 0)) for key in series])
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.2
    tokens = sample(np.tile([1.0, 1.01, 0.99], (200, 1)), series, [0] * 200)
    assert (np.bincount(tokens, minlength=3) > 30).all()


def test_d07_parent_and_child_generators_differ_and_no_child_is_ever_spawned():
    parent = np.random.default_rng(42)
    child = parent.spawn(1)[0]
    assert not np.any(np.random.default_rng(42).random(10) == child.random(10))
    sources = "\n".join(path.read_text() for path in (ROOT / "twinstats").rglob("*.py"))
    assert ".spawn(" not in sources
    assert not re.search(r"np\.random\.(seed|rand|normal|choice|default_rng)\b", sources)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "numpy>=2.3" in project["dependencies"]
    assert tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 3)


def test_d08_keys_from_threads_are_unique_and_the_same():
    names = [NoiseKey(1, 0, row, 0) for row in range(2000)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda key: float(uniform(key, 0)), names))
    assert len(set(found)) == 2000
    assert found == [float(uniform(key, 0)) for key in names]


def test_d09_streams_have_no_state_that_a_checkpoint_could_lose():
    """A stream is named, so after a restore each child is what it was: no counter to store."""
    before = [generator(7, f"child/{number}").random() for number in range(2)]
    generator(7, "child/0").random(1000)
    assert [generator(7, f"child/{number}").random() for number in range(2)] == before
    assert before[0] != before[1]


def test_d10_workers_draw_what_one_worker_draws():
    names = [NoiseKey(1, 0, row, 0) for row in range(80)]
    positions = list(range(80))
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(uniform, names, positions, timeout=60, chunksize=10))
        streams = pool.map(generator, [3] * 8, [f"worker {i}" for i in range(8)], timeout=60)
        rows = {tuple(one.random(10)) for one in streams}
    alone = [uniform(key, position) for key, position in zip(names, positions, strict=True)]
    assert [float(value) for value in found] == [float(value) for value in alone]
    assert len(rows) == 8
    assert rows == {tuple(generator(3, f"worker {i}").random(10)) for i in range(8)}


@pytest.mark.parametrize("num_draws", [200, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("floor", [-np.inf, -65504.0])
def test_d11_low_precision_logits_draw_nothing_illegal(num_draws, floor):
    logits = np.full(151_936, floor, np.float16)
    logits[77_777] = 0.0
    for start in range(0, num_draws, 200):
        rows = np.arange(start, start + 200)
        grid = KeyColumns.grid(1, 0, "sample", row=rows, turn=0)
        tokens = sample(np.broadcast_to(logits, (200, len(logits))), grid, [0] * 200)
        assert (tokens == 77_777).all()


def test_d13_temperature_zero_is_the_lowest_id_on_ties():
    for seed in range(100):
        assert sample(np.array([[1.0, 1.0, 0.0]]), keys(1, seed), [0], 0.0).tolist() == [0]


@pytest.mark.parametrize("temperature", [1e-6, 1.0])
def test_d13_huge_logits_and_tiny_temperatures_give_no_nan(temperature):
    huge = np.array([[1e38, 1e38, -1e38]], np.float32)
    assert sample(huge, keys(1), [0], temperature).tolist() == [0]
    kept = truncate(huge, top_p=0.9, temperature=temperature)
    assert np.isfinite(kept).tolist() == [[True, True, False]]


@pytest.mark.parametrize("batch", [1, 8])
def test_d14_exactly_k_are_kept_with_lower_ids_first(batch):
    logits = np.tile([1.0, 2.0, 2.0, 2.0, 3.0], (batch, 1))
    kept = np.isfinite(truncate(logits, top_k=3))
    assert all(set(row.nonzero()[0]) == {4, 1, 2} for row in kept)
    with np.errstate(divide="ignore"):
        logits = np.tile(np.log([0.4, 0.3, 0.3, 0.0]), (batch, 1))
    weight = np.exp(truncate(logits, top_k=2))
    assert all(set(row.nonzero()[0]) == {0, 1} for row in weight)
    np.testing.assert_allclose(weight.sum(axis=1), 0.7)


def test_d15_top_k_comes_first_and_something_always_stays():
    logits = np.log([0.1, 0.2, 0.3, 0.4])
    assert np.isfinite(truncate(logits, top_k=2, top_p=0.5)).nonzero()[0].tolist() == [3]
    assert np.isfinite(truncate(logits, top_k=1, top_p=0.8)).nonzero()[0].tolist() == [3]
    assert np.isfinite(truncate(logits, top_p=1e-300)).sum() == 1


@pytest.mark.parametrize("size", [2, 8, 9])
def test_d16_the_reference_sampler_does_not_see_its_batch(size):
    rng = np.random.default_rng(size)
    logits = rng.normal(size=(size, 1000)).astype(np.float32)
    for row in range(size):
        key, position = NoiseKey(5, 1, row, 2), 3 * row
        mates = [NoiseKey(99, 0, mate, 0) for mate in range(size)]
        mates[row] = key
        positions = np.full(size, 7)
        positions[row] = position
        assert sample(logits, mates, positions)[row] == sample(logits[[row]], [key], [position])[0]


def test_d18_ties_of_rounded_logits_go_to_the_lowest_id():
    exact = np.array([[1.001, 1.002]], np.float32)
    rounded = exact.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)  # bfloat16
    assert sample(exact, keys(1), [0], 0.0).tolist() == [1]
    assert rounded.view(np.float32).tolist() == [[1.0, 1.0]]
    assert sample(rounded.view(np.float32), keys(1), [0], 0.0).tolist() == [0]
