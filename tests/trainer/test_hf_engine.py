"""The reference engine against a plain loop: one session, the whole sequence at every token."""

import numpy as np
import pytest
import torch

from trainer.engines.hf import HfEngine
from trainer.engines.slots import SlotCache
from twinstats.noise import NoiseKey, sample

STOP = frozenset(range(100))  # one token in six ends a turn
MAX_TURN_TOKENS = 7


@pytest.fixture
def model(policy):
    """A random model whose distributions are far from flat, so that a wrong cache shows."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.ndim == 2:
                weight.mul_(8)
        policy.model.get_input_embeddings().weight.mul_(3)
    return policy.model


class Walk:
    """A session of given texts: `texts[0]` first, then one after each turn until none is left."""

    def __init__(self, row, texts):
        self.row, self.texts = row, texts
        self.turns = []

    def start(self):
        return list(self.texts[0])

    def key(self):
        return NoiseKey(1, 2, self.row, len(self.turns))

    def draft(self):
        return ()

    def fail(self, reason):
        raise AssertionError(reason)

    def advance(self, turn):
        self.turns.append(turn)
        return list(self.texts[len(self.turns)]) if len(self.turns) < len(self.texts) else None


def walks(count, seed=0):
    """Sessions of 1 to 4 turns; what is shown between them has 0 to 12 tokens."""
    rng = np.random.default_rng(seed)
    return [
        Walk(
            row,
            [rng.integers(100, 600, 1 + rng.integers(12)).tolist()]
            + [rng.integers(100, 600, rng.integers(13)).tolist() for _ in range(rng.integers(4))],
        )
        for row in range(count)
    ]


@torch.inference_mode()
def alone(model, walk, temperature=1.0):
    """The turns of a session by the plain loop: (tokens, logprob, entropy, stopped)."""
    ids, turns = list(walk.texts[0]), []
    for turn in range(len(walk.texts)):
        tokens, logprob, entropy = [], 0.0, 0.0
        while len(tokens) < MAX_TURN_TOKENS and not (tokens and tokens[-1] in STOP):
            logits = model(torch.tensor([ids])).logits[:, -1]
            key = NoiseKey(1, 2, walk.row, turn)
            token = int(sample(logits.numpy(), [key], [len(tokens)], temperature)[0])
            law = torch.log_softmax(logits[0].double() / (temperature or 1.0), -1)
            logprob += float(law[token])
            entropy -= float((law.exp() * law).sum())
            tokens.append(token)
            ids.append(token)
        turns.append((tuple(tokens), logprob, entropy / len(tokens), tokens[-1] in STOP))
        ids += walk.texts[turn + 1] if turn + 1 < len(walk.texts) else []
    return turns


def played(model, sessions, max_batch, temperature=1.0):
    engine = HfEngine(model, stop=STOP, max_turn_tokens=MAX_TURN_TOKENS, max_batch=max_batch)
    engine.run(sessions, temperature=temperature)
    return engine


def assert_same(turns, expected):
    assert [turn.tokens for turn in turns] == [tokens for tokens, *_ in expected]
    assert [turn.is_stopped for turn in turns] == [stopped for *_, stopped in expected]
    found = [(turn.logprob, turn.entropy) for turn in turns]
    np.testing.assert_allclose(found, [(p, h) for _, p, h, _ in expected], atol=5e-5)


@pytest.mark.parametrize("max_batch", [1, 2, 3, 8, 64])
def test_every_session_equals_the_plain_loop_whatever_the_batch(model, max_batch):
    sessions = walks(13)
    engine = played(model, sessions, max_batch)
    for session in sessions:
        assert_same(session.turns, alone(model, session))
    fed = sum(
        sum(map(len, session.texts)) + sum(len(turn.tokens) for turn in session.turns) - 1
        for session in sessions
    )
    assert engine.counts.encoded == fed  # each token once, and the last of each session never


def test_the_sessions_exercise_what_they_are_for(model):
    sessions = walks(13)
    played(model, sessions, 3)
    turns = [turn for session in sessions for turn in session.turns]
    assert {len(session.turns) for session in sessions} == {1, 2, 3, 4}
    assert {turn.is_stopped for turn in turns} == {True, False}
    assert min(len(turn.tokens) for turn in turns) == 1
    assert any(not text for session in sessions for text in session.texts[1:])
    # far from flat: a distribution over 600 tokens could have log 600 = 6.4 nats
    assert np.mean([turn.entropy for turn in turns]) < 4


def test_order_and_batch_mates_change_no_token(model):
    sessions = walks(13)
    played(model, sessions, 4)
    expected = {session.row: [turn.tokens for turn in session.turns] for session in sessions}
    for order in (list(range(13))[::-1], [5], [12, 0, 7], np.random.default_rng(3).permutation(13)):
        chosen = [walks(13)[index] for index in order]
        played(model, chosen, 4)
        for session in chosen:
            assert [turn.tokens for turn in session.turns] == expected[session.row]


def test_greedy_equals_the_plain_loop(model):
    sessions = walks(6)
    played(model, sessions, 4, temperature=0.0)
    for session in sessions:
        assert_same(session.turns, alone(model, session, 0.0))


def test_logprobs_are_those_of_the_sampling_temperature(model):
    sessions = walks(4)
    played(model, sessions, 4, temperature=0.7)
    for session in sessions:
        assert_same(session.turns, alone(model, session, 0.7))


def test_a_turn_ends_with_a_stop_token_or_at_the_limit_and_nowhere_else(model):
    sessions = walks(13)
    played(model, sessions, 5)
    for turn in (turn for session in sessions for turn in session.turns):
        assert not any(token in STOP for token in turn.tokens[:-1])
        assert turn.is_stopped == (turn.tokens[-1] in STOP)
        assert turn.is_stopped or len(turn.tokens) == MAX_TURN_TOKENS


def test_no_session_is_no_work(model):
    assert played(model, [], 3).counts.encoded == 0


def test_new_weights_are_used_at_the_next_call(model):
    before, after = walks(3), walks(3)
    played(model, before, 3)
    with torch.no_grad():
        model.get_input_embeddings().weight.neg_()
    played(model, after, 3)
    assert [s.turns[0].tokens for s in before] != [s.turns[0].tokens for s in after]
    assert_same(after[0].turns, alone(model, after[0]))


# The cache, against one forward pass over each whole row


def fed(model, cache, rows, chunks):
    counts = torch.tensor([len(chunk) for chunk in chunks])
    ids = torch.zeros(len(rows), int(counts.max()), dtype=torch.long)
    for number, chunk in enumerate(chunks):
        ids[number, : len(chunk)] = torch.tensor(chunk)
    positions, visible = cache.begin(torch.tensor(rows), counts)
    logits = model(
        input_ids=ids, attention_mask=visible, position_ids=positions, cache=cache, use_cache=True
    ).logits
    cache.end(torch.tensor(rows), counts)
    return [logits[number, : len(chunk)] for number, chunk in enumerate(chunks)]


@torch.inference_mode()
def test_a_slot_cache_equals_whole_rows_through_reuse_growth_and_compaction(model):
    rng = np.random.default_rng(1)
    text = {name: rng.integers(0, 600, 160).tolist() for name in "abcd"}
    whole = {name: model(torch.tensor([ids])).logits[0] for name, ids in text.items()}
    cache = SlotCache(model.config.num_hidden_layers, 3)

    def check(rows, spans):
        found = fed(model, cache, rows, [text[name][b:e] for name, b, e in spans])
        for logits, (name, begin, end) in zip(found, spans, strict=True):
            torch.testing.assert_close(logits, whole[name][begin:end], atol=1e-4, rtol=1e-4)

    check([0, 1, 2], [("a", 0, 5), ("b", 0, 1), ("c", 0, 30)])
    check([2, 0], [("c", 30, 31), ("a", 5, 25)])  # some rows, another order
    check([1], [("b", 1, 90)])  # beyond the first buffer
    cache.clear(2)
    check([0, 1, 2], [("a", 25, 26), ("b", 90, 91), ("d", 0, 70)])  # a slot for another episode
    cache.keep(torch.tensor([2, 0]))
    check([0, 1], [("d", 70, 160), ("a", 26, 29)])
    check([1], [("a", 29, 150)])
    assert cache.lengths.tolist() == [160, 150]
