"""The reference engine against a plain loop: one session, the whole sequence at every token."""

import numpy as np
import pytest
import torch

from tests.trainer.walks import (
    MAX_TURN_TOKENS,
    STOP,
    alone,
    assert_same,
    engine_of,
    played,
    sharpened,
    walks,
)
from trainer.engines import batch
from trainer.engines.slots import SlotCache, Strip


@pytest.fixture
def model(policy):
    return sharpened(policy.model)


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


# Passes


def forks_of(factuals, count, seed=4):
    """Forks at random turns, in rows of their own from there on."""
    rng = np.random.default_rng(seed)
    chosen = [factuals[index] for index in rng.integers(len(factuals), size=count)]
    return [
        one.fork(int(rng.integers(len(one.turns))), row=100 + number)
        for number, one in enumerate(chosen)
    ]


def test_forks_of_a_step_need_no_more_passes_than_the_longest_of_them(model):
    def passes(chosen):
        engine, factuals = engine_of(model), walks(13)
        engine.run(factuals, temperature=1.0)
        engine.counts.take()
        forks = forks_of(factuals, 12)
        engine.run([forks[index] for index in chosen], temperature=1.0)
        return engine.counts.passes

    assert passes(range(12)) == max(passes([index]) for index in range(12))


def test_a_row_is_given_on_as_soon_as_it_is_free(model):
    engine = played(model, walks(13), max_batch=4)
    turns = [len(turn.tokens) for walk in walks(13) for turn in alone_of(model, walk)]
    assert engine.counts.sampled == sum(turns)
    # four rows, each busy until the queue is empty, and then as long as one session may take
    assert engine.counts.passes <= sum(turns) / 4 + 4 * MAX_TURN_TOKENS


def alone_of(model, walk):
    played(model, [walk])
    return walk.turns


# Rows without a law


def poisoned(model, *tokens):
    """The model, of whose input embeddings some are NaN; its output embeddings are not."""
    head = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.get_output_embeddings().weight = head
    with torch.no_grad():
        model.get_input_embeddings().weight[list(tokens)] = torch.nan
    return model


@pytest.mark.parametrize("max_batch", [1, 3, 64])
def test_a_session_without_logits_fails_and_the_others_have_their_tokens(model, max_batch):
    expected, sessions = walks(13), walks(13)
    played(model, expected)
    sick = next(t for t in range(100, 600) if not any(t in sum(s.tokens, ()) for s in expected))
    first, later = 3, next(one.row for one in expected if one.row > 3 and len(one.turns) > 2)
    sessions[first].texts[0] = [*sessions[first].texts[0], sick]
    sessions[later].texts[2] = [sick]
    for one in sessions:  # elsewhere it is not shown
        one.texts = [
            [t for t in text if t != sick or one.row in (first, later)] for text in one.texts
        ]
    played(poisoned(model, sick), sessions, max_batch)
    assert [one.row for one in sessions if one.reasons] == [first, later]
    assert all("NaN" in reason for one in sessions for reason in one.reasons)
    assert sessions[first].turns == []
    assert sessions[later].tokens == expected[later].tokens[:2]
    for found, other in zip(sessions, expected, strict=True):
        if not found.reasons:
            assert found.tokens == other.tokens


@pytest.mark.parametrize("width", [1, 4, 12])
def test_what_fills_rows_and_strips_harms_nobody(model, monkeypatch, width):
    monkeypatch.setattr(batch, "_best_width", lambda spans: width)
    poisoned(model, 0)
    factuals, others = walks(8, seed=8), walks(8, seed=9)
    engine = played(model, factuals, max_batch=7)
    forks = [one.fork(0, row=50 + one.row) for one in factuals]  # they start without a pass
    both = [one for pair in zip(forks, others, strict=True) for one in pair]
    engine.run(both, temperature=1.0)
    for one in both:
        assert not one.reasons
        assert_same(one.turns, alone(model, one))


def test_all_sessions_fail_where_all_weights_are_nan(model):
    sessions = walks(5)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(torch.nan)
    played(model, sessions, max_batch=2)
    assert [len(one.reasons) for one in sessions] == [1] * 5


# The cache, against one forward pass over each whole row


def fed(model, cache, rows, chunks, width=None):
    """The logits of each chunk, which goes through one pass in strips of a width."""
    strips = [
        Strip(row, cache.lengths[row] + begin, chunk[begin : begin + (width or len(chunk))])
        for row, chunk in zip(rows, chunks, strict=True)
        for begin in range(0, len(chunk), width or len(chunk))
    ]
    ids, positions, visible = cache.begin(strips)
    logits = model(
        input_ids=ids, attention_mask=visible, position_ids=positions, cache=cache, use_cache=True
    ).logits
    found = {row: [] for row in rows}
    for number, strip in enumerate(strips):
        found[strip.slot].append(logits[number, : len(strip.tokens)])
        cache.lengths[strip.slot] += len(strip.tokens)
    return [torch.cat(found[row]) for row in rows]


@torch.inference_mode()
def test_a_slot_cache_equals_whole_rows_through_reuse_growth_and_compaction(model):
    rng = np.random.default_rng(1)
    text = {name: rng.integers(0, 600, 160).tolist() for name in "abcd"}
    whole = {name: model(torch.tensor([ids])).logits[0] for name, ids in text.items()}
    cache = SlotCache(model.config.num_hidden_layers, 3)

    def check(rows, spans, width=None):
        found = fed(model, cache, rows, [text[name][b:e] for name, b, e in spans], width)
        for logits, (name, begin, end) in zip(found, spans, strict=True):
            torch.testing.assert_close(logits, whole[name][begin:end], atol=1e-4, rtol=1e-4)

    check([0, 1, 2], [("a", 0, 5), ("b", 0, 1), ("c", 0, 30)])
    check([2, 0], [("c", 30, 31), ("a", 5, 25)])  # some rows, another order
    check([1], [("b", 1, 90)])  # beyond the first buffer
    cache.clear(2)
    check([0, 1, 2], [("a", 25, 26), ("b", 90, 91), ("d", 0, 70)])  # a slot for another episode
    cache.keep([2, 0])
    check([0, 1], [("d", 70, 160), ("a", 26, 29)], width=7)  # strips of one slot in one pass
    check([1], [("a", 29, 60)], width=1)
    check([1], [("a", 60, 150)], width=32)
    assert cache.lengths == [160, 150]
