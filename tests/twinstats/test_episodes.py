import numpy as np
import pytest

from twinstats.episodes import (
    DIFFERENT,
    FRESH,
    KEEP,
    RESAMPLE,
    SHARED,
    Credit,
    Episode,
    Fork,
    Task,
    Turn,
    action_word,
    group_by_task,
)


def turn(action=0, **fields):
    return Turn(
        action, **({"logprob": -0.5, "entropy": 0.7, "num_tokens": 2, "state": "s"} | fields)
    )


def episode(num_turns=4, *, task="t", row=5, fork=None, turns=None):
    turns = [turn(i) for i in range(num_turns)] if turns is None else turns
    return Episode(Task(task), 3, row, turns, 1.0, True, False, fork=fork)


F = episode()


def test_names_and_paths_tell_where_an_episode_comes_from():
    twin = episode(fork=Fork(F, 1, alternative=2))
    leaf = episode(fork=Fork(twin, 3, action=(7, 8), luck=4))
    assert (F.path, F.name) == ("", "3/5")
    assert twin.name == "3/5/1.2.shared.resample"
    assert leaf.path == "1.2.shared.resample/3.0.4.7,8"
    assert leaf.name == "3/5/1.2.shared.resample/3.0.4.7,8"


@pytest.mark.parametrize("nothing", [float("nan"), np.float64("nan")])
def test_an_outcome_of_nan_is_null_with_a_reason(nothing):
    info = {"anchors": 1}
    made = Episode(Task("t"), 0, 0, [turn()], nothing, True, False, info=info)
    assert made.outcome is None
    assert made.info == {"reason": "its outcome was NaN", "anchors": 1}
    assert info == {"anchors": 1}  # an episode made with `replace` shares it
    told = Episode(Task("t"), 0, 0, [turn()], nothing, True, False, info={"reason": "no scorer"})
    assert told.info == {"reason": "no scorer"}


def test_actions_have_words():
    assert [action_word(a) for a in (RESAMPLE, KEEP, DIFFERENT)] == [
        "resample",
        "keep",
        "different",
    ]
    assert [action_word(a) for a in (3, np.int64(3), (3, 4), [3, 4], np.array([3, 4]))] == [
        "3",
        "3",
        "3,4",
        "3,4",
        "3,4",
    ]


def test_a_turn_is_owned_by_the_episode_that_decided_it():
    twin = episode(fork=Fork(F, 1))
    leaf = episode(fork=Fork(twin, 3))
    assert [leaf.owner(t) for t in range(4)] == [F, twin, twin, leaf]
    assert [F.owner(t) for t in range(4)] == [F] * 4


def test_a_slot_is_the_running_index_unless_it_is_named():
    one = episode(turns=[turn(), turn(slot=64), turn(slot=0)])
    assert [one.slot(t) for t in range(3)] == [0, 64, 0]


def test_columns_are_arrays_with_nan_for_null():
    one = episode(turns=[turn((1, 2), logprob=None, reward=0.25), turn((3,), entropy=None)])
    np.testing.assert_array_equal(one.column("logprob"), [np.nan, -0.5])
    np.testing.assert_array_equal(one.column("entropy"), [0.7, np.nan])
    assert one.column("reward").tolist() == [0.25, 0.0]
    assert one.column("num_tokens").dtype == np.int64
    assert one.column("action").tolist() == [(1, 2), (3,)]
    assert episode(0).column("num_tokens").tolist() == []


def test_episodes_are_equal_only_to_themselves():
    assert episode() != episode()
    assert len({F, F, episode()}) == 2
    assert Task("a", {"x": 1}) == Task("a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"turn": 4}, "`turn` must be in 0..3, got 4"),
        ({"turn": -1}, "`turn` must be in 0..3"),
        ({"turn": 0, "luck": 0}, "must be at least 1"),
        ({"turn": 0, "luck": -2}, "must be at least 1"),
        ({"turn": 0, "luck": 1, "alternative": 1}, "with `alternative` 0"),
        ({"turn": 0, "alternative": -1}, "`alternative` must be at least 0"),
    ],
)
def test_a_fork_that_means_nothing_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Fork(F, **fields)


def test_a_fork_before_its_parents_own_turn_is_refused():
    twin = episode(fork=Fork(F, 2))
    with pytest.raises(ValueError, match="own fork turn 2: fork the episode that owns the turn"):
        Fork(twin, 1)
    assert Fork(twin, 2).path == "2.0.shared.resample/2.0.shared.resample"


def test_only_exact_shared_resampling_takes_the_parents_tail():
    taken = {
        (action, luck)
        for action in (RESAMPLE, KEEP, DIFFERENT, 3)
        for luck in (SHARED, FRESH, 1)
        if Fork(F, 1, action, luck).takes_equal_tail()
    }
    assert taken == {(RESAMPLE, SHARED)}
    assert not Fork(F, 1).takes_equal_tail(exact_replay=False)
    assert Fork(F, 1, skip_equal=True).takes_equal_tail(exact_replay=False)
    assert Fork(F, 1, luck=FRESH, skip_equal=True).takes_equal_tail()
    assert not Fork(F, 1, skip_equal=False).takes_equal_tail()


def test_only_exact_shared_replays_of_one_turn_may_share_a_tail():
    shared = {
        (action, luck)
        for action in (RESAMPLE, KEEP, DIFFERENT, 3)
        for luck in (SHARED, FRESH, 1)
        if Fork(F, 1, action, luck).tail_key()
    }
    assert shared == {(RESAMPLE, SHARED), (DIFFERENT, SHARED), (3, SHARED)}
    one = Fork(F, 1).tail_key()
    assert one == Fork(F, 1, alternative=4).tail_key() == Fork(F, 1, DIFFERENT).tail_key()
    assert one not in (Fork(F, 0).tail_key(), Fork(F, 1, coupling="maximal").tail_key())
    assert one != Fork(episode(), 1).tail_key()
    assert Fork(F, 1).tail_key(exact_replay=False) is None
    assert Fork(F, 1, skip_equal=True).tail_key(exact_replay=False) == one
    assert Fork(F, 1, skip_equal=False).tail_key() is None
    assert Fork(F, 1, luck=FRESH, skip_equal=True).tail_key() is None


def test_forks_are_the_same_by_parent_turn_action_luck_and_alternative():
    twin = episode(fork=Fork(F, 0))
    forks = [
        Fork(parent, turn, action, luck)
        for parent in (F, twin)
        for turn in (1, 2)
        for action in (RESAMPLE, KEEP, 3)
        for luck in (SHARED, FRESH, 1, 2)
    ] + [Fork(F, 1, alternative=1)]
    assert len({fork.key for fork in forks}) == len(forks)
    assert Fork(F, 1, (3,)).key == Fork(F, 1, 3).key
    assert Fork(F, 1, coupling="maximal", skip_equal=True).key == Fork(F, 1).key


def test_groups_follow_the_task_and_not_the_position():
    tasks = ["a", "b", "a", "c", "b", "a"]
    episodes = [episode(1, task=task, row=row) for row, task in enumerate(tasks)]
    groups = group_by_task(iter(episodes), seed=2, step=3)
    assert [(g.task.id, [e.row for e in g.episodes], g.seed, g.step) for g in groups] == [
        ("a", [0, 2, 5], 2, 3),
        ("b", [1, 4], 2, 3),
        ("c", [3], 2, 3),
    ]


@pytest.mark.parametrize("field", ["values", "share", "stderr", "weights"])
def test_credit_that_does_not_fit_its_episodes_is_refused(field):
    one = np.zeros(2) if field == "weights" else 0.0  # a turn's token weights, or its number
    right, short = ([one] * 4, [one] * 3) if field == "weights" else (np.zeros(4), np.zeros(3))
    for wrong in ([short], [right, right], []):
        with pytest.raises(ValueError, match=f"`{field}` must have one entry a turn"):
            Credit(**({"episodes": [F], "values": [np.zeros(4)]} | {field: wrong}))
    Credit(**({"episodes": [F], "values": [np.zeros(4)]} | {field: [right]}))


def test_what_is_drawn_and_what_is_coupled_maximally():
    forks = [Fork(F, 1, action) for action in (RESAMPLE, DIFFERENT, KEEP, (4, 2), 3)]
    assert [fork.is_drawn for fork in forks] == [True, True, False, False, False]
    lucks = [Fork(F, 1, luck=luck, coupling="maximal") for luck in (SHARED, FRESH, 2)]
    assert [fork.is_maximal for fork in lucks] == [True, False, False]
    assert not Fork(F, 1).is_maximal
