"""The two processors by hand: vLLM's own loaders, interfaces and request types, but no engine."""

import importlib
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    MoveDirectionality,
    _load_custom_logitsprocs,
    build_logitsprocs,
    validate_logits_processors_parameters,
)
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor import loader as v2_loader

import trainer.processors.vllm as module
from trainer import noise
from trainer.processors.request import FIELD, UNKEYED, KeyedRequest, request_of
from trainer.processors.vllm import KeyedV1, KeyedV2, check_engine, check_request, processor
from twinstats.noise import KeyColumns, LogitsError, NoiseKey, gumbel, sample, truncate

pytestmark = pytest.mark.vllm

V1_NAME, V2_NAME = "trainer.processors.vllm:KeyedV1", "trainer.processors.vllm:KeyedV2"
CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(logprobs_mode="raw_logprobs"), speculative_config=None
)
SWAP, ONE_WAY = MoveDirectionality.SWAP, MoveDirectionality.UNIDIRECTIONAL
VOCABULARY = 700
LAWS = [
    {},
    {"temperature": 0.6},
    {"temperature": 0.0},
    {"top_k": 4},
    {"top_p": 0.7, "temperature": 1.4},
    {"top_k": 30, "top_p": 0.9, "position": 17},
]


def request(row, **law):
    return KeyedRequest(key=NoiseKey(1, 2, row, 3), **law)


def params(keyed):
    """Sampling parameters of a keyed request, or of none."""
    extra = {FIELD: UNKEYED} if keyed is None else keyed.extra_args()
    return SamplingParams(temperature=0, extra_args=extra)


def logits_of(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, VOCABULARY, generator=generator)


def expected(logits, keyed, num_sampled):
    """The token of a row by NumPy alone; -1 where the row is not keyed."""
    if keyed is None:
        return -1
    settings = {"top_k": keyed.top_k, "top_p": keyed.top_p}
    law = truncate(logits.numpy(), temperature=keyed.temperature or 1.0, **settings)
    position = keyed.position + num_sampled
    return int(sample(law[None], [keyed.key], [position], keyed.temperature)[0])


def taken(before, after):
    """The token that is left in each row; -1 in a row that was not touched."""
    tokens = []
    for old, new in zip(before, after, strict=True):
        left = torch.isfinite(new).nonzero()[:, 0].tolist()
        assert torch.equal(old, new) or (len(left) == 1 and new[left[0]] == 0)
        tokens.append(-1 if torch.equal(old, new) else left[0])
    return tokens


# Loading


def test_vllm_loads_each_class_by_name_and_refuses_the_other():
    assert _load_custom_logitsprocs([V1_NAME]) == [KeyedV1]
    assert v2_loader._load_v2_logitsprocs([V2_NAME]) == [KeyedV2]
    with pytest.raises(ValueError, match="not a subclass"):
        v2_loader._load_v2_logitsprocs([V1_NAME])
    with pytest.raises(ValueError, match="must be a subclass"):
        _load_custom_logitsprocs([V2_NAME])


def test_nothing_is_announced_as_an_entry_point():
    assert not entry_points(group="vllm.logits_processors")


@pytest.mark.parametrize(("is_v2", "name"), [(True, V2_NAME), (False, V1_NAME)])
def test_the_name_follows_the_runner(monkeypatch, is_v2, name):
    seen = {}

    def engine_args(**arguments):
        seen.update(arguments)
        config = SimpleNamespace(use_v2_model_runner=is_v2)
        return SimpleNamespace(create_engine_config=lambda: config)

    monkeypatch.setattr(module, "EngineArgs", engine_args)
    assert processor(model="m", logits_processors=["other:One"]) == name
    assert seen == {"model": "m", "logits_processors": ["other:One", V1_NAME]}
    monkeypatch.setattr(module, "V2", None)
    assert processor(no="argument is looked at") == V1_NAME


def fresh_import(monkeypatch, *missing):
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "trainer.processors.vllm")
    return importlib.import_module("trainer.processors.vllm")


def test_without_vllm_one_sentence_says_what_to_install(monkeypatch):
    with pytest.raises(ImportError, match="needs vLLM: `pip install vllm`"):
        fresh_import(monkeypatch, "vllm")


def test_a_vllm_with_one_interface_has_one_class(monkeypatch):
    old = fresh_import(monkeypatch, "vllm.v1.worker.gpu.sample.logits_processor")
    assert hasattr(old, "KeyedV1") and not hasattr(old, "KeyedV2")
    assert old.processor(model="anything") == V1_NAME


# Requests


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("temperature", 0.7, "`temperature` of `SamplingParams` must be 0"),
        ("n", 2, "`n` must be 1"),
        ("seed", 5, "`seed` must be None"),
        ("top_k", 3, "`top_k` must be 0"),
        ("top_p", 0.9, "`top_p` must be 1.0"),
        ("min_p", 0.1, "`min_p` must be 0.0"),
        ("presence_penalty", 0.1, "`presence_penalty` must be 0.0"),
        ("frequency_penalty", -0.1, "`frequency_penalty` must be 0.0"),
        ("repetition_penalty", 1.05, "`repetition_penalty` must be 1.0"),
        ("watermarking", True, "`watermarking` must be None"),
        ("thinking_token_budget", 7, "`thinking_token_budget` must be None"),
        ("trace_decode_token_ids", [4], "`trace_decode_token_ids` must be None"),
    ],
)
def test_what_a_key_excludes_is_refused_by_name_and_value(name, value, rule):
    keyed, unkeyed = params(request(9)), params(None)
    for one in (keyed, unkeyed):
        setattr(one, name, value)
    with pytest.raises(ValueError, match=rf"{rule}.*got {value}".replace("[", r"\[")) as caught:
        check_request(keyed)
    assert "row=9" in str(caught.value)
    check_request(unkeyed)


def test_both_classes_validate_at_admission():
    for kind in (KeyedV1, KeyedV2):
        with pytest.raises(ValueError, match="without a noise key.*'unkeyed'.*got {}"):
            kind.validate_params(SamplingParams())
    admit = v2_loader.build_custom_logits_processors_params_validator([V2_NAME])
    for one in (params(request(1)), params(None)):
        admit(one)
        validate_logits_processors_parameters([V1_NAME], one)


@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
def test_engines_whose_logprobs_would_be_of_the_drawn_token_are_refused(mode):
    config = SimpleNamespace(
        model_config=SimpleNamespace(logprobs_mode=mode), speculative_config=None
    )
    with pytest.raises(ValueError, match=f"`logprobs_mode` must be.*got '{mode}'"):
        KeyedV1(config, torch.device("cpu"), False)
    with pytest.raises(ValueError, match=f"`logprobs_mode` must be.*got '{mode}'"):
        KeyedV2(config, Slots().states)


def test_drafts_that_are_accepted_whatever_the_draw_are_refused():
    drafts = SimpleNamespace(rejection_sample_method="synthetic")
    with pytest.raises(ValueError, match="`rejection_sample_method` must not be 'synthetic'"):
        check_engine(SimpleNamespace(model_config=CONFIG.model_config, speculative_config=drafts))


def test_v1_itself_refuses_drafts():
    config = SimpleNamespace(speculative_config=object())
    with pytest.raises(ValueError, match="not supported when speculative decoding"):
        build_logitsprocs(config, torch.device("cpu"), False, False, [V1_NAME])


def test_a_key_travels_through_the_openai_protocol():
    keyed = request(5, temperature=0.7, top_k=3, top_p=0.9, position=2)
    settings = {"model": "m", "temperature": 0, "max_tokens": 4, "vllm_xargs": keyed.extra_args()}
    chat = ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], **settings)
    text = CompletionRequest(prompt=[1, 2], **settings)
    for asked in (chat, text):
        received = type(asked).model_validate_json(asked.model_dump_json(exclude_unset=True))
        assert request_of(received.vllm_xargs) == keyed
        made = received.to_sampling_params(4, {})
        assert request_of(made.extra_args) == keyed
        check_request(made)


# The noise


def test_the_noise_is_the_golden_one():
    ids = [0, 1, 2, 3, 255, 256, 1000, 151935]
    golden = {
        (NoiseKey(7, 3, 5, 2), 11): [
            1.0206202721422601, 2.4959897948505514, 0.7783864878414736, -0.17033030826753126,
            -0.10289553184483508, 0.7169954517828189, 1.3910429987659523, 4.771685053413678,
        ],
        (NoiseKey(7, 3, 5, 2, 1, "alternative"), 0): [
            1.4159148513307676, -0.38292606227496867, 1.1498715051076416, 0.6105397276027605,
            -0.6886487864946228, -1.1931758169343354, 2.3376531975064574, 0.4976450436629311,
        ],
    }  # fmt: skip
    for (key, position), values in golden.items():
        slots = Slots()
        slots.add(2, KeyedRequest(key=key, position=position), prompt_len=8)
        words = slots.processor._whole_S[2:3]
        on_device = noise.gumbel(words[:, :4], words[:, 4], torch.tensor([ids]))[0]
        np.testing.assert_allclose(on_device.numpy(), values, rtol=0, atol=1e-12)
        np.testing.assert_allclose(gumbel(key, position, ids), values, rtol=0, atol=1e-12)


def test_noise_of_rows_seeds_and_positions_is_uncorrelated():
    keys = [NoiseKey(1, 0, 0, 0), NoiseKey(1, 0, 1, 0), NoiseKey(2, 0, 0, 0), NoiseKey(1, 0, 0, 0)]
    words = noise.key_words(KeyColumns.of(keys))
    ids = torch.arange(100_000).expand(4, -1)
    values = noise.gumbel(words, torch.tensor([0, 0, 0, 1]), ids).numpy()
    off = np.corrcoef(values)[~np.eye(4, dtype=bool)]
    assert np.abs(off).max() < 4.9 / np.sqrt(ids.shape[1])


# V1


def update(removed=(), added=(), moved=(), size=8):
    return BatchUpdate(batch_size=size, removed=list(removed), added=list(added), moved=list(moved))


def test_v1_follows_removed_then_added_then_moved():
    one = KeyedV1(CONFIG, torch.device("cpu"), False)
    assert not one.is_argmax_invariant()
    outputs = {row: [0] * row for row in range(8)}

    def add(place, row, keyed=True):
        return (place, params(request(row) if keyed else None), [1], outputs[row])

    def rows():
        return {
            place: (keyed.key.row, len(sampled)) for place, (keyed, sampled) in one._rows.items()
        }

    one.update_state(None)
    one.update_state(update(added=[add(0, 0), add(1, 1), add(2, 2, keyed=False), add(3, 3)]))
    assert rows() == {0: (0, 0), 1: (1, 1), 3: (3, 3)}
    # a removed row that is filled in the same step, a swap of keyed and unkeyed, a way down
    one.update_state(
        update(removed=[1], added=[add(1, 5), add(4, 4)], moved=[(0, 2, SWAP), (4, 0, ONE_WAY)])
    )
    assert rows() == {2: (0, 0), 1: (5, 5), 3: (3, 3), 0: (4, 4)}
    outputs[5].append(7)  # the list is a live one
    one.update_state(update(added=[add(3, 6, keyed=False)], moved=[(2, 1, SWAP), (3, 0, ONE_WAY)]))
    assert rows() == {1: (0, 0), 2: (5, 6)}
    one.update_state(update(removed=[1, 2]))
    assert rows() == {}


@pytest.mark.parametrize("laws", [LAWS[:3], LAWS])
def test_v1_draws_what_numpy_draws(laws):
    one = KeyedV1(CONFIG, torch.device("cpu"), False)
    asked = [None, *(request(row, **law) for row, law in enumerate(laws)), None, request(40)]
    added = [(place, params(keyed), [1], [0] * (place * 2)) for place, keyed in enumerate(asked)]
    one.update_state(update(added=added))
    logits = logits_of(len(asked))
    tokens = taken(logits, one.apply(logits.clone()))
    assert tokens == [expected(logits[i], keyed, 2 * i) for i, keyed in enumerate(asked)]


def both(asked):
    """`apply` of either class, for one row a request that has sampled nothing yet."""
    old, slots = KeyedV1(CONFIG, torch.device("cpu"), False), Slots()
    old.update_state(update(added=[(i, params(r), [1], []) for i, r in enumerate(asked)]))
    for slot, keyed in enumerate(asked):
        slots.add(slot, keyed, prompt_len=2)
    return {
        "V1": old.apply,
        "V2": lambda logits: slots.apply(logits, [(slot, 0) for slot in range(len(asked))]),
    }


@pytest.mark.parametrize("kind", ["V1", "V2"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_without_a_law_name_the_key_before_anything_is_sampled(value, kind):
    asked = [request(3), None, request(77), request(4)]
    apply = both(asked)[kind]
    broken = logits_of(4)
    broken[2] = value
    with pytest.raises(LogitsError, match="row=77"):
        apply(broken)
    broken = logits_of(4)
    broken[1] = value  # without a key, what comes of it is the engine's business
    after = apply(broken.clone())
    tokens = taken(broken[[0, 2, 3]], after[[0, 2, 3]])
    assert tokens == [expected(broken[row], asked[row], 0) for row in (0, 2, 3)]
    assert torch.equal(after[1].nan_to_num(nan=7.0), broken[1].nan_to_num(nan=7.0))


@pytest.mark.parametrize("kind", ["V1", "V2"])
def test_one_bad_logit_is_enough(kind):
    broken = logits_of(1)
    broken[0, 600] = torch.nan
    for law in ({}, {"temperature": 0.0}, {"top_k": 5}):
        with pytest.raises(LogitsError, match="NaN.*row=5"):
            both([request(5, **law)])[kind](broken.clone())


# V2


class Slots:
    """What the V2 runner does around a processor, with stand-ins for its buffers."""

    def __init__(self, count=9):
        self.lengths = torch.zeros(count, dtype=torch.int32)
        self.prefill = torch.zeros(count, dtype=torch.int32)
        unread = SimpleNamespace(gpu=None)
        self.states = LogitsProcRequestState(
            device=torch.device("cpu"),
            max_num_reqs=count,
            vocab_size=VOCABULARY,
            all_token_ids=unread,
            prompt_len=SimpleNamespace(gpu=self.lengths.clone()),
            prefill_len=SimpleNamespace(gpu=self.prefill.clone()),
            total_len=unread,
        )
        self.processor = KeyedV2(CONFIG, self.states)

    def add(self, slot, keyed, *, prompt_len, prefill_len=None):
        self.lengths[slot] = prompt_len
        self.prefill[slot] = prefill_len or prompt_len
        assert self.processor.add_request(slot, params(keyed)) == (keyed is not None)
        # As vLLM's, a flush puts a new tensor in the place of the old one.
        self.states.prompt_len.gpu = self.lengths.clone()
        self.states.prefill_len.gpu = self.prefill.clone()
        self.processor.apply_staged_writes()

    def apply(self, logits, rows):
        """Applies to rows of (slot, tokens sampled before): those of a slot stand together."""
        slots = np.array([slot for slot, _ in rows])
        first = np.flatnonzero(np.diff(slots, prepend=-1))
        local = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
        pos = [int(self.lengths[slot]) - 1 + done for slot, done in rows]
        context = LogitsContext(
            expanded_idx_mapping=torch.tensor(slots, dtype=torch.int32),
            idx_mapping=torch.tensor(slots[first], dtype=torch.int32),
            idx_mapping_np=slots[first].astype(np.int32),
            expanded_local_pos=torch.tensor(local, dtype=torch.int32),
            input_ids=torch.zeros(len(rows), dtype=torch.int32),
            pos=torch.tensor(pos),
            seq_lens_upper_bound_np=np.array(pos)[first] + 1,
        )
        return self.processor.apply(logits, context)


def check(slots, rows, asked, seed=0):
    logits = logits_of(len(rows), seed)
    tokens = taken(logits, slots.apply(logits.clone(), rows))
    assert tokens == [
        expected(row, asked[slot], max(done, 0))
        for row, (slot, done) in zip(logits, rows, strict=True)
    ]


@pytest.mark.parametrize("laws", [LAWS[:3], LAWS])
def test_v2_draws_what_numpy_draws_in_any_order_of_rows(laws):
    slots = Slots()
    asked = {slot: request(slot, **law) for slot, law in enumerate(laws)}
    for slot, keyed in asked.items():
        slots.add(slot, keyed, prompt_len=3 + 5 * slot)
    everyone = [(slot, 2 * slot) for slot in asked]
    check(slots, everyone, asked)
    check(slots, everyone[::-1], asked, seed=1)
    check(slots, [everyone[2], everyone[0]], asked, seed=2)
    asked |= {7: None, 8: None}
    for slot in (7, 8):
        slots.add(slot, None, prompt_len=4)
    check(slots, [(8, 0), *everyone, (7, 3)], asked, seed=3)
    check(slots, [(8, 0), (7, 3)], asked, seed=4)


def test_v2_slots_forget_who_was_there_before():
    slots, asked = Slots(), {}
    occupants = [
        (request(1, top_k=3, temperature=0.5, position=40), 6),
        (request(2), 11),
        (None, 2),
        (request(3, top_p=0.5), 1),
    ]
    slots.add(1, request(50), prompt_len=5)
    for seed, (keyed, length) in enumerate(occupants):
        asked = {0: keyed, 1: request(50)}
        slots.add(0, keyed, prompt_len=length)
        check(slots, [(0, 3), (1, seed)], asked, seed)


def test_v2_draft_rows_are_the_positions_they_stand_for():
    slots = Slots()
    asked = {0: request(0, top_k=9), 1: None, 2: request(2, position=5), 3: request(3)}
    for slot, keyed in asked.items():
        slots.add(slot, keyed, prompt_len=4 + slot)
    rows = [(2, 6), (2, 7), (2, 8), (0, 0), (1, 4), (1, 5), (3, 1), (3, 2)]
    check(slots, rows, asked)
    # the same tokens as one by one
    logits = logits_of(len(rows))
    together = taken(logits, slots.apply(logits.clone(), rows))
    alone = [
        taken(one[None], slots.apply(one[None].clone(), [row]))[0]
        for one, row in zip(logits, rows, strict=True)
    ]
    assert together == alone


def test_v2_counts_from_the_prompt_after_a_preemption():
    slots, asked = Slots(), {4: request(4, position=2)}
    slots.add(4, asked[4], prompt_len=6)
    check(slots, [(4, 0)], asked)
    check(slots, [(4, 9)], asked)
    slots.add(0, asked[4], prompt_len=6, prefill_len=16)  # back in another slot, ten tokens on
    check(slots, [(0, 10)], {0: asked[4]})


def test_v2_rows_within_a_prompt_do_no_harm():
    slots, asked = Slots(), {0: request(0), 1: request(1)}
    for slot in asked:
        slots.add(slot, asked[slot], prompt_len=50)
    check(slots, [(0, -30), (1, 2)], asked)


def test_v2_before_any_request_touches_nothing():
    logits = logits_of(3)
    assert taken(logits, Slots().apply(logits.clone(), [(0, 0), (1, 0), (2, 0)])) == [-1] * 3


def test_v2_equals_v1():
    asked = [request(row, **LAWS[row % len(LAWS)]) for row in range(9)]
    old, slots = KeyedV1(CONFIG, torch.device("cpu"), False), Slots()
    old.update_state(update(added=[(i, params(r), [1], [0] * i) for i, r in enumerate(asked)]))
    for slot, keyed in enumerate(asked):
        slots.add(slot, keyed, prompt_len=slot + 1)
    for seed in range(10):
        logits = logits_of(9, seed)
        new = slots.apply(logits.clone(), [(slot, slot) for slot in range(9)])
        assert torch.equal(old.apply(logits.clone()), new)


def test_requests_differ_by_what_they_say():
    """The tests above would see each part of a request: all change what is drawn."""
    base = request(1, temperature=1.0)
    logits = logits_of(300)

    def tokens(keyed, done=0):
        return [expected(row, keyed, done + i) for i, row in enumerate(logits)]

    for other in (
        replace(base, temperature=0.6),
        replace(base, top_k=4),
        replace(base, top_p=0.5),
        replace(base, position=1),
        request(2),
    ):
        assert tokens(other) != tokens(base)
