"""Evaluation: what is played, and what its metrics are."""

import math
from dataclasses import replace

import pytest

from trainer.config import changed
from trainer.evaluation.evaluate import evaluate, evaluation_tasks
from trainer.evaluation.scores import GREEDY, SAMPLED
from trainer.setup import make_rollout
from twinstats.episodes import Episode


@pytest.fixture
def scored(config):
    """Evaluates episodes whose outcomes are given, in order of their rows."""

    class Played:
        def __init__(self, outcomes):
            self.outcomes = outcomes

        def evaluate(self, tasks, step, *, temperature):
            played = zip(tasks, self.outcomes, strict=False)
            return [
                Episode(task, 0, row, (), one, True, False, one == 1.0, info={"reason": "broken"})
                for row, (task, one) in enumerate(played)
            ]

    def scored(*outcomes, **settings):
        own = replace(config, evaluation=replace(config.evaluation, **settings))
        return evaluate(Played(outcomes), own)

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
