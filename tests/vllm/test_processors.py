"""The two processors by hand: vLLM's own interfaces and request types, but no engine."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from vllm.v1.sample.logits_processor import MoveDirectionality

from tests.golden import GOLDEN, IDS
from tests.samplers import request
from tests.vllm.runners import CONFIG, Slots, both, expected, logits_of, params, taken, update
from trainer import noise
from trainer.processors.request import KeyedRequest
from trainer.processors.vllm import KeyedV1
from twinstats.noise import LogitsError

pytestmark = pytest.mark.vllm

SWAP, ONE_WAY = MoveDirectionality.SWAP, MoveDirectionality.UNIDIRECTIONAL
LAWS = [
    {},
    {"temperature": 0.6},
    {"temperature": 0.0},
    {"top_k": 4},
    {"top_p": 0.7, "temperature": 1.4},
    {"top_k": 30, "top_p": 0.9, "position": 17},
]


# The noise


def test_the_noise_is_the_golden_one():
    for key, position, values in GOLDEN:
        slots = Slots()
        slots.add(2, KeyedRequest(key=key, position=position), prompt_len=8)
        words = slots.processor._whole_S[2:3]
        on_device = noise.gumbel(words[:, :4], words[:, 4], torch.tensor([IDS]))[0]
        np.testing.assert_allclose(on_device.numpy(), values, rtol=0, atol=1e-12)


# V1


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


# Both


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


@pytest.mark.parametrize("kind", ["V1", "V2"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("law", [{}, {"temperature": 0.0}, {"top_k": 5}])
def test_a_tolerant_row_without_a_law_has_token_0_and_the_others_theirs(value, kind, law):
    asked = [request(3), request(77, is_tolerant=True, **law), None, request(4, is_tolerant=True)]
    broken = logits_of(4)
    broken[1] = value
    after = both(asked)[kind](broken.clone())
    assert torch.isfinite(after[1]).nonzero().tolist() == [[0]] and after[1, 0] == 0
    tokens = taken(broken[[0, 2, 3]], after[[0, 2, 3]])
    assert tokens == [expected(broken[row], asked[row], 0) for row in (0, 2, 3)]
    broken[0, 600] = torch.nan
    with pytest.raises(LogitsError, match="row=3"):
        both(asked)[kind](broken.clone())


@pytest.mark.parametrize("kind", ["V1", "V2"])
def test_logits_that_are_a_law_but_not_at_their_temperature_are_never_tolerated(kind):
    huge = logits_of(1)
    huge[0, 600] = 3e38
    with pytest.raises(LogitsError, match="stay finite.*row=5"):
        both([request(5, temperature=1e-300, is_tolerant=True)])[kind](huge)


# V2


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
