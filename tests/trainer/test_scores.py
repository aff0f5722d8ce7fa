"""Scores of an evaluation: what they are means over, their intervals, pass@k."""

from itertools import combinations

import numpy as np
import pytest

from trainer.evaluation.scores import (
    GREEDY,
    SAMPLED,
    answer_rows,
    evaluation_rows,
    pass_at_k,
    score_rows,
)
from twinstats.episodes import Episode, Task, Turn


def episode(task, row, parts, *, success=None, outcome=..., **info):
    """An episode that ended some of its parts: {part: (answer, exact_match, f1)}."""
    asked = {"parts": 2, "question_ids": [f"{task}a", f"{task}b"], **info}
    turns = [
        Turn(
            (),
            None,
            None,
            1,
            "",
            info={"step": {"part": part, "answer": answer, "exact_match": exact, "f1": f1}},
        )
        for part, (answer, exact, f1) in parts.items()
    ]
    right = sum(exact for _, exact, _ in parts.values()) / 2
    outcome = right if outcome is ... else outcome
    won = right == 1 if success is None else success
    won = None if outcome is None else won
    return Episode(Task(task, asked), 0, row, turns, outcome, True, False, success=won)


def scores(episodes, num_tasks, decoding=SAMPLED):
    rows = score_rows(
        evaluation_rows(episodes, decoding, num_tasks), answer_rows(episodes, decoding, num_tasks)
    )
    return {(row["metric"], row["kind"], row["group"]): row for row in rows}


def test_an_answer_is_a_row_a_question_and_one_never_come_to_scores_zero():
    found = answer_rows([episode("t", 0, {0: ("x", 1.0, 1.0)}, hops=[1, 2])], GREEDY, 1)
    assert [row["question"] for row in found] == ["ta", "tb"]
    assert [row["hops"] for row in found] == ["1", "2"]
    assert [row["answer"] for row in found] == ["x", None]
    assert [row["f1"] for row in found] == [1.0, 0.0]


def test_an_episode_that_failed_has_no_score_and_is_left_out():
    played = [
        episode("t", 0, {0: ("x", 1.0, 1.0), 1: ("y", 0.0, 0.5)}),
        episode("u", 1, {}, outcome=None),
    ]
    found = scores(played, 2)
    assert answer_rows(played, SAMPLED, 2)[2]["exact_match"] is None
    whole = found["exact_match", "all", ""]
    assert (whole["value"], whole["num_values"], whole["num_tasks"]) == (0.5, 2, 1)
    assert found["f1", "all", ""]["value"] == 0.75
    assert found["outcome", "all", ""]["num_values"] == 1


def test_where_all_failed_the_scores_are_null_with_a_reason():
    found = scores([episode("t", 0, {}, outcome=None)], 1)
    assert set(found) == {("outcome", "all", ""), ("success", "all", "")}
    for row in found.values():
        assert row.get("value") is None and row["reason"] == "no episode has it"


def test_samples_of_a_task_are_one_cluster():
    """Doubling each answer must not make the interval narrower."""
    right = [1.0, 0.0, 1.0, 1.0, 0.0]
    once = [episode(f"t{k}", k, {0: ("", r, r), 1: ("", r, r)}) for k, r in enumerate(right)]
    twice = [
        episode(f"t{k % 5}", k, {0: ("", r, r), 1: ("", r, r)}) for k, r in enumerate(right * 2)
    ]
    single, double = scores(once, 5)["f1", "all", ""], scores(twice, 5)["f1", "all", ""]
    assert double["stderr"] == pytest.approx(single["stderr"], rel=1e-12)
    assert single["stderr"] == pytest.approx(np.std(right, ddof=1) / np.sqrt(5))
    assert (double["num_values"], double["num_tasks"]) == (20, 5)
    assert double["low"] < 0.6 < double["high"]


def test_kinds_of_questions_are_scored_apart():
    parts = {0: ("", 1.0, 1.0), 1: ("", 0.0, 0.0)}
    asked = {"relations": ["capital", "currency"], "hops": [1, 2], "data_source": "nq"}
    found = scores([episode("t", 0, parts, **asked), episode("u", 1, parts, **asked)], 2)
    assert found["exact_match", "relation", "capital"]["value"] == 1.0
    assert found["exact_match", "relation", "currency"]["value"] == 0.0
    assert found["exact_match", "hops", "2"]["num_values"] == 2
    assert found["outcome", "data_source", "nq"]["value"] == 0.5


def test_pass_at_k_is_the_share_of_subsets_with_a_success():
    for n in range(1, 7):
        for c in range(n + 1):
            for k in range(1, n + 1):
                drawn = list(combinations([True] * c + [False] * (n - c), k))
                expected = np.mean([any(subset) for subset in drawn])
                assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 1, 3), (2, 1, 0), (2, 3, 1), (2, -1, 1)])
def test_an_impossible_pass_at_k_is_refused(n, c, k):
    with pytest.raises(ValueError, match="must be in 1..2"):
        pass_at_k(n, c, k)


def test_pass_at_k_is_a_mean_over_tasks_for_powers_of_two():
    won = {"t": [True, False, False], "u": [True, True, False], "v": [False, False, None]}
    played = []
    for sample in range(3):
        for task in won:
            one = won[task][sample]
            played.append(
                episode(task, len(played), {}, success=one, outcome=None if one is None else 0.0)
            )
    found = scores(played, 3)
    assert {name for name, _, _ in found if name.startswith("pass@")} == {"pass@1", "pass@2"}
    assert found["pass@1", "all", ""]["value"] == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)
    assert found["pass@2", "all", ""]["value"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert not [name for name, _, _ in scores(played[:3], 3, GREEDY) if "pass" in name]


def test_a_task_with_too_few_whole_samples_is_left_out_of_that_k():
    played = [episode("t", 0, {}, success=True), episode("u", 1, {}, success=True)]
    played += [episode("t", 2, {}, success=False), episode("u", 3, {}, outcome=None)]
    found = scores(played, 2)
    assert found["pass@2", "all", ""]["num_tasks"] == 1
    assert found["pass@1", "all", ""]["value"] == 0.75


def test_an_interval_of_a_share_stays_in_0_1_and_is_never_without_width():
    never = {0: ("", 0.0, 0.25), 1: ("", 0.0, 0.25)}
    for samples in (1, 3):
        played = [episode(f"t{k % 6}", k, never) for k in range(6 * samples)]
        found = scores(played, 6)
        whole = found["success", "all", ""]
        assert whole["low"] == 0.0 and whole["high"] == pytest.approx(
            1.96**2 / (6 + 1.96**2), rel=1e-3
        )
        assert found["exact_match", "all", ""]["high"] == whole["high"]  # parts are not independent
        f1 = found["f1", "all", ""]
        assert (f1["value"], f1["low"], f1["high"]) == (0.25, None, None)
        assert "zero_variance" in f1["reason"]
