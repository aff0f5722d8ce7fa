"""What keyed requests sample in real vLLM, against the plain loop and the reference engine."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from tests.golden import GOLDEN, IDS
from tests.samplers import OneTurn
from tests.vllm import lab
from trainer.engines.hf import HfEngine
from trainer.processors.request import FIELD, UNKEYED, KeyedRequest
from trainer.processors.vllm import processor
from twinstats.noise import LogitsError, NoiseKey

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def llm(engine, model):
    return engine(model)


@pytest.fixture(scope="module")
def noise_only(engine, flat):
    return engine(flat)


def test_the_runner_is_the_one_that_is_meant(llm):
    config = llm.llm_engine.vllm_config
    assert config.use_v2_model_runner == lab.IS_V2
    kind = "KeyedV2" if lab.IS_V2 else "KeyedV1"
    assert config.model_config.logits_processors == [f"trainer.processors.vllm:{kind}"]
    assert processor(model=config.model_config.model, skip_tokenizer_init=True).endswith(kind)


def test_tokens_are_those_of_the_plain_loop(llm, cases):
    lab.assert_same(lab.sampled(llm, cases), cases)


def test_the_requests_exercise_what_they_are_for(cases, model):
    assert sum(len(case.tokens) for case in cases) >= 1000
    lengths = [len(case.prompt) for case in cases]
    assert min(lengths) < 5 and max(lengths) > 50
    stopped = [case for case in cases if case.tokens[-1] in case.stop]
    assert 5 < len(stopped) < 55
    for changes in ({"temperature": 0.0}, {"top_k": 0, "top_p": 1.0}, {"position": 1000}):
        others = [lab.altered(case, model, **changes).tokens for case in cases[:20]]
        same = [case.tokens == other for case, other in zip(cases, others, strict=False)]
        assert 3 < sum(same) < 17  # the law matters, and some requests have it already


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_tokens_are_those_of_the_reference_engine(llm, model, temperature):
    law = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "position": 0}
    cases = lab.make_cases(model, 20, seed=1, limit=40, **law)
    sessions = [OneTurn(case.prompt, case.request.key) for case in cases]
    HfEngine(model, stop=frozenset(cases[0].stop), max_turn_tokens=40, max_batch=7).run(
        sessions, temperature=temperature
    )
    turns = [list(session.turn.tokens) for session in sessions]
    lab.assert_same([turn[: case.limit] for turn, case in zip(turns, cases, strict=True)], cases)
    lab.assert_same(lab.sampled(llm, cases), cases)


# Unchanged by everything around a request


def test_batch_mates_and_order_change_nothing(llm, cases):
    for order in ([31], [5, 59, 2, 40], range(59, 39, -1)):
        chosen = [cases[number] for number in order]
        lab.assert_same(lab.sampled(llm, chosen), chosen)


def test_rows_that_move_keep_their_noise(llm, model, monkeypatch):
    module = importlib.import_module("trainer.processors.vllm")  # the one that vLLM loads
    moves, places = [], {}
    if lab.IS_V2:
        original = module.KeyedV2.add_request

        def add_request(self, slot, sampling_params):
            places[slot] = places.get(slot, 0) + 1
            return original(self, slot, sampling_params)

        monkeypatch.setattr(module.KeyedV2, "add_request", add_request)
    else:
        original = module.KeyedV1.update_state

        def update_state(self, batch_update):
            moves.extend(batch_update.moved if batch_update else [])
            original(self, batch_update)

        monkeypatch.setattr(module.KeyedV1, "update_state", update_state)
    cases = lab.make_cases(model, 14, seed=3, limit=25)
    limits = np.random.default_rng(0).permutation(np.arange(4, 32, 2)).tolist()
    cases = [
        lab.altered(case, model, limit=limit, stop=())
        for case, limit in zip(cases, limits, strict=True)
    ]
    lab.assert_same(lab.sampled(llm, cases), cases)
    assert max(places.values()) > 1 if lab.IS_V2 else len(moves) > 3


def test_prefix_caching_and_chunked_prefill_change_nothing(engine, model, cases):
    llm = engine(model, enable_prefix_caching=True, block_size=32, max_num_batched_tokens=16)
    chosen = cases[20:50]
    assert max(len(case.prompt) for case in chosen) > 3 * 16  # so a prompt takes several steps
    lab.assert_same(lab.sampled(llm, chosen), chosen)
    before = lab.metric(llm, "prefix_cache_hits")
    lab.assert_same(lab.sampled(llm, chosen[:12]), chosen[:12])
    assert lab.metric(llm, "prefix_cache_hits") > before


def test_preemption_changes_nothing(engine, model):
    llm = engine(model, block_size=32, num_gpu_blocks_override=9, max_num_seqs=8)
    before = lab.metric(llm, "num_preemptions")
    cases = [
        lab.altered(case, model, limit=40, stop=())
        for case in lab.make_cases(model, 10, seed=4, longest=30)
    ]
    lab.assert_same(lab.sampled(llm, cases), cases)
    assert lab.metric(llm, "num_preemptions") > before


def test_scheduling_a_step_ahead_changes_nothing(engine, model, cases, monkeypatch):
    """What GPUs do by default: a row's last token is not known yet when it is scheduled again."""
    from vllm.platforms.cpu import CpuPlatform

    synchronous = CpuPlatform.check_and_update_config.__func__

    def ahead(cls, config):
        synchronous(cls, config)  # turns it off on CPUs
        config.scheduler_config.async_scheduling = True

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(ahead))
    llm = engine(model, async_scheduling=True)
    assert "Async" in type(llm.llm_engine.engine_core.engine_core.scheduler).__name__
    lab.assert_same(lab.sampled(llm, cases[:24]), cases[:24])


def test_requests_without_a_key_go_their_own_way(llm, cases):
    greedy = [
        case for case in cases if case.request.temperature == 0 and not case.request.position
    ][:4]
    assert greedy
    keyed = cases[:10]
    extra = {FIELD: UNKEYED}
    settings = [lab.params(case) for case in keyed]
    settings += [lab.params(case, extra_args=extra) for case in greedy]
    settings += [lab.params(greedy[0], extra_args=extra, temperature=1.0, seed=s) for s in range(3)]
    prompts = [case.prompt for case in (*keyed, *greedy, *greedy[:1] * 3)]
    order = np.random.default_rng(1).permutation(len(prompts))
    outputs = llm.generate(
        [{"prompt_token_ids": prompts[i]} for i in order],
        [settings[i] for i in order],
        use_tqdm=False,
    )
    found = dict(zip(order.tolist(), [list(o.outputs[0].token_ids) for o in outputs], strict=True))
    known = keyed + greedy
    lab.assert_same([found[number] for number in range(len(known))], known)
    alone = llm.generate({"prompt_token_ids": prompts[-1]}, settings[-1], use_tqdm=False)
    assert list(alone[0].outputs[0].token_ids) == found[len(prompts) - 1]
    assert len({tuple(found[len(known) + number]) for number in range(3)}) > 1


def test_a_turn_goes_on_where_another_request_left_it(llm, model):
    cases = [
        lab.altered(case, model, limit=24, stop=()) for case in lab.make_cases(model, 8, seed=5)
    ]
    rest = [
        replace(
            case,
            prompt=case.prompt + case.tokens[:9],
            request=replace(case.request, position=case.request.position + 9),
            limit=15,
            tokens=case.tokens[9:],
            margins=case.margins[9:],
        )
        for case in cases
    ]
    lab.assert_same(lab.sampled(llm, rest), rest)


# What the noise is


def drawn(llm, key, ids, *, position=0, bias=None, limit=1):
    """The tokens of a request among `ids`, all alike but for the bias."""
    settings = SamplingParams(
        temperature=0,
        extra_args=KeyedRequest(key=key, position=position).extra_args(),
        allowed_token_ids=ids,
        logit_bias=bias,
        max_tokens=limit,
        detokenize=False,
    )
    return {"prompt_token_ids": [1]}, settings


def run(llm, requests):
    prompts, settings = zip(*requests, strict=True)
    outputs = llm.generate(list(prompts), list(settings), use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_golden_noise_decides_in_the_engine(noise_only):
    """Between two ids the choice turns exactly where a bias makes up for their noise."""
    requests, expected = [], []
    for key, position, noise in GOLDEN:
        for first in range(len(IDS) - 2):  # the last id is outside the vocabulary
            pair, gap = IDS[first : first + 2], noise[first + 1] - noise[first]
            for shift, winner in ((-1e-4, pair[1]), (1e-4, pair[0])):
                bias = {pair[0]: gap + shift}
                requests.append(drawn(noise_only, key, pair, position=position, bias=bias))
                expected.append([winner])
    assert run(noise_only, requests) == expected


def test_rows_and_seeds_do_not_share_their_luck(noise_only):
    num_tokens, ids = 150, [3, 300, 301, 900]
    keys = [NoiseKey(1, 0, 0, 0), NoiseKey(1, 0, 1, 0), NoiseKey(2, 0, 0, 0), NoiseKey(1, 0, 0, 0)]
    base, row, seed, same = (
        np.array(tokens)
        for tokens in run(
            noise_only, [drawn(noise_only, key, ids, limit=num_tokens) for key in keys]
        )
    )
    assert np.array_equal(base, same)
    low, high = binom.interval(1 - 1e-6, num_tokens, 1 / len(ids))
    for other in (row, seed):
        assert low <= (base == other).sum() <= high
        assert low <= (base[1:] == other[:-1]).sum() <= high  # nor shifted by one
    for token in ids:
        assert low <= (base == token).sum() <= high


def test_returned_logprobs_are_the_model_s_own(llm, model, cases):
    chosen = [case for case in cases if case.request.temperature in (0.7, 1.3)][:8]
    outputs = lab.generate(llm, chosen, logprobs=3)
    for case, output in zip(chosen, outputs, strict=True):
        with torch.inference_mode():
            ids = torch.tensor([case.prompt + list(output.token_ids)])
            law = torch.log_softmax(model(ids).logits[0].double(), -1)[len(case.prompt) - 1 :]
        for row, (token, found) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
            assert token in found
            top = set(law[row].topk(2).indices.tolist())
            assert top <= set(found)
            for one, entry in found.items():
                assert entry.logprob == pytest.approx(float(law[row, one]), abs=1e-4)


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra_args": None}, "without a noise key.*'twinstats'.*'unkeyed'"),
        ({"extra_args": {FIELD: "{}"}}, "'twinstats' must hold a keyed request, got {}"),
        ({"temperature": 0.7}, "`temperature` of `SamplingParams` must be 0.*got 0.7.*row=9"),
        ({"frequency_penalty": 0.5}, "`frequency_penalty` must be 0.0 in a keyed request"),
        ({"temperature": 1.0, "n": 2}, "must be 0"),
    ],
)
def test_requests_are_refused_at_the_door(llm, changes, message):
    case = lab.Case([1, 2], KeyedRequest(key=NoiseKey(1, 2, 9, 0)), 3)
    with pytest.raises(VLLMValidationError, match=message):
        lab.sampled(llm, [case], **changes)


def test_an_engine_of_processed_logprobs_is_refused(engine, model):
    with pytest.raises(ValueError, match="`logprobs_mode` must be 'raw_logprobs' or 'raw_logits'"):
        engine(model, logprobs_mode="processed_logprobs")


def test_logits_without_a_law_are_told_by_their_logprobs_or_name_the_key(engine, flat):
    broken = type(flat)(flat.config)
    with torch.no_grad():
        broken.get_input_embeddings().weight.fill_(torch.nan)
    key = NoiseKey(1, 2, 77, 0)
    tolerant = lab.Case([1, 2], KeyedRequest(key=key, is_tolerant=True), 3)
    (output,) = lab.generate(engine(broken), [tolerant], logprobs=0)
    assert set(output.token_ids) == {0}  # which stops this one
    assert np.isnan([found[0].logprob for found in output.logprobs]).all()
    with pytest.raises(LogitsError, match=r"must not be NaN.*row=77"):
        lab.sampled(engine(broken), [lab.Case([1, 2], KeyedRequest(key=key), 3)])


# Last, for its drafts import numba, with which vLLM's CPU build makes no further engine


def test_drafts_change_nothing(engine, model):
    """Speculative decoding, where a request has several rows a step."""
    if not lab.IS_V2:
        pytest.skip("the V1 runner refuses processors together with drafts")
    drafts = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
    }
    llm = engine(model, speculative_config=drafts)
    cases = lab.make_cases(model, 14, seed=6, limit=40)
    lab.assert_same(lab.sampled(llm, cases), cases)
    assert lab.metric(llm, "spec_decode_num_draft_tokens") > 100
    assert lab.metric(llm, "spec_decode_num_accepted_tokens") > 10
