"""Evaluation: what is played, and what its metrics are."""

import math
from dataclasses import replace

import pytest

from trainer.config import changed
from trainer.evaluation.evaluate import evaluate, evaluation_tasks
from trainer.evaluation.scores import GREEDY, SAMPLED
from trainer.setup import make_rollout
from twinstats.episodes import Episode, Turn


@pytest.fixture
def scored(config):
    """Evaluates episodes whose outcomes are given, in order of their rows."""

    class Played:
        def __init__(self, outcomes, right):
            self.outcomes = outcomes
            told = [{"part": 0, "answer": "a", "exact_match": one} for one in right]
            self.turns = [(Turn((), None, None, 1, "", info={"step": one}),) for one in told]
            self.turns += [()] * len(outcomes)

        def evaluate(self, tasks, step, *, temperature):
            played = zip(tasks, self.outcomes, self.turns, strict=False)
            return [
                Episode(task, 0, row, turns, one, True, False, one == 1, info={"reason": "broken"})
                for row, (task, one, turns) in enumerate(played)
            ]

    def scored(*outcomes, right=(), reward="", **settings):
        own = replace(config, evaluation=replace(config.evaluation, **settings), reward=reward)
        return evaluate(Played(outcomes, right), own)

    return scored


def test_episodes_that_failed_are_left_out_and_counted(scored):
    metrics = scored(1.0, None, 0.5, 0.0).metrics
    assert metrics["eval/exact_match_share"] == pytest.approx(0.5)
    assert metrics["eval/stderr_share"] == pytest.approx(math.sqrt(0.25 / 3))
    assert metrics["eval/all_right_share"] == pytest.approx(1 / 3)
    assert (metrics["eval/num_questions_count"], metrics["eval/failed_count"]) == (3, 1)


def test_where_all_failed_the_first_reason_is_named(scored):
    with pytest.raises(RuntimeError, match="All 2 test episodes failed.*broken"):
        scored(None, None, questions=2)


def test_one_question_has_no_standard_error(scored):
    metrics = scored(1.0, questions=1).metrics
    assert metrics["eval/exact_match_share"] == 1.0 and math.isnan(metrics["eval/stderr_share"])


def test_with_a_reward_of_ones_own_exact_match_is_not_the_outcome(scored):
    metrics = scored(-3.0, 0.0, 2.0, -1.0, right=(1.0, 0.0, 1.0, 1.0), reward="own:length").metrics
    for head in ("eval/", "eval/greedy_"):
        assert metrics[f"{head}exact_match_share"] == 0.75
        assert metrics[f"{head}stderr_share"] == pytest.approx(math.sqrt(0.75 / 3 / 4))
        assert metrics[f"{head}outcome_share"] == pytest.approx(-0.5)
        assert metrics[f"{head}outcome_stderr_share"] == pytest.approx(math.sqrt(13 / 3 / 4))


def test_an_answer_that_no_episode_came_to_matches_nothing(scored):
    assert scored(2.0, 1.0, questions=2, reward="own:f").metrics["eval/exact_match_share"] == 0.0


def test_a_task_that_tells_no_exact_match_has_none(scored, monkeypatch):
    monkeypatch.delattr("trainer.tasks.facts.Facts.outcomes")
    metrics = scored(-3.0, 0.0, questions=2, reward="own:length").metrics
    assert metrics["eval/outcome_share"] == -1.5
    assert not [name for name in metrics if "match" in name or name == "eval/stderr_share"]


def test_without_a_reward_of_ones_own_the_outcome_has_no_second_name(scored):
    assert not [name for name in scored(1.0, 0.0, questions=2).metrics if "outcome" in name]


def test_pass_at_k_is_a_metric_from_two_samples_on(scored):
    metrics = scored(1.0, 0.0, 0.0, 0.0, questions=2, samples=2).metrics
    assert metrics["eval/pass_at_2_share"] == 0.5
    assert metrics["eval/num_questions_count"] == 2  # of two samples each
    assert not [name for name in scored(1.0, 0.0, questions=2).metrics if "pass" in name]


def test_samples_are_different_and_the_first_ones_do_not_depend_on_their_number(
    policy, config, parity
):
    few = changed(config, ["rollout.temperature=2"])
    many = changed(few, ["evaluation.samples=3"])
    one = evaluate(make_rollout(policy, few), few)
    found = evaluate(make_rollout(policy, many), many)
    size = len(evaluation_tasks(many))
    sampled = [row for row in found.evaluations if row["decoding"] == SAMPLED]
    assert sampled[:size] == [row for row in one.evaluations if row["decoding"] == SAMPLED]
    assert [row["sample"] for row in sampled] == [0] * size + [1] * size + [2] * size
    shapes = [[row["sampled"] for row in sampled if row["sample"] == k] for k in range(3)]
    assert shapes[0] != shapes[1] or shapes[1] != shapes[2]
    greedy = [[row for row in one.evaluations if row["decoding"] == GREEDY] for one in (one, found)]
    assert greedy[0] == greedy[1] and len(greedy[0]) == size
