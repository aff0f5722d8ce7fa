"""Evaluation: what its shares are over."""

import dataclasses

import numpy as np

from trainer.evaluate import evaluate
from twinstats.episodes import Episode, Task


class Played:
    """A rollout whose test episodes are given."""

    def __init__(self, outcomes):
        task = Task("t", {"parts": 2})
        self.episodes = [
            Episode(task, 0, row, (), outcome, True, False, success=outcome == 1.0)
            for row, outcome in enumerate(outcomes)
        ]

    def evaluate(self, tasks, step, *, temperature):
        return self.episodes


def test_episodes_that_failed_are_left_out_and_counted():
    found, episodes = evaluate(Played([1.0, None, 0.5]), [], 0)
    assert (found.exact_match, found.all_right) == (0.75, 0.5)
    assert found.stderr == np.std([1.0, 0.5], ddof=1) / np.sqrt(2)
    assert (found.num_questions, found.num_failed, len(episodes)) == (4, 1, 3)


def test_where_all_failed_nothing_is_known():
    found, _ = evaluate(Played([None, None]), [], 0)
    known = dataclasses.asdict(found)
    assert (known.pop("num_questions"), known.pop("num_failed")) == (0, 2)
    assert all(np.isnan(value) for value in known.values())
