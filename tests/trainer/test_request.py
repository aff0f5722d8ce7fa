"""What a keyed request carries, how it is refused, and how its tokens are drawn."""

import json
import re

import numpy as np
import pytest
import torch

from tests.samplers import perturbed, request
from trainer.processors.request import (
    FIELD,
    UNKEYED,
    KeyedRequest,
    lawful,
    request_of,
    sample,
)
from twinstats.noise import NoiseKey


def test_a_request_comes_back_from_its_text():
    key = NoiseKey(-5, 2**40, 7, 3, 1, 'alternative/0.0.shared."é"')
    sent = KeyedRequest(
        key=key, temperature=np.float32(0.7), top_k=5, top_p=np.float64(0.9), position=2
    )
    travelled = json.loads(json.dumps(sent.extra_args()))
    assert request_of(travelled) == sent
    tolerant = request(3, is_tolerant=True)
    assert request_of(json.loads(json.dumps(tolerant.extra_args()))) == tolerant != request(3)
    assert request_of({**request(3).extra_args(), "other": 1}) == request(3)
    assert request_of({FIELD: UNKEYED}) is None


@pytest.mark.parametrize(
    "given", [None, {}, {"other": 1}, {FIELD: 3}, {FIELD: None}, UNKEYED, [FIELD]]
)
def test_a_request_without_a_key_is_refused(given):
    with pytest.raises(ValueError, match="A request without a noise key"):
        request_of(given)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "3", "null", '"sample"', "{}", '{"seed": 1, "step": 0, "row": 0}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": 0, "heat": 1}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": 0, "temperature": "hot"}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": 70000}']
    + ['{"seed": true, "step": 0, "row": 0, "turn": 0}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": false}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": 0, "purpose": "\\ud800"}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": 0, "temperature": Infinity}']
    + ['{"seed": 1, "step": 0, "row": 0, "turn": 0, "temperature": [1]}'],
)
def test_a_text_that_is_no_request_is_refused_with_the_text(text):
    with pytest.raises(ValueError, match=re.escape(f"must hold a keyed request, got {text}")):
        request_of({FIELD: text})


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1.0), ("temperature", float("nan")), ("temperature", float("inf"))]
    + [("top_k", -1), ("top_k", 1.5), ("top_p", 0.0), ("top_p", 1.1), ("top_p", float("nan"))]
    + [("position", -1), ("position", 2**32), ("position", True)]
    + [("temperature", True), ("temperature", "1"), ("temperature", None), ("top_p", True)]
    + [
        ("is_tolerant", 1),
        ("temperature", 10**400),
        ("top_p", "1"),
        ("top_k", True),
        ("top_k", 2**32),
    ],
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
        perturbed(*row, 2).argmax() for row in zip(logits, requests, strict=True)
    ]


def test_a_requests_top_p_is_not_rounded():
    """0.3 in float32 is more than three tenths, and a fourth token would stay."""
    requests = [request(row, top_p=0.3) for row in range(100)]
    assert set(sample(torch.zeros(100, 10), requests, [0] * 100).tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"x": ' * 10_000, '{"%s": 1}' % ("y" * 100_000), "9" * 5000]
)
def test_a_text_that_is_deep_or_long_is_refused_in_one_short_sentence(text):
    with pytest.raises(ValueError, match="must hold a keyed request, got ") as refused:
        request_of({FIELD: text})
    assert len(str(refused.value)) < 1000
    with pytest.raises(ValueError, match="A request without a noise key") as refused:
        request_of({"other": text})
    assert len(str(refused.value)) < 1000


def test_a_request_without_a_key_of_its_own_is_refused_when_it_is_made():
    for key in (None, "sample", {"seed": 1}):
        with pytest.raises(ValueError, match="`key` must be a `NoiseKey`, got"):
            KeyedRequest(key=key)


def test_a_request_of_numpys_numbers_is_that_of_pythons():
    given = request(3, top_k=np.int64(5), position=np.uint8(2), temperature=np.float64(0.5))
    assert given == request(3, top_k=5, position=2, temperature=0.5)
    assert given.extra_args() == request(3, top_k=5, position=2, temperature=0.5).extra_args()


def test_only_tolerant_rows_that_are_no_law_are_mended():
    nan, inf = torch.nan, torch.inf
    lawless = [[1.0, nan, 2.0], [1.0, inf, 2.0], [-inf, -inf, -inf]]
    logits = torch.tensor([*lawless, [1.0, -inf, 2.0], [3e38, 3e38, -3e38]])
    found = lawful(logits, torch.tensor([True] * 5))
    assert found[:3].tolist() == [[0.0, -inf, -inf]] * 3
    assert found[3:].equal(logits[3:])
    assert not torch.log_softmax(logits[:3], -1).isfinite().any()  # what vLLM tells of them
    assert lawful(logits[1:], torch.tensor([False] * 4)).equal(logits[1:])
