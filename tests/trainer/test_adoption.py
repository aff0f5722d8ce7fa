"""Episodes that were sampled elsewhere: how they become factuals, and what their forks draw.

The first tests play scripted words, the last ones a tiny random model on real questions. Whether
the credit is right is in `test_adopted_credit`.
"""

import dataclasses

import numpy as np
import pytest
import torch

from tests.trainer.conftest import coin, log_of, scripted
from trainer.config import changed
from trainer.logged.episode_log import LoggedEpisode
from trainer.loop.train import train_tasks
from trainer.noise.logged import LoggedNoise
from trainer.rollout import adoption
from trainer.setup import make_rollout
from trainer.tasks import ToolError
from twinstats.episodes import FRESH, KEEP, Fork, Task
from twinstats.keys import FACTUAL
from twinstats.noise import NoiseKey
from twinstats.rows import is_equal_decision, is_same_play, null_disagreements

TASK = Task("t", {"right": "a.", "turns": 3})
A, B, TILDE = (97, 46), (98, 98, 46), (126, 46)  # ~ reads like ab


def actions(episode):
    return [turn.action for turn in episode.turns]


# Replay


def test_a_replayed_episode_is_the_one_that_was_played():
    rollout, engine, _ = scripted(coin)
    played = rollout.play([TASK], 4, 1)
    engine.keys.clear()
    for row, (old, new) in enumerate(
        zip(played, rollout.replay([log_of(one) for one in played], 6), strict=True)
    ):
        assert (new.step, new.row, new.fork, new.info) == (6, row, None, {})
        assert (new.task, new.outcome, new.success) == (old.task, old.outcome, old.success)
        assert (new.terminated, new.truncated) == (old.terminated, old.truncated)
        assert (new.final_state, new.sampled) == (old.final_state, old.sampled)
        for before, after in zip(old.turns, new.turns, strict=True):
            unscored = before.info | {"logprobs": None}
            assert (after.action, after.state, after.info) == (
                before.action,
                before.state,
                unscored,
            )
            assert (after.slot, after.reward) == (before.slot, before.reward)
    assert not engine.keys  # nothing was sampled


def test_ids_are_never_tokenised_again_and_texts_once():
    rollout, _, _ = scripted(coin)
    logged = LoggedEpisode(task=TASK, turns=(TILDE, "ab.", B))
    (episode,) = rollout.replay([logged], 1)
    assert actions(episode) == [TILDE, (97, 98, 46), B]
    assert [turn.state for turn in episode.turns] == ["?", "<ab.>", "<ab.>"]
    assert episode.outcome == 0


@pytest.mark.parametrize(
    ("changes", "reason", "turns"),
    [
        ({"turns": (A, A)}, "the episode goes on after the 2 logged turns", 2),
        ({"turns": (A,) * 5}, "the episode is over after 3 turns, but 5 were logged", 3),
        ({"turns": (A, (97,), A)}, "turn 1 does not end where the policy's turns do", 1),
        ({"turns": ((97, 46, 97, 46), A, A)}, "turn 0 does not end where", 0),
        (
            {"observations": ("?", "<a>", None)},
            "before turn 1 the environment shows something else than was logged",
            1,
        ),
        ({"observations": (None, None, "")}, "before turn 2 the environment shows", 2),
    ],
)
def test_what_goes_otherwise_than_the_log_fails_alone(changes, reason, turns):
    rollout, _, _ = scripted(coin)
    plain = {"turns": (A, A, A), "observations": ()}
    first, failed, last = rollout.replay(
        [LoggedEpisode(task=TASK, **options) for options in (plain, plain | changes, plain)], 1
    )
    assert first.outcome == last.outcome == pytest.approx(1)
    assert (failed.outcome, failed.success, failed.num_turns) == (None, None, turns)
    assert failed.info["reason"].startswith(reason)
    assert not (failed.terminated or failed.truncated)
    assert (first.row, failed.row, last.row) == (0, 1, 2)


def test_what_is_not_logged_is_not_checked():
    rollout, _, _ = scripted(coin, is_random=True)
    for observations in ((), (None, None, None)):
        logged = LoggedEpisode(task=TASK, turns=(A, A, A), observations=observations)
        assert rollout.replay([logged], 1)[0].outcome == pytest.approx(1)


def test_a_tool_that_fails_is_the_reason():
    def broken(turn, text):
        raise ToolError("no answer")

    rollout, _, _ = scripted(coin, drift=broken)
    (episode,) = rollout.replay([LoggedEpisode(task=TASK, turns=(A, A, A))], 1)
    assert (episode.outcome, episode.info["reason"]) == (None, "a tool failed: no answer")


# Forks: which noise drives what


@pytest.fixture
def explained():
    """A scripted rollout, its engine, and an adopted factual of two turns whose game has three."""
    rollout, engine, _ = scripted(coin)
    logged = LoggedEpisode(task=Task("t", {"right": "a.", "turns": 2}), turns=(B, A))
    (episode,) = rollout.replay([logged], 4)
    turns = []
    for index, turn in enumerate(episode.turns):
        key = FACTUAL.tail.key(3, 4, 0, episode.slot(index))
        noise = LoggedNoise(key=key, tokens=turn.action, logits=np.zeros(0), temperature=1.0)
        turns.append(dataclasses.replace(turn, info=turn.info | {"noise": noise}))
    episode = dataclasses.replace(episode, turns=tuple(turns), task=TASK)
    unlogged = type(engine)(lambda session, noise, index: "ccc.")
    rollout.engine = unlogged
    return rollout, unlogged, episode


def drawn(engine):
    """Of each turn that was drawn last: whether its noise was logged, its stream and its slot."""
    found = []
    for noise in engine.keys[-1]:
        is_logged = isinstance(noise, LoggedNoise)
        key = noise.key if is_logged else noise
        assert isinstance(key, NoiseKey) and (key.seed, key.step, key.row) == (3, 4, 0)
        found.append((is_logged, key.purpose, key.luck, key.turn))
    return found


def test_a_shared_tail_is_logged_where_the_factual_was_and_prior_after_it(explained):
    rollout, engine, episode = explained
    rollout.fork([Fork(episode, 0)])
    assert drawn(engine) == [
        (False, "alternative", 1, 0),
        (True, "sample", 0, 10),
        (False, "sample", 0, 20),
    ]
    rollout.fork([Fork(episode, 0, KEEP)])
    assert drawn(engine) == [(True, "sample", 0, 10), (False, "sample", 0, 20)]


def test_other_luck_knows_nothing_of_the_log(explained):
    rollout, engine, episode = explained
    for luck in (FRESH, 2):
        rollout.fork([Fork(episode, 0, luck=luck)])
        assert [is_logged for is_logged, *_ in drawn(engine)] == [False] * 3


def test_forks_of_forks_draw_from_the_log_while_they_share_its_luck(explained):
    rollout, engine, episode = explained
    shared, fresh = rollout.fork([Fork(episode, 0), Fork(episode, 0, luck=FRESH)])
    rollout.fork([Fork(shared, 0, KEEP)])
    assert drawn(engine) == [(True, "sample", 0, 10), (False, "sample", 0, 20)]
    (deeper,) = rollout.fork([Fork(shared, 0, B)])
    rollout.fork([Fork(deeper, 0, A)])
    assert drawn(engine) == [(True, "sample", 0, 10), (False, "sample", 0, 20)]
    rollout.fork([Fork(shared, 1, skip_equal=False)])
    assert [one[:2] for one in drawn(engine)] == [
        (False, "alternative/0.0.shared.resample"),
        (False, "sample"),
    ]
    rollout.fork([Fork(fresh, 0, KEEP)])
    assert {one[:2] for one in drawn(engine)} == {(False, "fresh/0.0.fresh.resample")}


# A random model on real questions


@pytest.fixture
def far(policy, config, dice):
    """Episodes of two questions that torch sampled, a rollout that did not, and them adopted."""
    own = changed(config, ["task.parts=2", "seed=77", "rollout.temperature=0.9"])
    tasks = train_tasks(own, 1)
    away = make_rollout(policy, own, sampler=dice(5)).play(tasks, 20, 1)
    here = make_rollout(policy, changed(own, ["seed=5"]))
    return away, here, here.adopt([log_of(one) for one in away], 3)


def test_an_adopted_turn_knows_its_logprob_entropy_and_noise(far, policy):
    away, _, episodes = far
    for row, (old, new) in enumerate(zip(away, episodes, strict=True)):
        assert (new.outcome, new.row, new.info) == (old.outcome, row, {})
        for slot, before, after in zip(range(99), old.turns, new.turns, strict=False):
            assert after.action == before.action
            assert after.logprob == pytest.approx(before.logprob, abs=1e-4)
            assert after.entropy == pytest.approx(before.entropy, abs=1e-4)
            noise = after.info["noise"]
            assert noise.key == NoiseKey(5, 3, row, before.slot), slot
            assert (noise.tokens, noise.temperature) == (after.action, 0.9)
            assert noise.logits.dtype == np.float32
            assert noise.logits.shape == (after.num_tokens, policy.model.config.vocab_size)


def test_null_twins_of_adopted_episodes_draw_every_token_again(far):
    _, here, episodes = far
    twins = here.fork([Fork(e, t, KEEP) for e in episodes for t in range(e.num_turns)])
    assert len(twins) > 200
    assert null_disagreements(twins) == (len(twins), 0, 0)
    assert sum(twin.sampled for twin in twins) > 2000


def test_null_twins_of_twins_of_adopted_episodes_do_too(far):
    _, here, episodes = far
    twins = here.fork([Fork(e, 1) for e in episodes])
    assert sum(map(is_equal_decision, twins)) < 10
    nulls = here.fork([Fork(t, turn, KEEP) for t in twins for turn in (1, 2)])
    assert null_disagreements(nulls) == (len(nulls), 0, 0)
    leaves = here.fork([Fork(twin, 2) for twin in twins])
    assert all(leaf.outcome is not None for leaf in leaves)
    assert not all(map(is_same_play, leaves))


def test_without_its_logits_a_null_twin_is_another_episode(far):
    _, here, episodes = far
    bare = [dataclasses.replace(e, turns=[bared(t) for t in e.turns]) for e in episodes[:5]]
    twins = here.fork([Fork(e, 0, KEEP) for e in bare])
    assert null_disagreements(twins)[1] == 5


def bared(turn):
    return dataclasses.replace(turn, info={k: v for k, v in turn.info.items() if k != "noise"})


def test_what_the_policy_cannot_draw_is_refused_alone(far, monkeypatch):
    away, here, _ = far
    logged = [log_of(one) for one in away[:4]]
    turns = [list(turn) for turn in logged[1].turns]
    turns[0][0] = 600
    logged[1] = log_of(away[1], turns=tuple(map(tuple, turns)), observations=())
    banned = away[2].turns[1].action[0]
    plain = adoption.token_logits

    def without(model, ids, mask, wanted):
        logits = plain(model, ids, mask, wanted)
        before = sum(one.sampled for one in away[:1]) + len(away[2].turns[0].action)
        logits[before, banned] = -torch.inf
        return logits

    monkeypatch.setattr(adoption, "token_logits", without)
    first, outside, impossible, last = here.adopt(logged, 1)
    assert first.outcome is not None and last.outcome is not None
    assert outside.info["reason"] == (
        "turn 0 has a token outside the policy's vocabulary of 600"
    ) and (outside.outcome, outside.num_turns) == (None, 0)
    assert impossible.info["reason"] == f"turn 1 has token {banned}, which the policy cannot draw"
    assert (impossible.outcome, impossible.num_turns) == (None, 1)
