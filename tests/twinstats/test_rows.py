import dataclasses

import numpy as np
import pytest

from twinstats.episodes import DIFFERENT, FRESH, KEEP, Credit, Episode, Fork, Task, Turn
from twinstats.records import create_run, read
from twinstats.rows import (
    credit_rows,
    episode_rows,
    is_equal_decision,
    is_null_that_differs,
    is_same_play,
    null_disagreements,
    pair_rows,
    turn_rows,
)
from twinstats.tables import SCHEMAS


def episode(actions, outcome, *, fork=None, reason=None, slots=None):
    turns = [
        Turn(a, -1.0, None, 2, "s", slots[i] if slots else None, info={"state_class": f"c{i}"})
        for i, a in enumerate(actions)
    ]
    info = {"reason": reason} if reason else {}
    sampled = 2 * (len(turns) - (fork.turn if fork else 0))
    fields = {"success": None, "fork": fork, "sampled": max(sampled, 0), "info": info}
    return Episode(Task("q1"), 8, 3, turns, outcome, outcome is not None, False, **fields)


FACTUAL = episode([1, 2, 3], 1.0, slots=(0, 64, 65))


def fork(actions, outcome, turn=1, reason=None, **fields):
    return episode(actions, outcome, fork=Fork(FACTUAL, turn, **fields), reason=reason)


TWIN = fork([1, 5, 3], 0.0, alternative=2)
FAILED = fork([], None, reason="timeout", luck=FRESH)


def test_an_episode_row_names_its_fork():
    factual, twin, failed = episode_rows([FACTUAL, TWIN, FAILED], "evaluate")
    assert factual == {
        "episode": "8/3",
        "task": "q1",
        "row": 3,
        "purpose": "evaluate",
        "outcome": 1.0,
        "success": None,
        "terminated": True,
        "truncated": False,
        "num_turns": 3,
        "sampled": 6,
        "reason": None,
    }
    assert twin["parent"] == "8/3"
    assert (twin["fork_turn"], twin["action"], twin["luck"], twin["alternative"]) == (
        1,
        "resample",
        "shared",
        2,
    )
    assert (failed["outcome"], failed["reason"], failed["luck"]) == (None, "timeout", "fresh")
    assert episode_rows([fork([1, 2, 3], 1.0, luck=4)])[0]["luck"] == "4"


def test_a_forks_turn_rows_begin_at_its_own_turn():
    rows = turn_rows([FACTUAL, TWIN])
    assert [(row["episode"], row["turn"]) for row in rows] == [
        ("8/3", 0),
        ("8/3", 1),
        ("8/3", 2),
        ("8/3/1.2.shared.resample", 1),
        ("8/3/1.2.shared.resample", 2),
    ]
    assert [row["slot"] for row in rows] == [0, 64, 65, 1, 2]
    assert rows[1]["state_class"] == "c1"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "twin"),
        ({"action": DIFFERENT}, "twin"),
        ({"action": 9}, "twin"),
        ({"action": KEEP}, "null"),
        ({"luck": FRESH}, "control"),
        ({"action": KEEP, "luck": FRESH}, "control"),
        ({"luck": 2}, "draw"),
    ],
)
def test_pairs_say_what_kind_they_are(fields, kind):
    assert pair_rows([fork([1, 2, 3], 1.0, **fields)])[0]["kind"] == kind


def test_a_pair_row_sets_a_fork_beside_its_parent():
    assert pair_rows([TWIN]) == [
        {
            "kind": "twin",
            "factual": "8/3",
            "twin": "8/3/1.2.shared.resample",
            "task": "q1",
            "turn": 1,
            "slot": 64,
            "alternative": 2,
            "factual_outcome": 1.0,
            "twin_outcome": 0.0,
            "equal": False,
            "same_tokens": False,
            "sampled": 4,
            "reason": None,
        }
    ]
    failed = pair_rows([FAILED])[0]
    assert [failed[name] for name in ("twin_outcome", "equal", "same_tokens", "reason")] == [
        None,
        None,
        None,
        "timeout",
    ]


def test_equal_decision_and_same_play_are_two_things():
    cases = {
        (1, 2, 3): (True, True),
        (1, 2, 4): (True, False),
        (1, 2): (True, False),
        (1, 2, 3, 4): (True, False),
        (1, 5, 3): (False, False),
        (9, 2, 3): (True, True),  # before the fork nothing was decided
    }
    for actions, expected in cases.items():
        twin = fork(list(actions), 1.0)
        assert (is_equal_decision(twin), is_same_play(twin)) == expected, actions


def test_null_twins_that_disagree_are_counted_by_token_and_by_outcome():
    nulls = [
        fork([1, 2, 3], 1.0, action=KEEP),
        fork([1, 2, 4], 1.0, action=KEEP),
        fork([1, 2, 4], 0.0, action=KEEP),
        fork([1, 2, 3], None, action=KEEP),
    ]
    others = [TWIN, fork([1, 2, 4], 0.0, action=KEEP, luck=FRESH)]
    assert null_disagreements(nulls + others) == (4, 3, 2)
    assert null_disagreements([]) == (0, 0, 0)


def test_a_null_twin_differs_unless_it_failed_for_another_reason_than_its_replay():
    failed = fork([1, 2], None, action=KEEP)
    other = dataclasses.replace(failed, info={"reason": "replay differs", "replay_differs": True})
    assert not is_null_that_differs(failed) and is_null_that_differs(other)
    assert not is_null_that_differs(fork([1, 2, 3], 1.0, action=KEEP))
    assert is_null_that_differs(fork([1, 2, 4], 1.0, action=KEEP))
    assert is_null_that_differs(fork([1, 2, 3], 0.0, action=KEEP))
    assert not is_null_that_differs(fork([1, 2, 4], 0.0, action=KEEP, luck=FRESH))
    assert not is_null_that_differs(TWIN)


def test_credit_rows_carry_share_and_truth():
    credit = Credit(
        episodes=[FACTUAL, TWIN],
        values=[np.array([1.0, np.nan, 0.5]), np.array([np.nan, 2.0, np.nan])],
        share=[np.full(3, 0.5), np.full(3, 0.25)],
    )
    rows = credit_rows([credit], "twice", truth=lambda one: np.arange(one.num_turns) / 10)
    assert len(rows) == 6
    assert rows[2] == {
        "method": "twice",
        "episode": "8/3",
        "turn": 2,
        "value": 0.5,
        "share": 0.5,
        "truth": 0.2,
    }
    assert (rows[4]["episode"], rows[4]["value"], rows[4]["share"]) == (TWIN.name, 2.0, 0.25)
    bare = credit_rows([Credit(episodes=[FACTUAL], values=[np.zeros(3)])], "rloo")[0]
    assert (bare["share"], bare["truth"]) == (None, None)


def test_all_rows_fit_their_tables(tmp_path):
    run = create_run(tmp_path / "run", command="x", configuration={}, seed=0, started="now")
    episodes = [FACTUAL, TWIN, FAILED]
    credit = Credit(episodes=[FACTUAL], values=[np.array([1.0, np.nan, 0.5])])
    made = {
        "episodes": episode_rows(episodes),
        "turns": turn_rows(episodes),
        "pairs": pair_rows([TWIN, FAILED]),
        "credit": credit_rows([credit], "twice"),
    }
    for table, rows in made.items():
        run.write(table, 8, rows)
        stored = read(run.path, table).collect()
        assert stored.columns == [*SCHEMAS[table], "run"]
        assert stored.height == len(rows)
        assert stored["step"].to_list() == [8] * len(rows)
        assert not any(column.is_nan().any() for column in stored if column.dtype.is_float())
