"""What a rollout offers besides playing: drafts, needs, counts, and ways to break the coupling."""

import dataclasses
import math

import pytest

from tests.trainer.conftest import Letters, Script, coin, scripted
from trainer.engines import Counts
from trainer.loop.train import train_tasks
from trainer.rollout import Rollout
from trainer.rollout.play import Limits
from trainer.setup import make_rollout
from trainer.tasks import Step
from trainer.tasks.facts import Facts, render_answer, render_search, retriever
from trainer.tasks.noisy import NoisyFacts
from twinstats.episodes import DIFFERENT, FRESH, KEEP, SHARED, Fork, Task
from twinstats.errors import UsageError
from twinstats.noise import NoiseKey, uniform
from twinstats.rows import null_disagreements

TASK = Task("t", {"right": "a.", "turns": 4})
B = (98, 98, 46)


# Drafts


class Drafting(Script):
    """A script that notes what each turn's draft was."""

    def __init__(self, choose):
        super().__init__(self._note)
        self._said, self.drafts = choose, []

    def _note(self, session, key, index):
        self.drafts.append(session.draft())
        return self._said(session, key, index)


@pytest.fixture
def drafting():
    rollout, _, _ = scripted(coin)
    (parent,) = rollout.play([TASK], 1, 1)
    rollout.engine = Drafting(lambda session, key, index: "zz.")
    return rollout, parent


def drafts(rollout, *forks):
    rollout.engine.drafts.clear()
    rollout.fork(forks)
    return rollout.engine.drafts


@pytest.mark.parametrize(
    ("options", "own", "later"),
    [
        ({}, True, True),
        ({"luck": FRESH}, True, False),
        ({"luck": 2}, True, False),
        ({"action": KEEP}, None, True),
        ({"action": B}, None, True),
        ({"action": B, "luck": FRESH}, None, False),
        ({"action": DIFFERENT}, False, True),
        ({"action": DIFFERENT, "luck": FRESH}, False, False),
    ],
)
def test_a_draft_is_what_the_parent_said_where_it_is_likely_again(drafting, options, own, later):
    rollout, parent = drafting
    said = [turn.action for turn in parent.turns]
    expected = [said[2] if later else (), said[3] if later else ()]
    if own is not None:
        expected.insert(0, said[1] if own else ())
    assert drafts(rollout, Fork(parent, 1, **options)) == expected


def test_a_draft_is_found_by_slot_and_factuals_have_none(drafting):
    rollout, parent = drafting
    rollout.play([TASK], 1, 2)
    assert rollout.engine.drafts == [()] * 4
    (twin,) = rollout.fork([Fork(parent, 0, B, FRESH)])
    assert drafts(rollout, Fork(twin, 0, B)) == [turn.action for turn in twin.turns[1:]]
    object.__setattr__(parent.turns[2], "slot", 77)
    said = [turn.action for turn in parent.turns]
    assert drafts(rollout, Fork(parent, 0, B)) == [said[1], (), said[3]]


# Needs


class Given:
    """A provider that notes for whom it was asked."""

    def __init__(self, need):
        self.need, self.asked = need, []

    def provide(self, episodes):
        self.asked.append(episodes)


def test_providers_are_made_when_they_are_first_asked():
    made = []
    rollout = Rollout(
        Letters(),
        Script(coin),
        lambda: None,
        seed=1,
        temperature=1.0,
        limits=Limits(max_context=9, max_turns=9),
        needs=lambda need: made.append(need) or Given(need),
    )
    assert rollout.providers == {}
    rollout.provide("value", ["a"])
    rollout.provide("value", ["b"])
    rollout.provide("entropy", ["c"])
    assert made == ["value", "entropy"] == list(rollout.providers)
    assert rollout.providers["value"].asked == [["a"], ["b"]]
    assert rollout.provider("value") is rollout.providers["value"]


def test_without_needs_every_one_is_refused_by_name():
    with pytest.raises(UsageError, match="cannot provide 'value'"):
        scripted(coin)[0].provide("value", [])


def test_a_run_provides_what_the_needs_have(policy, config):
    rollout = make_rollout(policy, config)
    episodes = rollout.play(train_tasks(config, 1), 1, 1)
    rollout.provide("first_entropy", episodes)
    assert all(len(one.info["first_entropy"]) == one.num_turns for one in episodes)
    with pytest.raises(UsageError, match="Unknown need 'fortune'"):
        rollout.provide("fortune", episodes)


# Counts


def test_counts_are_the_engines_and_the_plays_and_start_again():
    rollout, engine, _ = scripted(lambda session, key, index: "~." if index == 0 else "ab.")
    rollout.play([TASK], 2, 0)
    engine.counts = Counts(passes=3, encoded=50, reencoded=7, sampled=22, drafted=8, accepted=6)
    counts = rollout.take_counts()
    assert counts == {
        "rollout/passes_count": 3,
        "rollout/encoded_tokens": 50,
        "rollout/reencoded_tokens": 7,
        "rollout/reused_tokens": 0,
        "rollout/sampled_tokens": 22,
        "rollout/drafted_tokens": 8,
        "rollout/accepted_tokens": 6,
        "rollout/accepted_share": 0.75,
        "rollout/turns_count": 8,
        "rollout/unstable_turns_count": 2,  # "~" reads "ab", which is two ids
        "rollout/drift_count": 0,
        "rollout/overfull_count": 0,
    }
    again = rollout.take_counts()
    assert math.isnan(again.pop("rollout/accepted_share")) and not any(again.values())


def test_forks_are_counted_by_the_turns_that_were_sampled_for_them():
    rollout, engine, _ = scripted(coin)
    (parent,) = rollout.play([TASK], 1, 0)
    rollout.take_counts()
    engine.keys.clear()
    rollout.fork([Fork(parent, 1, alternative=k) for k in range(5)] + [Fork(parent, 2, KEEP)])
    counts = rollout.take_counts()
    assert counts["rollout/turns_count"] == sum(map(len, engine.keys))
    assert counts["rollout/drift_count"] == 0


def test_a_model_does_not_drift(policy, config):
    rollout = make_rollout(policy, config)
    episodes = rollout.play(train_tasks(config, 1), 2, 1)
    rollout.fork([Fork(e, t) for e in episodes for t in range(e.num_turns)])
    counts = rollout.take_counts()
    assert counts["rollout/drift_count"] == 0 < counts["rollout/unstable_turns_count"]
    assert counts["rollout/turns_count"] > 20


# Breaking the coupling on purpose


def retokenising(choose):
    rollout, engine, _ = scripted(choose)
    limits = Limits(max_context=1000, max_turns=9)
    other = Rollout(
        Letters(),
        engine,
        rollout._setting.environment,
        seed=3,
        temperature=1.0,
        limits=limits,
        retokenise=True,
    )
    return other, engine


def test_retokenised_forks_go_on_from_other_ids_and_that_is_seen():
    rollout, engine = retokenising(lambda session, key, index: "~." if index == 0 else "b.")
    (parent,) = rollout.play([TASK], 1, 0)
    assert rollout.take_counts()["rollout/drift_count"] == 0  # factuals are as they were sampled
    twins = rollout.fork([Fork(parent, 1, KEEP), Fork(parent, 0, KEEP)])
    assert [bytes(start).decode() for start in engine.starts[1:]] == [
        "?ab.<ab.>b.<b.>",
        "?ab.<ab.>",
    ]
    assert twins[0].turns[0] is parent.turns[0]
    assert rollout.take_counts()["rollout/drift_count"] == 2


def test_retokenising_text_that_reads_back_changes_nothing():
    rollout, _ = retokenising(coin)
    episodes = rollout.play([TASK], 3, 0)
    rollout.fork([Fork(e, t, KEEP) for e in episodes for t in range(4)])
    assert rollout.take_counts()["rollout/drift_count"] == 0 and rollout.exact_replay


@pytest.mark.parametrize("shares", [True, False])
def test_tools_may_have_luck_of_their_own(shares):
    rollout, engine, calls = scripted(lambda *_: "a.", is_random=True)
    rollout = Rollout(
        Letters(),
        engine,
        rollout._setting.environment,
        seed=3,
        temperature=1.0,
        limits=Limits(max_context=1000, max_turns=9),
        shares_tools=shares,
    )
    (parent,) = rollout.play([TASK], 1, 0)
    calls.clear()
    (null,) = rollout.fork([Fork(parent, 1, KEEP, SHARED)])
    own = "environment" if shares else "environment/1.0.shared.keep"
    assert [key.purpose for _, key in calls] == ["environment"] * 2 + [own] * 3
    assert {key.purpose for key in engine.keys[-1]} == {"sample"}
    shown = [turn.state for turn in null.turns]
    assert shown[:2] == [turn.state for turn in parent.turns[:2]]
    assert (shown == [turn.state for turn in parent.turns]) == shares
    (leaf,) = rollout.fork([Fork(null, 2, B, FRESH)])
    assert leaf.outcome is not None  # the prefix was replayed with its owners' luck


# A search that is random


def row(parts=1):
    question = "What is the currency of the country of Moundou?"
    return {"questions": [question] * parts, "golds": [["XAF"]] * parts}


SEARCH = render_search("currency of Chad")
KEYS = [NoiseKey(5, 0, 0, slot, purpose="environment") for slot in range(300)]


def searched(environment, key):
    environment.reset(row(), key)
    return environment.step(SEARCH, key)


def test_a_noisy_search_returns_the_runner_up_as_often_as_asked():
    best, second = retriever().hits("currency of Chad", 2).documents
    steps = [searched(NoisyFacts(probability=0.3), key) for key in KEYS]
    off = [step.info["is_runner_up"] for step in steps]
    assert off == [float(uniform(key, 0)) < 0.3 for key in KEYS] and 60 < sum(off) < 120
    for step, is_off in zip(steps, off, strict=True):
        assert step.info["document"] == (second if is_off else best).id
        assert (second if is_off else best).text in step.observation


def test_never_off_is_the_plain_task():
    plain, noisy = Facts(), NoisyFacts(probability=0.0)
    for environment in (plain, noisy):
        environment.reset(row(2), KEYS[0])
    texts = [SEARCH, SEARCH, SEARCH, render_answer("XAF")]
    for count, text in enumerate(texts):
        assert plain.slot(texts[:count]) == noisy.slot(texts[:count])
        expected, found = plain.step(text, KEYS[count]), noisy.step(text, KEYS[count])
        assert found.info.pop("is_runner_up") is False and found == expected


def test_what_ends_a_part_or_is_no_search_is_never_off():
    environment = NoisyFacts(probability=1.0)
    environment.reset(row(2), KEYS[0])
    steps = [
        environment.step(text, KEYS[0]) for text in (SEARCH, "hm", SEARCH, "<answer>XAF</answer>")
    ]
    assert [step.info["is_runner_up"] for step in steps] == [True, False, False, False]
    assert isinstance(steps[0], Step)
    with pytest.raises(ValueError, match="must be in 0..1, got 2"):
        NoisyFacts(probability=2)


@pytest.mark.parametrize("shares", [True, False])
def test_shared_luck_of_a_random_tool_makes_null_twins_exact(policy, config, shares):
    longer = dataclasses.replace(config.rollout, max_turn_tokens=20)  # room for a whole search
    plain = make_rollout(policy, dataclasses.replace(config, rollout=longer))
    rollout = Rollout(
        policy,
        plain.engine,
        lambda: NoisyFacts(probability=0.5),
        seed=5,
        temperature=1.0,
        limits=plain._setting.limits,
        shares_tools=shares,
    )
    search = tuple(policy.encode(SEARCH))
    episodes = rollout.play(train_tasks(config, 1), 12, 1)
    searching = rollout.fork([Fork(e, 0, search, FRESH) for e in episodes])
    nulls = rollout.fork([Fork(one, 0, KEEP) for one in searching if one.num_turns > 1])
    _, by_token, _ = null_disagreements(nulls)
    assert len(nulls) > 10 and (by_token == 0) == shares
