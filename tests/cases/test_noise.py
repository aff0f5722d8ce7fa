"""Determinism and noise: rows D02 to D18 of the case list that the noise itself can answer.

D12 (a log-density) has no counterpart here: nothing in twinstats evaluates one. Of D18 only ties,
and draws near one, are here; replayed prefixes belong to the worlds. Each case is put to NumPy
first; the last part puts them to torch (`blocks` is what runs on a device) and to the logits
processor.
"""

import multiprocessing
import re
import tomllib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import LogitsProcessorList

import twinstats
from tests.samplers import every_tensor_sampler, truncated
from trainer import noise as torch_noise
from trainer.config import ModelConfig
from trainer.noise import sources
from trainer.noise.blocks import philox4x32
from trainer.noise.margins import Margins
from trainer.policy import build_model
from trainer.processors.generate import KeyedLogitsProcessor
from trainer.processors.request import KeyedRequest
from twinstats.episodes import Episode, Fork, Task, Turn
from twinstats.keys import episode_streams
from twinstats.noise import KeyColumns, NoiseKey, generator, gumbel, sample, truncate, uniform

ROOT = Path(twinstats.__file__).parents[1]
MODEL = ModelConfig(
    layers=2, hidden=32, intermediate=64, heads=4, kv_heads=2, vocabulary=600, max_length=64
)
PURPOSES = ("sample", "alternative", "choose", "evaluation", "bootstrap")


def keys(num_rows, seed=1, step=0, turn=0):
    return [NoiseKey(seed, step, row, turn) for row in range(num_rows)]


def test_d02_a_masked_token_is_never_sampled_whatever_its_noise(monkeypatch):
    logits = np.tile([-np.inf, 0.0], (5000, 1))
    assert sample(logits, keys(5000), np.arange(5000)).tolist() == [1] * 5000
    for extreme in (1 - 2.0**-53, 2.0**-53):
        monkeypatch.setattr(
            "twinstats._gumbel_blocks.uniform52", lambda w, _, u=extreme: np.full(w.shape, u)
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


# --- torch, and the logits processor --------------------------------------------------------


@every_tensor_sampler
def test_d02_torch_never_samples_a_masked_token_whatever_its_noise(draw, monkeypatch):
    logits = torch.tensor([[-torch.inf, 0.0]]).expand(2000, 2)
    assert draw(logits, keys(2000), range(2000)).tolist() == [1] * 2000
    for extreme in (1 - 2.0**-53, 2.0**-53):
        monkeypatch.setattr(
            "twinstats._gumbel_blocks.uniform52", lambda w, _, u=extreme: np.full(w.shape, u)
        )
        monkeypatch.setattr(
            "trainer.noise.blocks._uniform52",
            lambda w, _, u=extreme: torch.full(w.shape, u, dtype=torch.double),
        )
        assert draw(logits[:9], keys(9), range(9)).tolist() == [1] * 9
        padded = torch.nn.functional.pad(logits[:9], (600, 0), value=-torch.inf)
        assert draw(padded, keys(9), range(9)).tolist() == [601] * 9


@every_tensor_sampler
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d02_torch_raises_on_nan_logits(draw, temperature):
    logits = torch.zeros(40, 600)
    logits[33, 3] = torch.nan
    with pytest.raises(ValueError, match="must not be NaN, got one in row 33"):
        draw(logits, keys(40), [0] * 40, temperature)


@every_tensor_sampler
def test_d03_torch_looks_noise_up_by_vocabulary_id(draw):
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 300)))
    plain = draw(logits, keys(200), [4] * 200)
    whole = draw(truncated(logits, top_k=300), keys(200), [4] * 200)
    assert np.array_equal(whole, plain)
    filtered = truncated(logits, top_k=40)
    kept = torch.isfinite(filtered)[range(200), plain].numpy()
    assert 20 < kept.sum() < 200
    assert np.array_equal(draw(filtered, keys(200), [4] * 200)[kept], plain[kept])
    mixed = torch.cat([logits[:1], filtered[1:]])
    assert draw(mixed, keys(200), [4] * 200)[0] == plain[0]


def test_d03_a_batch_mate_that_filters_changes_nothing_in_a_processor():
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 300)))
    plain = [KeyedRequest(key=key) for key in keys(40)]
    mixed = [plain[0], *(replace(one, top_k=5, top_p=0.5, temperature=0.7) for one in plain[1:])]
    whole = [replace(one, top_k=300) for one in plain]
    tokens = [
        KeyedLogitsProcessor(requests, 0)(torch.zeros(40, 4).long(), logits).argmax(1)
        for requests in (plain, mixed, whole)
    ]
    assert tokens[0][0] == tokens[1][0]
    assert torch.equal(tokens[0], tokens[2])


def test_d05_torch_repeats_no_block_across_purposes():
    names = [NoiseKey(1, 2, 3, 4, purpose=purpose) for purpose in PURPOSES]
    words = torch_noise.key_words(KeyColumns.of(names))[:, None]
    found = philox4x32(torch.arange(100_000)[None], torch.tensor(5), words)
    halves = [(found[i] << 32 | found[i + 1]).flatten().numpy() for i in (0, 2)]
    blocks = np.stack(halves, axis=1)
    assert len(np.unique(blocks, axis=0)) == len(blocks) == 500_000


@every_tensor_sampler
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("floor", [-torch.inf, -65504.0])
def test_d11_torch_draws_nothing_illegal_from_low_precision_logits(draw, dtype, floor):
    logits = torch.full((1, 151_936), floor, dtype=dtype)
    logits[0, 77_777] = 0.0
    tokens = draw(logits.expand(100, -1), keys(100), range(100))
    assert all(token == 77_777 for token in tokens)


@every_tensor_sampler
def test_d13_torch_at_temperature_zero_takes_the_lowest_id_on_ties(draw):
    logits = torch.tensor([[1.0, 1.0, 0.0]]).expand(100, -1)
    names = [NoiseKey(seed, 0, 0, 0) for seed in range(100)]
    assert draw(logits, names, [0] * 100, 0.0).tolist() == [0] * 100


@every_tensor_sampler
@pytest.mark.parametrize("temperature", [1e-6, 1.0])
def test_d13_torch_takes_huge_logits_and_tiny_temperatures(draw, temperature):
    huge = torch.tensor([[1e38, 1e38, -1e38]])
    assert draw(huge, keys(1), [0], temperature).tolist() == [0]
    assert torch.isfinite(truncated(huge, top_p=0.9)).tolist() == [[True, True, False]]


@pytest.mark.parametrize("batch", [1, 8])
def test_d14_torch_keeps_exactly_k_with_lower_ids_first(batch):
    kept = torch.isfinite(truncated(torch.tensor([[1.0, 2.0, 2.0, 2.0, 3.0]] * batch), top_k=3))
    assert all(set(row.nonzero()[:, 0].tolist()) == {4, 1, 2} for row in kept)
    logits = torch.tensor([[0.4, 0.3, 0.3, 0.0]] * batch, dtype=torch.double).log()
    weight = truncated(logits, top_k=2).exp()
    assert all(set(row.nonzero()[:, 0].tolist()) == {0, 1} for row in weight)
    np.testing.assert_allclose(weight.sum(1).numpy(), 0.7)


def test_d15_torch_takes_top_k_first_and_something_always_stays():
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.double).log()
    for options in ({"top_k": 2, "top_p": 0.5}, {"top_k": 1, "top_p": 0.8}, {"top_p": 1e-300}):
        assert torch.isfinite(truncated(logits, **options)).nonzero()[:, 1].tolist() == [3]


@every_tensor_sampler
@pytest.mark.parametrize("size", [2, 8, 9])
def test_d16_torch_does_not_see_its_batch(draw, size):
    logits = torch.from_numpy(np.random.default_rng(size).normal(size=(size, 1000))).float()
    for row in range(size):
        key = NoiseKey(5, 1, row, 2)
        mates = [key if mate == row else NoiseKey(99, 0, mate, 0) for mate in range(size)]
        positions = [3 * row if mate == row else 7 for mate in range(size)]
        alone = draw(logits[[row]], [key], [3 * row])[0]
        assert draw(logits, mates, positions)[row] == alone


@torch.inference_mode()
def test_d17_generate_pads_on_the_left_without_shifting_positions():
    model = build_model(MODEL, seed=0)
    texts = [[8, 2, 3], [5, 9, 30, 7, 2]]
    seen = []

    def watch(module, given, named):
        seen.append(named["position_ids"].tolist())

    def logprobs(ids, mask, row):
        processors = LogitsProcessorList(
            [
                KeyedLogitsProcessor(
                    [KeyedRequest(key=NoiseKey(1, 0, r, 0)) for r in row], len(ids[0])
                )
            ]
        )
        found = model.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            logits_processor=processors,
            max_new_tokens=6,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return torch.stack(found.logits, 1).log_softmax(-1), found.sequences[:, len(ids[0]) :]

    handle = model.base_model.register_forward_pre_hook(watch, with_kwargs=True)
    padded, tokens = logprobs([[0, 0, *texts[0]], texts[1]], [[0, 0, 1, 1, 1], [1] * 5], [0, 1])
    handle.remove()
    assert seen[0] == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    assert seen[1] == [[3], [5]]
    for row, text in enumerate(texts):
        alone, own = logprobs([text], [[1] * len(text)], [row])
        assert torch.equal(own[0], tokens[row])
        torch.testing.assert_close(padded[row], alone[0], atol=1e-4, rtol=0)


@every_tensor_sampler
def test_d18_torch_gives_ties_of_rounded_logits_to_the_lowest_id(draw):
    exact = torch.tensor([[1.001, 1.002]])
    assert draw(exact, keys(1), [0], 0.0).tolist() == [1]
    assert exact.bfloat16().tolist() == [[1.0, 1.0]]
    assert draw(exact.bfloat16(), keys(1), [0], 0.0).tolist() == [0]


def test_d18_a_token_whose_lead_is_below_the_tolerance_is_counted_as_at_risk():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(400, 300, generator=generator)
    own = [NoiseKey(7, 1, row, 0) for row in range(400)]
    whole = np.stack([gumbel(key, 5, np.arange(300)) for key in own])
    for temperature, tolerance in ((1.0, 0.05), (0.5, 0.2), (1.0, 0.0)):
        scores = np.sort(logits.double().numpy() / temperature + whole, axis=1)
        expected = int((scores[:, -1] - scores[:, -2] < tolerance).sum())
        margins = Margins(tolerance)
        drawn = margins(logits, own, [[0] * 5] * 400, temperature)
        assert torch.equal(drawn, sources.sample(logits, own, [[0] * 5] * 400, temperature))
        assert margins.take() == {"noise/drawn_count": 400, "noise/at_risk_count": expected}
        assert expected > 10 or tolerance == 0
    assert margins.take() == {"noise/drawn_count": 0, "noise/at_risk_count": 0}
