"""The rollout as a `World`: how forks replay, what noise they draw, and what they cost.

Most tests play scripted words (`conftest`); the last ones a tiny random model.
"""

import dataclasses

import pytest

from tests.trainer.conftest import coin, scripted
from trainer.loop.train import train_tasks
from trainer.rollout.play import RESET_SLOT
from trainer.setup import make_rollout
from twinstats.episodes import FRESH, KEEP, RESAMPLE, SHARED, Episode, Fork, Task, World
from twinstats.rows import is_equal_decision, null_disagreements

TASK = Task("t", {"right": "a.", "turns": 3})
TASKS = [Task("t", {"right": "a.", "turns": 3}), Task("u", {"right": "bb.", "turns": 4})]
A, B = (97, 46), (98, 98, 46)


def words(episode):
    return ["".join(map(chr, turn.action)) for turn in episode.turns]


def shown(episode):
    return [turn.info["shown"] for turn in episode.turns]


def streams(keys):
    return [(key.purpose, key.luck, key.turn) for key in keys]


def environment_streams(calls):
    return [(kind, key.purpose, key.luck, key.turn) for kind, key in calls]


def say(*texts):
    """An engine's choice: these texts in turn, the last for ever."""
    return lambda session, key, index: texts[min(index, len(texts) - 1)]


# Factuals


def test_it_is_a_world():
    assert isinstance(scripted(coin)[0], World)


def test_rows_count_up_task_by_task_and_name_the_noise():
    rollout, engine, _ = scripted(coin)
    episodes = rollout.play(TASKS, 3, 7)
    assert [episode.row for episode in episodes] == list(range(6))
    assert [episode.task.id for episode in episodes] == list("tttuuu")
    assert len({episode.name for episode in episodes}) == 6
    for row, keys in enumerate(engine.keys):
        assert {(key.seed, key.step, key.row) for key in keys} == {(3, 7, row)}
    assert engine.temperatures == [1.0]  # all in one batch


def test_an_episode_is_what_was_shown_and_said():
    rollout, engine, calls = scripted(say("a.", "ccc.", "a."))
    (episode,) = rollout.play([TASK], 1, 0)
    assert words(episode) == ["a.", "ccc.", "a."]
    assert [turn.state for turn in episode.turns] == ["?", "<a.>", "<ccc.>"]
    assert [turn.slot for turn in episode.turns] == [0, 10, 20]
    assert [turn.num_tokens for turn in episode.turns] == [2, 4, 2]
    assert [turn.reward for turn in episode.turns] == [1 / 3, 0, 1 / 3]
    assert episode.outcome == pytest.approx(2 / 3, rel=1e-15)
    assert (episode.terminated, episode.truncated, episode.success) == (True, False, False)
    assert episode.sampled == 8
    assert streams(engine.keys[0]) == [("sample", 0, 0), ("sample", 0, 10), ("sample", 0, 20)]
    assert environment_streams(calls) == [
        ("reset", "environment", 0, RESET_SLOT),
        ("step", "environment", 0, 0),
        ("step", "environment", 0, 10),
        ("step", "environment", 0, 20),
    ]


def test_too_many_turns_or_a_full_context_truncate():
    (episode,) = scripted(say("a."), max_turns=2)[0].play([TASK], 1, 0)
    assert (episode.num_turns, episode.terminated, episode.truncated) == (2, False, True)
    assert (episode.outcome, episode.success) == (pytest.approx(2 / 3), False)
    for limit, turns in ((7, 1), (8, 2), (13, 2), (14, 3)):  # ? a. <a.> a. <a.>: 1 2 4 2 4
        (episode,) = scripted(say("a."), max_context=limit)[0].play([TASK], 1, 0)
        assert episode.num_turns == turns, limit
        assert episode.truncated == (turns < 3)


def test_an_end_at_the_last_allowed_turn_is_an_end():
    (episode,) = scripted(say("a."), max_turns=3)[0].play([TASK], 1, 0)
    assert (episode.terminated, episode.truncated, episode.success) == (True, False, True)


def test_evaluation_draws_from_streams_of_its_own():
    rollout, engine, calls = scripted(coin, is_random=True)
    rollout.play(TASKS, 1, 2)
    trained = {key for keys in engine.keys for key in keys} | {key for _, key in calls}
    engine.keys.clear()
    calls.clear()
    first = rollout.evaluate(TASKS, 2)
    again = rollout.evaluate(TASKS, 2, temperature=0.0)
    used = {key for keys in engine.keys for key in keys} | {key for _, key in calls}
    assert not used & trained
    assert {key.purpose for keys in engine.keys for key in keys} == {"evaluation"}
    assert [words(episode) for episode in first] == [words(episode) for episode in again]
    assert engine.temperatures == [1.0, 1.0, 0.0]
    assert [episode.row for episode in first] == [0, 1]


# Forks: which stream drives what (DESIGN section 4)

NESTED = "0.0.fresh.resample"


@pytest.mark.parametrize(
    ("options", "decision", "tail", "environment"),
    [
        ({"alternative": 2}, ("alternative", 3), ("sample", 0), ("environment", 0)),
        (
            {"luck": FRESH, "alternative": 2},
            ("alternative", 3),
            ("fresh/1.2.fresh.resample", 0),
            ("environment/1.2.fresh.resample", 0),
        ),
        ({"luck": 4}, ("draw", 4), ("draw", 4), ("environment", 4)),
        ({"action": KEEP}, None, ("sample", 0), ("environment", 0)),
        ({"action": KEEP, "luck": 4}, None, ("draw", 4), ("environment", 4)),
        ({"action": B}, None, ("sample", 0), ("environment", 0)),
        (
            {"action": B, "luck": FRESH},
            None,
            ("fresh/1.0.fresh.98,98,46", 0),
            ("environment/1.0.fresh.98,98,46", 0),
        ),
    ],
)
def test_streams_of_a_fork(options, decision, tail, environment):
    rollout, engine, calls = scripted(say("a."))
    (parent,) = rollout.play([TASK], 1, 0)
    calls.clear()
    rollout.fork([Fork(parent, 1, **options, skip_equal=False)])
    own = [] if decision is None else [(*decision, 10)]
    assert streams(engine.keys[1]) == [*own, (*tail, 20)]
    assert environment_streams(calls) == [
        ("reset", "environment", 0, RESET_SLOT),
        ("step", "environment", 0, 0),
        ("step", *environment, 10),
        ("step", *environment, 20),
    ]


@pytest.mark.parametrize(
    ("options", "decision", "tail", "environment"),
    [
        (
            {},
            (f"alternative/{NESTED}", 1),
            (f"fresh/{NESTED}", 0),
            (f"environment/{NESTED}", 0),
        ),
        (
            {"luck": FRESH},
            (f"alternative/{NESTED}", 1),
            (f"fresh/{NESTED}/1.0.fresh.resample", 0),
            (f"environment/{NESTED}/1.0.fresh.resample", 0),
        ),
        (
            {"luck": 2},
            (f"draw/{NESTED}", 2),
            (f"draw/{NESTED}", 2),
            (f"environment/{NESTED}", 2),
        ),
        ({"action": KEEP}, None, (f"fresh/{NESTED}", 0), (f"environment/{NESTED}", 0)),
    ],
)
def test_streams_of_a_fork_of_a_fork(options, decision, tail, environment):
    rollout, engine, calls = scripted(say("a."))
    (parent,) = rollout.play([TASK], 1, 0)
    (middle,) = rollout.fork([Fork(parent, 0, luck=FRESH)])
    calls.clear()
    (leaf,) = rollout.fork([Fork(middle, 1, **options, skip_equal=False)])
    own = [] if decision is None else [(*decision, 10)]
    assert streams(engine.keys[2]) == [*own, (*tail, 20)]
    assert environment_streams(calls) == [
        ("reset", "environment", 0, RESET_SLOT),
        ("step", f"environment/{NESTED}", 0, 0),  # turn 0 was the middle's, with its luck
        ("step", *environment, 10),
        ("step", *environment, 20),
    ]
    assert leaf.owner(0) is middle and leaf.owner(1) is leaf


# Forks: what is replayed, and what it costs


def test_null_twins_end_as_their_factual_did():
    rollout, engine, _ = scripted(coin, is_random=True)
    episodes = rollout.play(TASKS, 6, 1)
    forks = [Fork(e, t, KEEP, SHARED) for e in episodes for t in range(e.num_turns)]
    twins = rollout.fork(forks)
    for fork, twin in zip(forks, twins, strict=True):
        parent = fork.episode
        assert words(twin) == words(parent) and shown(twin) == shown(parent)
        assert (twin.outcome, twin.success) == (parent.outcome, parent.success)
        assert twin.sampled == sum(turn.num_tokens for turn in parent.turns[fork.turn + 1 :])
        assert twin.fork is fork
    assert null_disagreements(twins) == (len(forks), 0, 0)
    assert rollout.exact_replay


def test_every_kind_of_fork_replays_its_prefix_where_the_environment_is_random():
    rollout, _, _ = scripted(coin, is_random=True)
    (parent,) = rollout.play(TASKS[1:], 1, 1)
    kinds = [{"luck": FRESH}, {"luck": 3}, {}, {"luck": FRESH, "action": B}]
    for options in kinds:
        forks = [Fork(parent, turn, **options, skip_equal=False) for turn in range(4)]
        twins = rollout.fork(forks)
        for fork, twin in zip(forks, twins, strict=True):
            assert twin.outcome is not None, twin.info
            assert list(twin.turns[: fork.turn]) == list(parent.turns[: fork.turn])
            assert twin.turns[fork.turn].state == parent.turns[fork.turn].state
            leaves = rollout.fork([Fork(twin, t, luck=FRESH) for t in range(fork.turn, 4)])
            assert all(leaf.outcome is not None for leaf in leaves)


def test_shared_twins_draw_the_same_words_after_a_decision_of_another_length():
    rollout, _, _ = scripted(coin)
    (parent,) = rollout.play(TASKS[1:], 1, 1)
    for action in (A, B, (99,) * 8 + (46,)):
        (twin,) = rollout.fork([Fork(parent, 0, action)])
        assert words(twin)[1:] == words(parent)[1:]
        assert twin.turns[0].action == action
        assert twin.turns[0].logprob == (-1.0 if action == parent.turns[0].action else None)


def test_an_equal_decision_takes_the_tail_and_costs_its_turn():
    rollout, engine, calls = scripted(coin)
    episodes = rollout.play(TASKS, 8, 1)
    forks = [Fork(e, t) for e in episodes for t in range(e.num_turns)]
    twins = rollout.fork(forks)
    equal = [twin for twin in twins if is_equal_decision(twin)]
    assert 0 < len(equal) < len(twins)
    for twin in twins:
        parent, turn = twin.fork.episode, twin.fork.turn
        own = sum(played.num_tokens for played in twin.turns[turn:])
        if is_equal_decision(twin):
            assert twin.turns == parent.turns and twin.outcome == parent.outcome
            assert twin.sampled == parent.turns[turn].num_tokens
            assert (twin.terminated, twin.success) == (parent.terminated, parent.success)
            assert twin.info == {} and twin.owner(turn) is twin
        else:
            assert twin.sampled == own
    asked = sum(
        len(keys) for keys in engine.keys[len(episodes) :]
    )  # one key a sampled turn, so equal decisions drew for no tail
    assert asked == sum(
        1 if is_equal_decision(twin) else twin.num_turns - twin.fork.turn for twin in twins
    )


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("skip", [None, True, False])
@pytest.mark.parametrize("luck", [SHARED, FRESH, 2])
def test_when_an_equal_decision_skips_its_tail(exact, skip, luck):
    rollout, engine, _ = scripted(say("a."))
    (parent,) = rollout.play([TASK], 1, 0)
    rollout.exact_replay = exact
    (twin,) = rollout.fork([Fork(parent, 0, RESAMPLE, luck, skip_equal=skip)])
    skips = skip if skip is not None else exact and luck is SHARED
    assert len(engine.keys[1]) == (1 if skips else 3)
    assert twin.sampled == (2 if skips else 6)
    assert words(twin) == words(parent) and twin.outcome == parent.outcome


@pytest.mark.parametrize("action", [KEEP, A])
def test_a_given_decision_always_plays_its_tail(action):
    rollout, engine, _ = scripted(say("a."))
    (parent,) = rollout.play([TASK], 1, 0)
    (twin,) = rollout.fork([Fork(parent, 0, action, skip_equal=True)])
    assert len(engine.keys[1]) == 2 and twin.sampled == 4


def test_a_given_decision_at_the_last_turn_samples_nothing():
    rollout, engine, _ = scripted(say("a."))
    (parent,) = rollout.play([TASK], 1, 0)
    same, other = rollout.fork([Fork(parent, 2, KEEP), Fork(parent, 2, B)])
    assert engine.temperatures == [1.0] and same.sampled == other.sampled == 0
    assert (same.outcome, other.outcome) == (pytest.approx(1), pytest.approx(2 / 3))
    assert (same.success, other.success) == (True, False)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ((), "has no tokens"),
        ((98, -1, 46), f"has token -1, outside the policy's vocabulary of {0x110000}"),
        ((0x110000, 46), f"has token {0x110000}, outside the policy's vocabulary of {0x110000}"),
        ((98, 98), "does not end where the policy's turns do: with its first stop token, or at"),
        ((98, 46, 98, 46), "does not end where the policy's turns do: with its first stop token"),
    ],
)
@pytest.mark.parametrize("luck", [SHARED, FRESH, 1])
def test_a_given_decision_that_the_policy_cannot_come_to_fails_its_fork(action, told, luck):
    rollout, engine, _ = scripted(say("a."))
    (parent,) = rollout.play([TASK], 1, 0)
    failed, other = rollout.fork([Fork(parent, 1, action, luck), Fork(parent, 1, B, luck)])
    assert failed.info["reason"].startswith(f"the given turn {told}")
    assert (failed.outcome, failed.num_turns, failed.sampled) == (None, 1, 0)
    assert other.outcome is not None and len(engine.starts) == 2


def test_a_given_decision_may_be_as_long_as_a_turn_can_be_and_no_longer(policy, config):
    rollout = make_rollout(policy, config)
    (parent,) = rollout.play(train_tasks(config, 0)[:1], 1, 0)
    long = (300,) * config.rollout.max_turn_tokens
    twin, longer = rollout.fork([Fork(parent, 0, long), Fork(parent, 0, (*long, 300))])
    assert twin.outcome is not None and twin.turns[0].action == long
    assert longer.info["reason"].startswith("the given turn does not end")


def test_after_a_null_twin_that_ended_otherwise_tails_are_played():
    said = iter(["a."] * 3 + ["bb.", "a."] + ["a."] * 9)
    rollout, engine, _ = scripted(lambda session, key, index: next(said))
    (parent,) = rollout.play([TASK], 1, 0)
    (null,) = rollout.fork([Fork(parent, 0, KEEP)])
    assert null.outcome < parent.outcome and not rollout.exact_replay
    (twin,) = rollout.fork([Fork(parent, 0)])
    assert len(engine.keys[-1]) == 3 and twin.sampled == 6
    rollout.fork([Fork(parent, 0, KEEP)])
    assert not rollout.exact_replay  # one exact null twin later it is still not trusted


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_prefix_that_replays_otherwise_fails_the_fork_alone(turn):
    drifted = []
    rollout, engine, _ = scripted(
        coin, drift=lambda index, text: text + "!" if index in drifted else text
    )
    (parent,) = rollout.play(TASKS[1:], 1, 0)
    drifted.append(turn)  # what the environment shows after its turn number `turn` is another now
    forks = [Fork(parent, t, action) for t in range(4) for action in (KEEP, RESAMPLE)]
    twins = rollout.fork(forks)
    for fork, twin in zip(forks, twins, strict=True):
        assert twin.fork is fork
        if fork.turn < turn:
            assert twin.outcome is not None
            continue
        assert twin.outcome is None and twin.success is None
        assert twin.info["reason"] == f"replay differs before turn {turn}"
        assert twin.sampled == 0 and not (twin.terminated or twin.truncated)
        assert twin.num_turns == turn  # of the prefix, as far as it came


def test_a_prefix_that_earns_or_ends_otherwise_fails_the_fork():
    rollout, _, _ = scripted(coin)
    (parent,) = rollout.play([TASK], 1, 0)
    other = dataclasses.replace(parent.turns[0], reward=0.9)
    changed = dataclasses.replace(parent, turns=[other, *parent.turns[1:]])
    (twin,) = rollout.fork([Fork(changed, 1)])
    assert (twin.outcome, twin.info["reason"]) == (None, "replay differs at turn 0")
    shorter = dataclasses.replace(parent, task=Task("t", {"right": "a.", "turns": 1}))
    (twin,) = rollout.fork([Fork(shorter, 2)])
    assert (twin.outcome, twin.info["reason"]) == (None, "replay differs at turn 0")


def test_a_fork_is_cut_where_its_factual_would_be():
    rollout, _, _ = scripted(say("a."), max_context=14)
    (parent,) = rollout.play([TASK], 1, 0)
    assert parent.terminated
    (longer,) = rollout.fork([Fork(parent, 0, (97, 97, 46))])  # ? aa. <aa.> a. : 1 3 5 2 4 = 15
    assert (longer.num_turns, longer.truncated, longer.terminated) == (2, True, False)
    (null,) = rollout.fork([Fork(parent, 1, KEEP)])
    assert null.terminated and null.outcome == parent.outcome


def test_forks_come_back_in_the_order_asked_from_one_batch():
    rollout, engine, _ = scripted(coin)
    episodes = rollout.play(TASKS, 2, 0)
    forks = [Fork(e, t, alternative=k) for k in range(2) for e in episodes for t in (2, 0)]
    twins = rollout.fork(forks[::-1])
    assert [twin.fork for twin in twins] == forks[::-1]
    assert len(engine.temperatures) == 2
    again = {twin.path + twin.name: words(twin) for twin in rollout.fork(forks)}
    assert again == {twin.path + twin.name: words(twin) for twin in twins}
    assert rollout.fork([]) == []


# A random model on real questions


@pytest.fixture
def real(policy, config):
    return make_rollout(policy, config)


def test_a_models_null_twins_agree_by_token_and_outcome(real, config):
    episodes = real.play(train_tasks(config, 1), 3, 1)
    twins = real.fork([Fork(e, t, KEEP) for e in episodes for t in range(e.num_turns)])
    assert len(twins) > 12
    assert null_disagreements(twins) == (len(twins), 0, 0)
    for twin in twins:
        assert shown(twin) == shown(twin.fork.episode)


def test_a_models_tail_after_the_same_decision_is_the_same_under_shared_luck_only(real, config):
    episodes = real.play(train_tasks(config, 1), 2, 1)
    forks = [Fork(e, 0, tuple(e.turns[0].action), luck) for e in episodes for luck in (SHARED, 5)]
    twins = real.fork(forks)
    for shared, drawn in zip(twins[::2], twins[1::2], strict=True):
        parent = shared.fork.episode
        assert words_ids(shared) == words_ids(parent)
        assert words_ids(drawn)[0] == words_ids(parent)[0]
        assert words_ids(drawn) != words_ids(parent)


def test_what_a_model_plays_does_not_depend_on_the_batch(policy, config):
    tasks = train_tasks(config, 1)
    found = []
    for size in (1, 3, 64):
        own = dataclasses.replace(
            config, rollout=dataclasses.replace(config.rollout, max_batch=size)
        )
        rollout = make_rollout(policy, own)
        episodes: list[Episode] = rollout.play(tasks, 2, 1)
        twins = rollout.fork([Fork(e, 1) for e in episodes])
        found.append([words_ids(one) for one in (*episodes, *twins)])
    assert found[0] == found[1] == found[2]


def words_ids(episode):
    return [turn.action for turn in episode.turns]
