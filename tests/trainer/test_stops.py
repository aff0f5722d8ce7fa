"""Texts of several tokens that end a turn: the same turns in every engine, and none too long."""

import pytest
import torch

from tests.trainer import tiny_qwen
from tests.trainer.fake_vllm import FakeServer
from trainer.engines.hf import HfEngine
from trainer.engines.parity import Parity
from trainer.engines.requests import Ending, TurnRequest
from trainer.engines.servers import ServerEngine
from trainer.engines.stops import stop_texts
from trainer.processors.request import KeyedRequest
from twinstats.noise import NoiseKey

TEXT = "?>"


@pytest.fixture(scope="module")
def policy():
    """It likes `?` and `>`, which are tokens while `?>` is none."""
    found = tiny_qwen.policy()
    liked = [found.encode(text)[0] for text in ("?", ">")]
    bias = torch.zeros(tiny_qwen.VOCABULARY)
    bias[liked] = 4.0
    found.model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + bias)
    return found


class Asked:
    """A session of one turn, which it keeps."""

    def __init__(self, row, prompt):
        self.row, self.prompt, self.turn = row, prompt, None

    def start(self):
        return list(self.prompt)

    def key(self):
        return NoiseKey(0, 1, self.row, 0, 0, "decision")

    def draft(self):
        return ()

    def advance(self, turn):
        self.turn = turn


def sessions(policy, count=24):
    return [Asked(row, policy.encode(f"capital {row}")) for row in range(count)]


def ending(policy, *, longest=30):
    return Ending(stop=frozenset(), max_tokens=longest, texts=stop_texts(policy, [TEXT]))


def played(policy, *, longest=30):
    own, found = ending(policy, longest=longest), sessions(policy)
    HfEngine(policy.model, stop=own.stop, max_turn_tokens=longest, texts=own.texts).run(
        found, temperature=1.0
    )
    return [one.turn for one in found]


def test_a_turn_ends_with_the_token_that_completes_the_text_and_nowhere_else(policy):
    turns = played(policy)
    assert len(policy.encode(TEXT)) > 1  # or this would be of single tokens
    assert sum(turn.is_stopped for turn in turns) >= 5
    assert any(not turn.is_stopped for turn in turns)
    for turn in turns:
        ends = [TEXT in policy.decode(turn.tokens[:n]) for n in range(1, len(turn.tokens) + 1)]
        assert ends[-1] == turn.is_stopped and not any(ends[:-1])
        assert turn.is_stopped or len(turn.tokens) == 30


def test_no_text_means_nothing_to_look_for(policy):
    assert stop_texts(policy, ()) is None


def test_closers_are_the_tokens_that_hold_the_texts_last_character(policy):
    found = stop_texts(policy, ["</search>", "</answer>"])
    assert policy.encode(">")[0] in found.closers
    assert policy.encode("search")[0] not in found.closers
    assert found.end(policy.encode("I ask <search>Chad</search>"))
    assert not found.end(policy.encode("I ask <search>"))


def test_a_server_that_knows_ids_alone_gives_the_same_turns(policy):
    """It pauses where the text may be complete, and goes on at the next row of noise."""
    expected = played(policy)
    server = FakeServer(policy.model)
    try:
        engine = ServerEngine(
            policy,
            [server.address],
            ending=ending(policy),
            parity=Parity(policy, longest=64, tolerance=0.05),
            max_length=128,
            max_requests=8,
            timeout_seconds=20.0,
        )
        found = sessions(policy)
        engine.run(found, temperature=1.0)
    finally:
        server.close()
    assert [one.turn.tokens for one in found] == [turn.tokens for turn in expected]
    assert [one.turn.is_stopped for one in found] == [turn.is_stopped for turn in expected]
    assert len(server.asked) > len(found)  # some turns were asked for in pieces
    for one, turn in zip(found, expected, strict=True):
        assert one.turn.logprobs == pytest.approx(turn.logprobs, abs=1e-4)


def test_the_rest_of_a_turn_is_asked_for_with_its_own_noise_and_what_is_left_of_the_limit(policy):
    key = NoiseKey(0, 0, 0, 0, 0, "x")
    own = ending(policy, longest=5)
    whole = TurnRequest(prompt=(1, 2), keyed=KeyedRequest(key=key), ending=own)
    rest = whole.rest((7, 8)).rest((9,))
    assert (rest.prompt, rest.sampled, rest.max_tokens) == ((1, 2, 7, 8, 9), (7, 8, 9), 2)
    assert rest.keyed.position == 3 and rest.keyed.key == key
    closer = policy.encode(">")[0]
    assert whole.fits((7, closer)) and whole.fits((7,) * 5) and not whole.fits((closer, 7))
    assert rest.fits((7, 7)) and rest.fits((closer,)) and not rest.fits((7,))
    assert whole.excess(6) is not None and rest.excess(7) is None
