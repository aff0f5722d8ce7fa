"""Twins that must decide otherwise: the law of their turn is the policy's, without the factual's.

Played in a game of four words and turns of one or two, so that every turn can be counted.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from tests.trainer.conftest import coin, log_of, scripted
from tests.trainer.test_adopted_credit import GAME, TEMPERATURE, Truth, game
from tests.trainer.test_adopted_credit import model as model  # a fixture
from trainer.noise import different
from trainer.noise.different import DifferentNoise
from trainer.noise.sources import sample
from trainer.rollout.play import MOST_TRIES
from twinstats.episodes import DIFFERENT, FRESH, SHARED, Fork, Task
from twinstats.noise import LogitsError, NoiseKey

PROMPT = (3,)  # "?"
KEY = NoiseKey(1, 0, 0, 0, purpose="alternative")


@pytest.fixture(scope="module")
def truth(model):
    return Truth(model)


def noise_of(action, truth, key=KEY):
    """The noise of a turn that must not be `action`, with exact log-probabilities."""
    logprobs = tuple(
        math.log(truth.law((*PROMPT, *action[:place]))[token]) for place, token in enumerate(action)
    )
    return DifferentNoise(key=key, tokens=action, logprobs=logprobs)


def law_of(noise, truth, monkeypatch):
    """Every turn and its probability, by the logits that the noise would draw from."""
    seen = []
    monkeypatch.setattr(
        different, "sample", lambda logits, keys, positions: seen.append(logits[0]) or [0]
    )

    def law(before):
        plain = np.log(truth.law((*PROMPT, *before)))
        seen.clear()
        (drawn,) = noise.draw([noise], plain[None] * TEMPERATURE, [before], TEMPERATURE)
        changed = plain if drawn is None else seen[0]
        return np.exp(changed) / np.exp(changed).sum()

    found = {}
    for first, second in itertools.product(range(4), range(4)):
        turn = (first,) if first == 2 else (first, second)
        found[turn] = law(())[first] * (1 if first == 2 else law((first,))[second])
    return found


@pytest.mark.parametrize("number", range(13))
def test_every_other_turn_keeps_its_share(truth, monkeypatch, number):
    plain = dict(truth.turns(PROMPT))
    action = list(plain)[number]
    found = law_of(noise_of(action, truth), truth, monkeypatch)
    assert found.keys() == plain.keys() and found[action] == 0
    for turn, probability in plain.items():
        if turn != action:
            assert found[turn] == pytest.approx(probability / (1 - plain[action]), rel=1e-12)


def test_a_token_behind_which_nothing_else_is_likely_goes_where_the_turn_is_certain():
    noise = DifferentNoise(key=KEY, tokens=(0, 1, 2), logprobs=(-1.0, 0.0, -1e-300))
    before = [(), (0, 3), (0, 1, 2)]  # its prefix, no longer its prefix, past its end
    logits = np.array([[9.0, 0, 0, 0]] * 3)
    first, other, after = noise.draw([noise] * 3, logits, before, 1.0)
    assert first not in (0, None) and other is None and after is None


@pytest.fixture(scope="module")
def forked(model):
    """Of a parent many other decisions, by engines with and without sources."""

    def play(explains):
        rollout = game(model, 3)
        rollout.engine.explains = explains
        (parent,) = rollout.play([GAME], 1, 0)
        forks = [Fork(parent, 0, DIFFERENT, alternative=k) for k in range(600)]
        return parent, rollout.fork(forks)

    return {explains: play(explains) for explains in (True, False)}


@pytest.mark.parametrize("explains", [True, False])
def test_forks_have_that_law(truth, forked, explains):
    parent, twins = forked[explains]
    plain = dict(truth.turns(PROMPT))
    action = parent.turns[0].action
    drawn = [twin.turns[0].action for twin in twins]
    assert action not in drawn
    for turn, probability in plain.items():
        if turn != action:
            own = probability / (1 - plain[action])
            low, high = binom.interval(1 - 1e-6 / 12, len(drawn), own)
            assert low <= drawn.count(turn) <= high


def test_rejected_tries_are_paid(forked):
    for explains, (_, twins) in forked.items():
        decisions = [twin.sampled - sum(t.num_tokens for t in twin.turns[1:]) for twin in twins]
        paid = [twin.turns[0].num_tokens for twin in twins]
        first = {}
        for place, twin in enumerate(twins):  # the first with a decision has paid the tail
            first.setdefault(twin.turns[0].action, place)
        ours = [(decisions[place], paid[place]) for place in first.values()]
        assert all(cost >= own for cost, own in ours)
        assert (
            all(twin.sampled >= own for twin, own in zip(twins, paid, strict=True))
            and any(cost > own for cost, own in ours) != explains
        )


def test_rejection_draws_each_try_from_a_stream_of_its_own():
    rollout, engine, calls = scripted(lambda *_: "a.")
    (parent,) = rollout.play([Task("t", {"right": "a.", "turns": 2})], 1, 0)
    engine.explains = False
    said = iter(["a.", "a.", "a.", "bb.", "ccc."])
    engine._choose = lambda *_: next(said)
    engine.keys.clear()
    calls.clear()
    (twin,) = rollout.fork([Fork(parent, 0, DIFFERENT, alternative=2)])
    purposes = [(key.purpose, key.luck, key.turn) for keys in engine.keys for key in keys]
    assert purposes == [
        ("alternative", 3, 0),
        ("alternative~1", 3, 0),
        ("alternative~2", 3, 0),
        ("alternative~3", 3, 0),
        ("sample", 0, 10),
    ]
    assert engine.starts[1:] == [[ord("?")]] * 4
    assert [turn.action for turn in twin.turns] == [(98, 98, 46), (99, 99, 99, 46)]
    assert twin.sampled == 2 + 2 + 2 + 3 + 4
    assert [kind for kind, _ in calls] == ["reset", "step", "step"]  # no rejected turn was played


def test_a_decision_that_is_never_another_fails_after_64_tries():
    rollout, engine, _ = scripted(lambda *_: "a.")
    (parent,) = rollout.play([Task("t", {"right": "a.", "turns": 2})], 1, 0)
    engine.explains = False
    twin, other = rollout.fork([Fork(parent, 0, DIFFERENT), Fork(parent, 0, (98, 46))])
    assert (twin.outcome, twin.num_turns, twin.sampled) == (None, 0, 2 * MOST_TRIES)
    assert twin.info["reason"] == ("the turn was to differ, but came out as the parent's 64 times")
    assert other.outcome is not None


def test_where_the_parents_probabilities_are_unknown_it_is_drawn_again():
    rollout, engine, _ = scripted(coin)
    (parent,) = rollout.play([Task("t", {"right": "a.", "turns": 2})], 1, 0)
    (named,) = rollout.fork([Fork(parent, 0, (122, 46))])
    engine._choose = lambda *_: "z."
    (twin,) = rollout.fork([Fork(named, 0, DIFFERENT)])
    assert "came out as the parent's" in twin.info["reason"]


def test_a_certain_turn_has_no_other():
    rollout, engine, _ = scripted(lambda *_: "a.")
    (parent,) = rollout.play([Task("t", {"right": "a.", "turns": 1})], 1, 0)
    object.__setattr__(parent.turns[0], "logprob", 0.0)
    (twin,) = rollout.fork([Fork(parent, 0, DIFFERENT)])
    assert twin.info["reason"] == "turn 0 has probability 1: no other can be drawn"
    assert len(engine.keys) == 1


def test_twin_and_control_are_the_same_other_decision(model):
    rollout = game(model, 4)
    episodes = rollout.play([GAME], 40, 0)
    options = {"alternative": 1, "skip_equal": False}
    twins = rollout.fork([Fork(e, 0, DIFFERENT, SHARED, **options) for e in episodes])
    controls = rollout.fork([Fork(e, 0, DIFFERENT, FRESH, **options) for e in episodes])
    assert [t.turns[0].action for t in twins] == [c.turns[0].action for c in controls]
    assert [t.turns[1].action for t in twins] != [c.turns[1].action for c in controls]


def test_adopted_turns_know_what_it_takes_and_are_never_drawn_again(model, dice):
    away = game(model, 0, sampler=dice(3)).play([GAME], 40, 0)
    here = game(model, 9)
    episodes = here.adopt([log_of(one) for one in away], 1)
    twins = here.fork([Fork(one, 1, DIFFERENT, skip_equal=False) for one in episodes])
    for twin, episode in zip(twins, episodes, strict=True):
        assert len(episode.turns[1].info["logprobs"]) == episode.turns[1].num_tokens
        assert twin.turns[1].action != episode.turns[1].action
        assert twin.sampled == sum(turn.num_tokens for turn in twin.turns[1:])


def test_a_turn_than_which_nothing_else_can_be_drawn_fails_alone():
    """Its own logits say so, where its log-probability does not: the row is named, no other."""
    logits = torch.zeros(4, 4)
    logits[3, [0, 2, 3]] = -math.inf
    own = [DifferentNoise(key=KEY, tokens=(1,), logprobs=(p,)) for p in (-1.4, -1e-9)]
    with pytest.raises(LogitsError) as caught:
        sample(logits, [KEY, own[0], KEY, own[1]], [[]] * 4)
    assert caught.value.row == 3
    assert int(sample(logits[:2], [KEY, own[0]], [[]] * 2)[1]) != 1
