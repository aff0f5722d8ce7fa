"""How vLLM loads the processors, and which engines and requests are refused: no engine is made."""

import importlib
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest
import torch
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.v1.sample.logits_processor import (
    _load_custom_logitsprocs,
    build_logitsprocs,
    validate_logits_processors_parameters,
)
from vllm.v1.worker.gpu.sample.logits_processor import loader as v2_loader

import trainer.processors.vllm as module
from tests.samplers import request
from tests.vllm.runners import CONFIG, Slots, params
from trainer.processors.request import request_of
from trainer.processors.vllm import KeyedV1, KeyedV2, check_engine, check_request, processor

pytestmark = pytest.mark.vllm

V1_NAME, V2_NAME = "trainer.processors.vllm:KeyedV1", "trainer.processors.vllm:KeyedV2"


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


def test_a_request_that_could_leave_the_range_of_positions_is_refused():
    keyed = params(request(9, position=2**32 - 5))
    keyed.max_tokens = 6
    with pytest.raises(ValueError, match=r"`position` plus `max_tokens` must be at most.*row=9"):
        check_request(keyed)
    keyed.max_tokens = 5
    check_request(keyed)


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
