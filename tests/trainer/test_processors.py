"""Keyed noise inside transformers' `generate` and SGLang: the tokens that our own loop draws.

SGLang is not installed: a stand-in, written from SGLang 0.5.23, takes the place of the two modules
that the processor imports, and of the sampler that calls it.
"""

import importlib
import json
import pickle
import re
import sys
from array import array
from types import ModuleType, SimpleNamespace
from weakref import proxy

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList

from trainer.engines.hf import HfEngine
from trainer.processors.generate import KeyedLogitsProcessor
from trainer.processors.request import FIELD, UNKEYED, KeyedRequest, request_of, sample
from twinstats import noise
from twinstats.noise import LogitsError, NoiseKey

NEW = 8


@pytest.fixture
def model(policy):
    """A random model whose distributions are far from flat."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.ndim == 2:
                weight.mul_(8)
        policy.model.get_input_embeddings().weight.mul_(3)
    return policy.model


def request(row, turn=0, **fields):
    return KeyedRequest(key=NoiseKey(1, 2, row, turn), **fields)


def prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(100, 600, 2 + 3 * row).tolist() for row in range(count)]


def generated(model, texts, requests, *, extra_padding=0, **options):
    """`generate` on a left-padded batch, with everything it can give back."""
    width = max(map(len, texts)) + extra_padding
    ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
    defaults = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0}
    with torch.random.fork_rng():
        return model.generate(
            input_ids=ids,
            attention_mask=mask,
            logits_processor=LogitsProcessorList([KeyedLogitsProcessor(requests, width)]),
            return_dict_in_generate=True,
            output_logits=True,
            output_scores=True,
            **(defaults | options),
        )


def tokens(model, texts, requests, **options):
    found = generated(model, texts, requests, **options)
    return found.sequences[:, -len(found.logits) :].tolist()


def plain(logits, one, position):
    """The definition, for one row of logits."""
    scaled = logits.double().numpy()
    if one.top_k or one.top_p < 1:
        rule = {"top_k": one.top_k, "top_p": one.top_p, "temperature": one.temperature}
        scaled = noise.truncate(scaled, **rule)
    if one.temperature == 0:
        return int(scaled.argmax())
    luck = noise.gumbel(one.key, position, np.arange(len(scaled)))
    return int((scaled / one.temperature + luck).argmax())


# --- what a request carries -----------------------------------------------------------------


def test_a_request_comes_back_from_its_text():
    key = NoiseKey(-5, 2**40, 7, 3, 1, 'alternative/0.0.shared."é"')
    sent = KeyedRequest(
        key=key, temperature=np.float32(0.7), top_k=5, top_p=np.float64(0.9), position=2
    )
    travelled = json.loads(json.dumps(sent.extra_args()))
    assert request_of(travelled) == sent
    assert request_of({**request(3).extra_args(), "other": 1}) == request(3)
    assert request_of({FIELD: UNKEYED}) is None


@pytest.mark.parametrize("given", [None, {}, {"other": 1}, {FIELD: 3}, {FIELD: None}])
def test_a_request_without_a_key_is_refused(given):
    with pytest.raises(ValueError, match="A request without a noise key"):
        request_of(given)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "3", "null", '"sample"', "{}", '{"seed": 1, "step": 0, "row": 0}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": 0, "heat": 1}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": 0, "temperature": "hot"}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": 70000}'],
)
def test_a_text_that_is_no_request_is_refused_with_the_text(text):
    with pytest.raises(ValueError, match=re.escape(f"must hold a keyed request, got {text}")):
        request_of({FIELD: text})


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1.0), ("temperature", float("nan")), ("temperature", float("inf"))]
    + [("top_k", -1), ("top_k", 1.5), ("top_p", 0.0), ("top_p", 1.1), ("top_p", float("nan"))]
    + [("position", -1), ("position", 2**32), ("position", True)],
)
def test_a_number_outside_its_range_names_the_requests_key(name, value):
    with pytest.raises(ValueError, match=re.escape("NoiseKey(seed=1, step=2, row=9, turn=0")) as it:
        request(9, **{name: value})
    assert str(it.value).startswith(f"`{name}` must be")


def test_requests_are_drawn_each_by_its_own_settings():
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 400)) * 2)
    settings = [(0.0, 0, 1.0), (1.0, 0, 1.0), (0.5, 3, 1.0), (2.0, 0, 0.4), (1.3, 50, 0.7)]
    requests = [
        request(row, temperature=t, top_k=k, top_p=p, position=row)
        for row, (t, k, p) in zip(range(60), settings * 12, strict=True)
    ]
    found = sample(logits, requests, [2] * 60)
    assert found.tolist() == [
        plain(*row, one.position + 2) for *row, one in zip(logits, requests, requests, strict=True)
    ]


def test_a_requests_top_p_is_not_rounded():
    """0.3 in float32 is more than three tenths, and a fourth token would stay."""
    requests = [request(row, top_p=0.3) for row in range(100)]
    assert set(sample(torch.zeros(100, 10), requests, [0] * 100).tolist()) == {0, 1, 2}


# --- generate -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "temperature": 0.3, "top_k": 2, "top_p": 0.5}]
)
def test_generate_takes_the_keyed_token_at_every_position(model, options):
    requests = [
        request(0),
        request(1, temperature=0.6),
        request(2, temperature=0.0),
        request(3, top_k=20, top_p=0.8),
        request(4, position=5),
    ]
    found = generated(model, prompts(5), requests, **options)
    new = found.sequences[:, -NEW:].tolist()
    for row, one in enumerate(requests):
        expected = [
            plain(logits[row], one, one.position + done) for done, logits in enumerate(found.logits)
        ]
        assert new[row] == expected


@torch.inference_mode()
def test_output_logits_are_the_models_own_and_output_scores_are_not(model):
    texts = prompts(3)
    found = generated(model, texts, [request(row) for row in range(3)])
    for row, text in enumerate(texts):
        ids = [*text, *found.sequences[row, -NEW:].tolist()]
        whole = model(torch.tensor([ids])).logits[0, len(text) - 1 : -1]
        own = torch.stack([logits[row] for logits in found.logits])
        torch.testing.assert_close(own, whole, atol=1e-4, rtol=1e-4)
    for scores in found.scores:
        assert torch.isfinite(scores).sum(1).tolist() == [1, 1, 1]


def test_the_scores_given_are_left_as_they_are():
    scores = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    before = scores.clone()
    processor = KeyedLogitsProcessor([request(row) for row in range(4)], 2)
    left = processor(torch.zeros(4, 5).long(), scores)
    assert torch.equal(scores, before)
    assert left.shape == scores.shape
    assert left.dtype == scores.dtype


def test_generate_draws_what_the_reference_engine_draws(model):
    class Once:
        def __init__(self, row, text):
            self.row, self.text = row, text

        def start(self):
            return list(self.text)

        def key(self):
            return request(self.row).key

        def advance(self, turn):
            self.tokens = list(turn.tokens)

    sessions = [Once(row, text) for row, text in enumerate(prompts(6))]
    HfEngine(model, stop=frozenset(), max_turn_tokens=NEW).run(sessions, temperature=1.0)
    found = tokens(model, prompts(6), [request(row) for row in range(6)])
    assert found == [session.tokens for session in sessions]


def test_batch_mates_order_and_left_padding_change_no_token(model):
    texts, requests = prompts(5), [request(row) for row in range(5)]
    together = tokens(model, texts, requests)
    alone = [tokens(model, [t], [r])[0] for t, r in zip(texts, requests, strict=True)]
    assert together == alone
    assert tokens(model, texts[::-1], requests[::-1]) == together[::-1]
    assert tokens(model, texts, requests, extra_padding=9) == together


def test_vocabulary_padding_changes_no_token(model):
    texts, requests = prompts(3), [request(row) for row in range(3)]
    expected = tokens(model, texts, requests)
    model.resize_token_embeddings(640, mean_resizing=False)
    padded = [*range(600, 640)]
    assert tokens(model, texts, requests, suppress_tokens=padded) == expected


def test_finished_rows_are_harmless(model):
    texts, requests = prompts(4), [request(row) for row in range(4)]
    whole = tokens(model, texts, requests)
    end = whole[1][4]
    found = tokens(model, texts, requests, eos_token_id=end)
    lengths = [(row.index(end) + 1 if end in row else NEW) for row in whole]
    assert min(lengths) < max(lengths)
    for row, length in enumerate(lengths):
        assert found[row] == whole[row][:length] + [0] * (max(lengths) - length)


def test_a_turn_may_be_sampled_in_pieces(model):
    text = prompts(3)[2]
    whole = tokens(model, [text], [request(0)])[0]
    first = tokens(model, [text], [request(0)], max_new_tokens=3)[0]
    rest = tokens(model, [text + first], [request(0, position=3)], max_new_tokens=NEW - 3)[0]
    assert first + rest == whole


def test_luck_follows_the_turn_and_not_the_absolute_position(policy):
    """A twin whose resampled turn is longer has the factual's noise in the turns after it."""
    with torch.no_grad():
        policy.model.base_model.norm.weight.zero_()  # logits of 0: a token is its luck alone
    factual, twin = prompts(1)[0], prompts(6)[5]
    assert len(factual) != len(twin)
    found = tokens(policy.model, [factual, twin], [request(7, turn=2)] * 2)
    assert found[0] == found[1]
    assert tokens(policy.model, [twin], [request(7, turn=2)]) == found[:1]
    luck = [noise.gumbel(NoiseKey(1, 2, 7, 2), done, np.arange(600)) for done in range(NEW)]
    assert found[0] == [int(one.argmax()) for one in luck]


def test_the_global_generator_and_the_threads_change_no_token(model):
    texts, requests = prompts(3), [request(row) for row in range(3)]
    torch.manual_seed(1)
    expected = tokens(model, texts, requests, do_sample=True)
    torch.manual_seed(2)
    try:
        torch.set_num_threads(2)
        assert tokens(model, texts, requests, do_sample=True) == expected
    finally:
        torch.set_num_threads(1)


def test_several_sequences_of_a_prompt_want_a_request_each(model):
    texts = prompts(2)
    with pytest.raises(ValueError, match=r"must be one a row, got 2 for 6 rows: beams are not"):
        generated(model, texts, [request(0), request(1)], num_return_sequences=3, do_sample=True)
    keys = [NoiseKey(1, 2, row, 0, luck) for row in range(2) for luck in range(3)]
    requests = [KeyedRequest(key=key) for key in keys]
    found = tokens(model, texts, requests, num_return_sequences=3, do_sample=True)
    for number, one in enumerate(requests):
        assert tokens(model, [texts[number // 3]], [one])[0] == found[number]
    assert len({str(row) for row in found}) == 6


def test_beams_are_refused(model):
    with pytest.raises(ValueError, match="got 2 for 6 rows: beams are not supported"):
        generated(model, prompts(2), [request(0), request(1)], num_beams=3)


def test_a_prompt_longer_than_the_ids_is_refused():
    with pytest.raises(ValueError, match="`prompt_length` must be .* got 9 and ids of width 5"):
        KeyedLogitsProcessor([request(0)], 9)(torch.zeros(1, 5).long(), torch.zeros(1, 3))


def test_scores_without_a_law_name_the_requests_key(model):
    def broken(module, given, result):
        result.logits[1] = torch.nan
        return result

    handle = model.register_forward_hook(broken)
    try:
        with pytest.raises(LogitsError, match=re.escape(f"in row 1 ({request(1).key})")):
            generated(model, prompts(2), [request(0), request(1)])
    finally:
        handle.remove()


def test_continuous_batching_is_declined():
    assert KeyedLogitsProcessor.supports_continuous_batching is False


# --- SGLang ---------------------------------------------------------------------------------


class CustomLogitProcessor:
    """As in sglang/srt/sampling/custom_logit_processor.py, with pickle for dill."""

    def __call__(self, logits, custom_param_list=None):
        raise NotImplementedError

    @classmethod
    def to_str(cls):
        return json.dumps({"callable": pickle.dumps(cls).hex()})

    @classmethod
    def from_str(cls, text):
        return pickle.loads(bytes.fromhex(json.loads(text)["callable"]))()


def module(name, **members):
    made = ModuleType(name)
    vars(made).update(members)
    return made


@pytest.fixture
def schedule():
    return SimpleNamespace(disable_overlap_schedule=True)


@pytest.fixture
def sglang(monkeypatch, schedule):
    """Our SGLang module, on a stand-in for SGLang's."""
    stand_ins = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.runtime_context": {"get_schedule": lambda: schedule},
        "sglang.srt.sampling": {},
        "sglang.srt.sampling.custom_logit_processor": {
            "CustomLogitProcessor": CustomLogitProcessor
        },
    }
    for name, members in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module(name, **members))
    monkeypatch.delitem(sys.modules, "trainer.processors.sglang", raising=False)
    yield importlib.import_module("trainer.processors.sglang")
    sys.modules.pop("trainer.processors.sglang", None)


class Req:
    """A request in the server; its parameters refer to it, as in `schedule_batch`."""

    def __init__(self, custom_params, output_ids=()):
        self.output_ids = array("q", output_ids)
        self.params = None if custom_params is None else custom_params | {"__req__": proxy(self)}


def applied(processor, logits, reqs, rows=None):
    """As `apply_custom_logit_processor` does it: a copy of the rows goes in, the result back."""
    rows = list(range(len(reqs))) if rows is None else rows
    index = torch.tensor(rows, dtype=torch.long)
    result = processor(logits.index_select(0, index), [reqs[row].params for row in rows])
    return logits.index_copy(0, index, result.to(logits.dtype))


def served(processor, laws, reqs):
    """Decodes greedily; `laws[step]` are the logits of all requests, as in a batch."""
    for logits in laws:
        edited = applied(processor, logits, reqs)
        for req, token in zip(reqs, edited.argmax(1).tolist(), strict=True):
            req.output_ids.append(token)
    return [list(req.output_ids) for req in reqs]


def laws(steps, rows, size=300):
    return torch.from_numpy(np.random.default_rng(9).normal(size=(steps, rows, size)) * 3).float()


def test_sglang_takes_the_keyed_token_at_every_position(sglang):
    requests = [
        request(0),
        request(1, temperature=0.0),
        request(2, top_k=9),
        request(3, position=4),
    ]
    given = laws(5, 4)
    found = served(sglang.KeyedLogitProcessor(), given, [Req(one.extra_args()) for one in requests])
    for row, one in enumerate(requests):
        expected = [plain(given[done, row], one, one.position + done) for done in range(5)]
        assert found[row] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sglang_rows_do_not_depend_on_each_other_and_unkeyed_ones_are_left_alone(sglang, dtype):
    logits = laws(1, 5)[0].to(dtype)
    reqs = [Req(request(row).extra_args(), range(row)) for row in range(5)]
    reqs[2] = Req({FIELD: UNKEYED})
    processor = sglang.KeyedLogitProcessor()
    edited = applied(processor, logits, reqs)
    assert torch.equal(edited[2], logits[2])
    for row in (0, 1, 3, 4):
        assert edited[row].argmax() == plain(logits[row], request(row), row)
        assert torch.isfinite(edited[row]).sum() == 1
        alone = applied(processor, logits[row : row + 1], [reqs[row]])
        assert torch.equal(alone[0], edited[row])
    some = applied(processor, logits, reqs, rows=[1, 4])  # the others have another processor
    assert torch.equal(some[[1, 4]], edited[[1, 4]])
    assert torch.equal(some[[0, 2, 3]], logits[[0, 2, 3]])
    none = applied(processor, logits, [Req({FIELD: UNKEYED}) for _ in range(5)])
    assert torch.equal(none, logits)


def test_sglangs_logprobs_are_of_the_edited_logits(sglang):
    """Why they are recomputed in the trainer."""
    edited = applied(sglang.KeyedLogitProcessor(), laws(1, 1)[0], [Req(request(0).extra_args())])
    assert torch.log_softmax(edited, -1).max() == 0


@pytest.mark.parametrize("given", [None, {}, {"thinking_budget": 3}])
def test_sglang_refuses_a_request_without_a_key(sglang, given):
    with pytest.raises(ValueError, match="A request without a noise key") as refused:
        applied(sglang.KeyedLogitProcessor(), laws(1, 1)[0], [Req(given)])
    assert "__req__" not in str(refused.value)


def test_sglang_refuses_rows_when_it_is_given_no_parameters(sglang):
    with pytest.raises(ValueError, match="A request without a noise key"):
        sglang.KeyedLogitProcessor()(laws(1, 2)[0], None)


def test_sglang_refuses_several_rows_of_a_request(sglang):
    req = Req(request(0).extra_args())
    with pytest.raises(ValueError, match="without speculative decoding"):
        sglang.KeyedLogitProcessor()(laws(1, 2)[0], [req.params] * 2)


def test_sglang_with_the_overlap_schedule_is_refused(sglang, schedule):
    schedule.disable_overlap_schedule = False
    with pytest.raises(RuntimeError, match="--disable-overlap-schedule"):
        sglang.KeyedLogitProcessor()


def test_sglang_names_the_key_of_logits_without_a_law(sglang):
    logits = laws(1, 2)[0]
    logits[1, 5] = torch.nan
    reqs = [Req(request(row).extra_args()) for row in range(2)]
    with pytest.raises(LogitsError, match=re.escape(f"({request(1).key})")):
        applied(sglang.KeyedLogitProcessor(), logits, reqs)


def test_sglangs_text_of_the_processor_names_this_package(sglang):
    text = sglang.KeyedLogitProcessor.to_str()
    assert b"trainer.processors.sglang" in bytes.fromhex(json.loads(text)["callable"])
    assert isinstance(CustomLogitProcessor.from_str(text), sglang.KeyedLogitProcessor)


def test_without_sglang_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.delitem(sys.modules, "trainer.processors.sglang", raising=False)
    with pytest.raises(ImportError, match=r"^SGLang is missing .*: pip install sglang==0\.5\.23$"):
        importlib.import_module("trainer.processors.sglang")
