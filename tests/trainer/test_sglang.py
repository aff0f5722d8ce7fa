"""Keyed noise inside SGLang, as far as it can be tested without it.

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

from tests.samplers import perturbed, request
from trainer.processors.request import FIELD, UNKEYED
from twinstats.noise import LogitsError


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
        expected = [perturbed(given[done, row], one, done).argmax() for done in range(5)]
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
        assert edited[row].argmax() == perturbed(logits[row], request(row), row).argmax()
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


@pytest.mark.parametrize("rows", [1, 3])
def test_sglang_refuses_parameters_that_are_not_one_a_row(sglang, rows):
    """A row without parameters of its own would be sampled by SGLang itself."""
    entries = [Req(request(row).extra_args()).params for row in range(2)]
    with pytest.raises(ValueError, match=f"must be one a row, got 2 for {rows} rows"):
        sglang.KeyedLogitProcessor()(laws(1, rows)[0], entries)
