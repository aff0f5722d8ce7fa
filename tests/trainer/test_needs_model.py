"""Needs that the policy computes from given tokens: by hand, and against one episode at a time."""

import dataclasses
import math

import numpy as np
import pytest

from tests.trainer.conftest import Parity
from tests.trainer.needs_worlds import (
    Bag,
    LetterPolicy,
    Quiz,
    episode,
    failed,
    gain_to,
    letters,
    naive_law,
    setup_of,
)
from trainer.needs import check, make
from trainer.needs.entropy import FIRST_TOKENS
from trainer.needs.hindsight import teacher_gap
from trainer.policy import passes
from trainer.policy.passes import Passage, actions, entropies, hidden_states, logprobs
from trainer.setup import make_rollout
from trainer.tasks.facts import Facts
from trainer.tasks.rows import task_rows
from twinstats.episodes import Fork, Task
from twinstats.errors import UsageError

EVEN = -math.log(128)
NEEDS = ("teacher_gap", "gold_logprob", "hindsight_logprob", "first_entropy")


def filled(need, policy, config, *episodes, environment=Quiz):
    make(need, setup_of(policy, config, environment)).provide(episodes)
    return [one.info[need] for one in episodes]


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@pytest.fixture
def played(policy, config, parity):
    """Factuals and forks of facts, of two parts, by the tiny random policy."""
    own = dataclasses.replace(config, task=dataclasses.replace(config.task, parts=2))
    rollout = make_rollout(policy, own)
    rows = task_rows("train", 2, key="needs")[:2]
    factuals = rollout.play([Task(row.id, row.info) for row in rows], 2, 1)
    forks = rollout.fork([Fork(one, 1) for one in factuals[:2]])
    return [*factuals, *forks]


# By hand


def test_the_gap_is_what_the_answers_add_to_each_token(config):
    """One X before the episode raises x from 1/128 to 1/2 and lowers the others to 1/254."""
    policy = LetterPolicy(Bag({("X", "x"): gain_to(0.5)}))
    (gaps,) = filled("teacher_gap", policy, config, episode(("?", "xa"), ("!", "b")))
    up, down = math.log(64), math.log(128 / 254)
    assert [len(gap) for gap in gaps] == [2, 1]
    close(np.concatenate(gaps), [up, down, down])


def test_the_gap_is_taken_at_the_temperature_of_sampling(config):
    hot = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, temperature=2.0))
    policy = LetterPolicy(Bag({("X", "x"): 2 * gain_to(0.5)}))
    (gaps,) = filled("teacher_gap", policy, hot, episode(("?", "x")))
    close(gaps[0], [math.log(64)])


def test_gold_is_the_mean_over_the_answers_tokens_in_each_state(config):
    """Each y that was shown doubles x's odds; y itself stays even with the others."""
    policy = LetterPolicy(Bag({("y", "x"): math.log(2)}))
    one = episode(("?", "a"), ("y", "b"), golds=(("xz",),), end="yy")
    (found,) = filled("gold_logprob", policy, config, one)
    expected = [
        (math.log(2**seen / (127 + 2**seen)) + math.log(1 / (127 + 2**seen))) / 2
        for seen in (0, 1, 3)
    ]
    close(found, expected)


def test_what_opens_an_answer_is_not_counted(config):
    policy = LetterPolicy(Bag({("?", "="): 50.0, ("=", "="): -50.0}))
    (found,) = filled("gold_logprob", policy, config, episode(("?", "a")))
    close(found, [EVEN, EVEN])


def test_the_likeliest_of_several_right_answers_counts(config):
    policy = LetterPolicy(Bag({("y", "x"): gain_to(0.5)}))
    one = episode(("y", "a"), golds=(("z", "x", "zz"),))
    (found,) = filled("gold_logprob", policy, config, one)
    close(found, [math.log(0.5)] * 2)


def test_gold_is_that_of_the_part_in_play_and_at_the_end_the_last(config):
    policy = LetterPolicy(Bag({("?", "x"): gain_to(0.5)}))
    one = episode(("?", "a"), ("", "b"), golds=(("x",), ("z",)))
    (found,) = filled("gold_logprob", policy, config, one)
    close(found, [math.log(1 / 2), math.log(1 / 254), math.log(1 / 254)])


def test_hindsight_is_the_mean_over_a_turns_tokens_given_the_ending(config):
    policy = LetterPolicy(Bag({("E", "x"): gain_to(0.5)}))
    won = episode(("?", "xa"), ("!", "x"), rewards=[0.0, 1.0])
    lost = episode(("?", "xa"), ("!", "x"))
    found = filled("hindsight_logprob", policy, config, won, lost)
    close(found[0], [(math.log(1 / 2) + math.log(1 / 254)) / 2, math.log(1 / 2)])
    close(found[1], [EVEN, EVEN])


def test_entropy_is_a_share_of_that_of_an_even_choice(config):
    """After one q a letter has probability 1/2 and 127 have 1/254 each."""
    policy = LetterPolicy(Bag({("q", "r"): gain_to(0.5)}))
    (found,) = filled("first_entropy", policy, config, episode(("?", "aq"), ("", "b")))
    half = (0.5 * math.log(2) + 0.5 * math.log(254)) / math.log(128)
    close(found, [1.0, half])


def test_only_the_first_tokens_of_a_turn_count(config):
    policy = LetterPolicy(Bag({("q", "r"): 90.0}))
    even, after = "a" * (FIRST_TOKENS - 1) + "q", "r" * 9
    found = filled(
        "first_entropy", policy, config, episode(("?", even + after)), episode(("?", "q" + after))
    )
    close(found[0], [1.0])
    close(found[1], [1 / 10])


# Against one episode at a time


def contexts(one):
    """What stood before each turn of an episode, and before its end but for what was shown."""
    ids = []
    for turn in one.turns:
        ids += turn.info["shown"]
        yield list(ids)
        ids += turn.action
    yield ids


def chosen(law, before, tokens):
    return np.array([law[before + k - 1, token] for k, token in enumerate(tokens)])


def naive_gap(policy, one, temperature):
    told = policy.encode(Facts().privileged(one.task.info))
    gaps = []
    for turn, context in zip(one.turns, contexts(one), strict=False):
        plain, informed = [*context, *turn.action], [*told, *context, *turn.action]
        student = chosen(naive_law(policy, plain, temperature), len(context), turn.action)
        before = len(told) + len(context)
        gaps.append(chosen(naive_law(policy, informed, temperature), before, turn.action) - student)
    return gaps


def naive_gold(policy, one, temperature):
    states = list(contexts(one))
    states[-1] = states[-1] + policy.encode(one.final_state)
    parts = [turn.info["step"]["part"] for turn in one.turns]
    found = []
    for context, part in zip(states, [*parts, parts[-1]], strict=True):
        (right,) = one.task.info["golds"][part]
        before, gold = [*context, *policy.encode("<answer>")], policy.encode(right)
        law = naive_law(policy, [*before, *gold], temperature)
        found.append(chosen(law, len(before), gold).mean())
    return found


def naive_hindsight(policy, one, temperature):
    told = policy.encode(Facts().ending(one.task.info, [turn.info["step"] for turn in one.turns]))
    found = []
    for turn, context in zip(one.turns, contexts(one), strict=False):
        law = naive_law(policy, [*told, *context, *turn.action], temperature)
        found.append(chosen(law, len(told) + len(context), turn.action).mean())
    return found


def naive_entropy(policy, one, temperature):
    found = []
    for turn, context in zip(one.turns, contexts(one), strict=False):
        law = naive_law(policy, [*context, *turn.action], temperature)[len(context) - 1 : -1]
        found.append(-(np.exp(law) * law).sum(-1).mean() / math.log(law.shape[1]))
    return found


NAIVE = dict(zip(NEEDS, (naive_gap, naive_gold, naive_hindsight, naive_entropy), strict=True))


def test_each_need_is_that_of_one_episode_alone(played, policy, config, monkeypatch):
    """Whatever goes through the model together."""
    hot = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, temperature=0.7))
    for need in NEEDS:
        expected = [NAIVE[need](policy, one, 0.7) for one in played]
        for positions in (1, 300, 8192):
            monkeypatch.setattr(passes, "_POSITIONS", positions)
            found = filled(need, policy, hot, *played, environment=Parity)
            for own, wanted in zip(found, expected, strict=True):
                assert len(own) == len(wanted)
                close(np.hstack(own), np.hstack(wanted))
    gaps = [np.abs(turn).max() for one in played for turn in one.info["teacher_gap"]]
    assert min(gaps) > 1e-4  # nothing was compared with nothing


# Failed episodes, and what cannot be provided


@pytest.mark.parametrize("need", NEEDS)
def test_a_failed_episode_has_nulls_of_the_right_shape(config, need):
    policy = LetterPolicy(Bag())
    lost, nothing, fine = failed(("?", "ab"), ("!", "c")), failed(), episode(("?", "a"))
    found = filled(need, policy, config, lost, fine, nothing)
    more = need == "gold_logprob"
    assert [len(one) for one in found] == [2 + more, 1 + more, more]
    assert np.isnan(np.concatenate([np.atleast_1d(turn) for turn in found[0]])).all()
    assert np.isfinite(np.concatenate([np.atleast_1d(turn) for turn in found[1]])).all()
    if need == "teacher_gap":
        assert [turn.shape for turn in found[0]] == [(2,), (1,)]


@pytest.mark.parametrize("need", NEEDS)
def test_nothing_is_asked_of_the_model_where_nothing_was_played(config, need):
    policy = LetterPolicy(Bag())
    assert filled(need, policy, config) == []
    filled(need, policy, config, failed(("?", "a")))
    assert policy.model.rows == []


@pytest.mark.parametrize("need", ["teacher_gap", "gold_logprob", "hindsight_logprob"])
def test_a_task_that_does_not_tell_its_answers_is_refused(config, need):
    sentence = f"Method 'rloo' needs '{need}', which is not to be had of task 'facts'"
    with pytest.raises(UsageError, match=sentence):
        make(need, setup_of(LetterPolicy(Bag()), config, environment=object))
    with pytest.raises(UsageError, match=sentence):
        check([need], config, object)
    check([need], config, Quiz)


def test_an_empty_right_answer_is_refused(config):
    with pytest.raises(UsageError, match="Task 'quiz' has an empty right answer"):
        filled("gold_logprob", LetterPolicy(Bag()), config, episode(("?", "a"), golds=(("",),)))


# What facts tells


def told_row():
    asked = [f"What is the {relation} of Chad?" for relation in ("currency", "capital")]
    return {"questions": asked, "golds": [["XAF"], ["N'Djamena"]]}


def test_facts_tells_every_question_with_its_answer():
    assert Facts().privileged(told_row()) == (
        "<question>What is the currency of Chad?</question>"
        "<information>XAF is the currency of Chad</information>"
        "<question>What is the capital of Chad?</question>"
        "<information>N'Djamena is the capital of Chad</information>"
    )


def test_facts_answers_the_question_in_play():
    row, search, answer = told_row(), "<search>Chad</search>", "<answer>XAF</answer>"
    first, second = ("<answer>", "XAF"), ("<answer>", "N'Djamena")
    for history, right in [
        ([], first),
        ([search, search], first),
        ([search, search, search], second),  # out of turns
        ([answer], second),
        ([answer, search], second),
        ([answer, answer], second),  # nothing is asked any more
    ]:
        assert Facts().answers(row, history) == [right]


def test_facts_tells_how_an_episode_ended():
    facts, row = Facts(), told_row()
    facts.reset(row)
    texts = ["<search>Chad</search>", "<answer>xaf</answer>", "a", "b"]
    steps = [facts.step(text).info for text in texts]
    first = (
        "<question>What is the currency of Chad?</question><answer>xaf</answer>"
        "<information>right</information>"
    )
    assert facts.ending(row, steps) == first  # cut in its second part
    steps.append(facts.step("c").info)
    assert facts.ending(row, steps) == first + (
        "<question>What is the capital of Chad?</question><answer></answer>"
        "<information>wrong</information>"
    )


# Passes


def test_no_pass_is_larger_than_its_bound(config, monkeypatch):
    monkeypatch.setattr(passes, "_POSITIONS", 12)
    policy = LetterPolicy(Bag())
    texts = ["ab", "abcdefghijklmnop", "abc", "a", "abcd", "abcd", "ab"]
    found = hidden_states(policy, [Passage(letters(text), [len(text)]) for text in texts])
    assert [int(states.sum()) for states in found] == [len(text) for text in texts]
    assert policy.model.rows == [(4, 3), (2, 4), (1, 16)]


def test_a_passage_asks_for_the_sampled_tokens_behind_what_is_put_before():
    one = episode(("?", "ab"), ("!!", "c"))
    assert actions(one) == Passage(list(letters("?ab!!c")), [1, 2, 5])
    assert actions(one, letters("XY")) == Passage(list(letters("XY?ab!!c")), [3, 4, 7])


def test_passes_leave_no_gradient_and_no_dropout_behind(policy):
    policy.model.train()
    passage = [Passage([3, 5, 9], [1, 2])]
    (values,) = logprobs(policy, passage, temperature=1.0)
    (spread,) = entropies(policy, passage, temperature=1.0)
    assert values.dtype == spread.dtype == np.float64
    assert not policy.model.training
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_a_need_reads_the_weights_of_now(config):
    policy = LetterPolicy(Bag())
    provider, one = teacher_gap(setup_of(policy, config)), episode(("?", "x"))
    provider.provide([one])
    close(one.info["teacher_gap"][0], [0.0])
    policy.model.output.weight.data[ord("x"), ord("X")] = gain_to(0.5)
    provider.provide([one])
    close(one.info["teacher_gap"][0], [math.log(64)])
