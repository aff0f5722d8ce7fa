"""Rollouts of language models: rows A17, A18, A23, A26, D16 and D18 of the case list.

What these rows say of losses and samplers is in `test_training`, `test_advantages`, `test_noise`
and `test_replay`.
"""

import dataclasses

import pytest

from tests.trainer.conftest import Script, coin, scripted
from tests.trainer.test_adopted_credit import GAME, STOP, game
from tests.trainer.test_adopted_credit import model as model  # a fixture
from trainer.engines import SampledTurn
from trainer.engines.hf import HfEngine
from trainer.loss import episode_ids
from twinstats.episodes import DIFFERENT, FRESH, KEEP, RESAMPLE, SHARED, Fork, Task
from twinstats.rows import episode_rows, null_disagreements

TASK = Task("t", {"right": "a.", "turns": 3})


class Checked(Script):
    """A script that notes all ids that a session was given, in order."""

    def run(self, sessions, *, temperature):
        self.given = []
        for session in sessions:
            plain, ids = session.advance, list(session.start())

            def advance(turn, plain=plain, ids=ids):
                following = plain(turn)
                ids += [*turn.tokens, *(following or [])]
                return following

            session.advance = advance
            self.given.append(ids)
        super().run(sessions, temperature=temperature)


def test_a17_what_was_given_is_what_is_learned_and_other_ids_are_counted():
    rollout, _, _ = scripted(coin)
    rollout.engine = Checked(lambda session, key, index: "~~." if index else "ab~.")
    (parent,) = rollout.play([TASK], 1, 0)
    (twin,) = rollout.fork([Fork(parent, 1, (126, 46))])
    assert rollout.engine.given == [episode_ids(twin)]
    assert episode_ids(twin)[: len("?ab~.<abab.>")] == episode_ids(parent)[: len("?ab~.<abab.>")]
    counts = rollout.take_counts()
    assert counts["rollout/unstable_turns_count"] == 4 == counts["rollout/turns_count"]
    assert counts["rollout/drift_count"] == 0


def test_a17_drift_is_counted():
    rollout, _, _ = scripted(coin)
    (parent,) = rollout.play([TASK], 1, 0)
    rollout._setting = dataclasses.replace(rollout._setting, retokenise=True)
    (named,) = rollout.fork([Fork(parent, 0, (126, 46))])
    assert named.turns[0].action == (126, 46)
    assert rollout.take_counts()["rollout/drift_count"] == 1


@pytest.mark.parametrize("count", [0, 4, 6])
def test_a18_log_probabilities_that_are_too_many_or_few_raise_and_name_the_place(count):
    class Short(Script):
        def run(self, sessions, *, temperature):
            sessions[0].start()
            turn = SampledTurn(
                tokens=(97,) * 5, logprobs=(-1.0,) * count, entropy=None, is_stopped=True
            )
            sessions[0].advance(turn)

    rollout, _, _ = scripted(coin)
    rollout.engine = Short(coin)
    message = f"Episode 2/0, turn 0: {count} log-probabilities for 5 tokens"
    with pytest.raises(ValueError, match=message):
        rollout.play([TASK], 1, 2)


def test_a18_log_probabilities_are_kept_token_by_token():
    rollout, _, _ = scripted(coin)
    (parent,) = rollout.play([TASK], 1, 0)
    (null,) = rollout.fork([Fork(parent, 1, KEEP)])
    for episode in (parent, null):
        for turn in episode.turns:
            assert len(turn.info["logprobs"]) == turn.num_tokens
            assert turn.logprob == pytest.approx(sum(turn.info["logprobs"]), rel=1e-15)


def test_a23_a_stop_in_what_is_shown_ends_nothing():
    rollout, engine, _ = scripted(lambda *_: "a", drift=lambda turn, text: text and "<.>")
    (episode,) = rollout.play([TASK], 1, 0)
    assert [turn.action for turn in episode.turns] == [(97,)] * 3
    assert not engine.ends(episode.turns[0].action) and engine.ends(
        episode.turns[1].info["shown"][:2]
    )
    (cut,) = scripted(lambda *_: "a", max_turns=2)[0].play([TASK], 1, 0)
    assert (cut.terminated, cut.truncated) == (False, True)


def test_a26_ended_cut_and_failed_are_told_apart_and_only_failed_have_no_outcome():
    def broken(turn, text):
        if failing:
            raise OSError("gone")
        return text

    failing = []
    rollout, _, _ = scripted(lambda *_: "a.", max_turns=3, drift=broken)
    ended, cut = rollout.play([TASK, Task("long", {"right": "a.", "turns": 4})], 1, 0)
    failing.append(True)
    (failed,) = rollout.fork([Fork(cut, 0, (98, 46))])
    rows = episode_rows([ended, cut, failed])
    told = [(row["terminated"], row["truncated"], row["outcome"]) for row in rows]
    assert told == [
        (True, False, pytest.approx(1)),
        (False, True, pytest.approx(0.75)),
        (False, False, None),
    ]
    assert [row["reason"] for row in rows] == [
        None,
        None,
        "a tool failed: `step` raised OSError: gone",
    ]


KINDS = [
    {},
    {"alternative": 1},
    {"luck": FRESH},
    {"luck": 1},
    {"action": KEEP},
    {"action": DIFFERENT},
    {"action": DIFFERENT, "luck": FRESH},
    {"coupling": "maximal", "alternative": 2},
    {"action": KEEP, "coupling": "maximal"},
]


def in_batches(model, size):
    rollout = game(model, 6)
    rollout.engine = HfEngine(model, stop=frozenset({STOP}), max_turn_tokens=2, max_batch=size)
    return rollout


@pytest.mark.parametrize("explains", [True, False])
def test_d16_a_fork_does_not_depend_on_its_batch(model, explains):
    def twins(size, order):
        rollout = in_batches(model, size)
        episodes = rollout.play([GAME], 4, 0)
        rollout.engine.explains = explains
        kinds = [kind for kind in KINDS if explains or "coupling" not in kind]
        forks = [Fork(e, t, **kind) for e in episodes for t in range(2) for kind in kinds]
        played = rollout.fork(forks[::order])[::order]
        return [[turn.action for turn in twin.turns] for twin in played], rollout.exact_replay

    first, is_exact = twins(1, 1)
    assert len(first) > 50 and is_exact
    for size, order in ((2, 1), (8, -1), (9, 1), (64, -1)):
        assert twins(size, order) == (first, True)


def test_d16_costs_do_not_depend_on_the_batch_either(model):
    def costs(size):
        rollout = in_batches(model, size)
        episodes = rollout.play([GAME], 3, 0)
        forks = [Fork(e, t, alternative=k) for k in range(6) for e in episodes for t in range(2)]
        return [twin.sampled for twin in rollout.fork(forks)]

    assert costs(1) == costs(5) == costs(64)


def test_d18_forks_of_every_kind_keep_the_prefix_as_it_was_sampled(model):
    rollout = game(model, 7)
    episodes = rollout.play([GAME], 6, 0)
    for kind in KINDS:
        twins = rollout.fork([Fork(e, 1, **kind) for e in episodes])
        for twin in twins:
            assert twin.outcome is not None
            assert twin.turns[0] is twin.fork.episode.turns[0]
            assert twin.turns[1].info["shown"] == twin.fork.episode.turns[1].info["shown"]
    nulls = [Fork(e, 0, KEEP, SHARED) for e in episodes]
    assert null_disagreements(rollout.fork(nulls)) == (6, 0, 0)
    assert rollout.fork([Fork(episodes[0], 1, RESAMPLE)])[0].owner(0) is episodes[0]
