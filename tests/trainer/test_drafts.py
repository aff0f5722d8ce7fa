"""Drafts: the same tokens in fewer passes, whatever the guess."""

import numpy as np
import pytest
import torch

from tests.trainer.walks import (
    MAX_TURN_TOKENS,
    STOP,
    Walk,
    alone,
    assert_same,
    played,
    sharpened,
    walks,
)
from trainer.engines.drafts import num_equal, trimmed
from twinstats.noise import NoiseKey


@pytest.fixture
def model(policy):
    return sharpened(policy.model)


def ends(tokens):
    return tokens[-1] in STOP or len(tokens) >= MAX_TURN_TOKENS


def test_a_draft_is_trimmed_where_the_turn_would_be_over():
    assert trimmed([200, 5, 300], ends) == [200, 5]
    assert trimmed([200] * 20, ends) == [200] * MAX_TURN_TOKENS
    assert trimmed([200, 300], ends) == [200, 300]
    assert trimmed([], ends) == []


def test_tokens_count_as_equal_up_to_the_first_that_differs():
    assert num_equal([1, 2, 3], [1, 2, 3, 4]) == 3
    assert num_equal([1, 2, 3], [1, 9, 3]) == 1
    assert num_equal([1, 2, 3], [9]) == num_equal([], [9]) == 0


def guesses(turn, place, rng):
    """Drafts of a turn: right, wrong at a place, too short, too long, and nonsense."""
    other = [*turn[:place], int(rng.integers(100, 600)), *turn[place + 1 :]]
    stops = [*turn[:place], 7, *turn[place:]]  # a stop token too early, and tokens beyond it
    longer = [*turn, *rng.integers(0, 600, 30).tolist()]
    nonsense = rng.integers(0, 600, 20).tolist()
    return [turn, other, stops, turn[: place + 1], turn[:place], longer, nonsense]


@pytest.fixture
def plain(model):
    """Sessions as they go without drafts."""
    sessions = walks(60, seed=5)
    played(model, sessions)
    return sessions


@pytest.mark.parametrize("max_batch", [20, 128])
def test_no_draft_changes_a_token(model, plain, max_batch):
    rng, drafted, tried = np.random.default_rng(2), [], set()
    for kind in range(7):
        for one in plain:
            places = [int(rng.integers(len(turn))) for turn in one.tokens]
            drafts = {
                index: guesses(list(turn), place, rng)[kind]
                for index, (turn, place) in enumerate(zip(one.tokens, places, strict=True))
            }
            tried |= {(kind, place) for place in places}
            drafted.append(one.fork(0, drafts=drafts))
    engine = played(model, drafted, max_batch, drafts=True)
    assert tried == {(kind, place) for kind in range(7) for place in range(MAX_TURN_TOKENS)}
    for found, expected in zip(drafted, plain * 7, strict=True):
        assert found.tokens == expected.tokens
        for turn, other in zip(found.turns, expected.turns, strict=True):
            np.testing.assert_allclose(turn.logprobs, other.logprobs, atol=5e-5)
            assert turn.entropy == pytest.approx(other.entropy, abs=5e-5)
            assert turn.is_stopped == other.is_stopped
    assert 0 < engine.counts.accepted < engine.counts.drafted
    assert engine.counts.sampled == 7 * sum(len(turn) for one in plain for turn in one.tokens)


def test_drafted_sessions_equal_the_plain_loop(model, plain):
    drafted = [one.fork(0, drafts=dict(enumerate(one.tokens))) for one in plain[:8]]
    played(model, drafted, drafts=True)
    for one in drafted:
        assert_same(one.turns, alone(model, one))


class Second:
    """Takes the second likeliest token after one that is even: it looks at what came before."""

    def __init__(self, key):
        self.key = key

    @staticmethod
    def draw(sources, logits, before, temperature):
        seconds = np.argsort(logits, axis=1)[:, -2].tolist()
        return [
            second if tokens and tokens[-1] % 2 == 0 else None
            for second, tokens in zip(seconds, before, strict=True)
        ]


def test_no_draft_changes_a_token_that_a_source_draws(model):
    def sessions(**changes):
        noises = [[Second(NoiseKey(1, 2, row, turn)) for turn in range(4)] for row in range(50)]
        return [
            Walk(one.row, one.texts, noises=noises[one.row], **changes) for one in walks(50, seed=9)
        ]

    plain, drafted, rng = sessions(), sessions(), np.random.default_rng(3)
    played(model, plain)
    keyed = walks(50, seed=9)
    played(model, keyed)
    assert [one.tokens for one in plain] != [one.tokens for one in keyed]
    for one, other in zip(drafted, plain, strict=True):
        one.drafts = {
            index: guesses(list(turn), int(rng.integers(len(turn))), rng)[int(rng.integers(7))]
            for index, turn in enumerate(other.tokens)
        }
    engine = played(model, drafted, 16, drafts=True)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert engine.counts.accepted > 50


def test_a_draft_that_comes_true_takes_one_pass_a_turn(model, plain):
    drafted = [one.fork(0, drafts=dict(enumerate(one.tokens))) for one in plain[:8]]
    engine = played(model, drafted, drafts=True)
    counts = engine.counts
    assert counts.accepted == counts.drafted == counts.sampled
    assert counts.passes == max(len(one.turns) for one in drafted)


def test_a_long_draft_is_verified_in_pieces(policy):
    texts = [[200, 300, 400]]
    options = {"stop": frozenset(), "max_turn_tokens": 40}
    plain = Walk(0, texts)
    played(policy.model, [plain], **options)
    drafted = plain.fork(0, drafts={0: plain.tokens[0]})
    engine = played(policy.model, [drafted], drafts=True, **options)
    assert drafted.tokens == plain.tokens
    assert engine.counts.passes == 3  # 17 + 17 + 6 tokens
    assert engine.counts.accepted == 40


def test_drafts_are_asked_for_only_where_they_are_wanted(model):
    class Silent(Walk):
        def draft(self):
            raise AssertionError("asked")

    engine = played(model, [Silent(0, [[200, 300]])], drafts=False)
    assert engine.counts.drafted == 0


def test_a_draft_that_the_model_makes_nan_of_is_dropped(model, plain):
    sick = next(t for t in range(100, 600) if not any(t in one.start() for one in plain[:20]))
    kept = [one for one in plain if sick not in sum(map(list, [*one.texts, *one.tokens]), [])]
    head = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.get_output_embeddings().weight = head
    with torch.no_grad():
        model.get_input_embeddings().weight[sick] = torch.nan
    drafted = [
        one.fork(0, drafts={i: [*turn[:1], sick, *turn[1:]] for i, turn in enumerate(one.tokens)})
        for one in kept
    ]
    played(model, drafted, 16, drafts=True)
    assert len(kept) > 30
    assert not any(one.reasons for one in drafted)
    assert [one.tokens for one in drafted] == [one.tokens for one in kept]
