import numpy as np
import pytest

from trainer.step_log import play_metrics
from twinstats.episodes import Credit, Episode, Group, Task, Turn


def group(*outcomes):
    turns = [Turn((1,), -1.0, None, 1, "s")]
    task = Task("t")
    episodes = [
        Episode(task, 0, row, turns, outcome, True, False) for row, outcome in enumerate(outcomes)
    ]
    return Group(task, episodes, 0, 0)


def test_a_method_that_says_nothing_of_its_groups_is_logged_all_the_same():
    groups = [group(1.0, 0.0), group(1.0, 1.0), group(0.5, None)]
    credits = [
        Credit(episodes=one.episodes, values=[np.zeros(1)] * 2, info={"forks": []})
        for one in groups
    ]
    metrics = play_metrics(groups, credits)
    assert metrics["credit/informative_groups_share"] == pytest.approx(1 / 3)
    assert metrics["train/failed_count"] == 1
