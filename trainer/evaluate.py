"""Evaluation on test questions: how many are answered right, with an interval over episodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.config import Config
from trainer.rollout import Rollout
from trainer.tasks.rows import task_rows
from twinstats.episodes import Episode, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Answers on the test split; episodes that failed to play are left out of all but a count.

    Attributes:
        exact_match: Share of questions answered right; NaN where every episode failed.
        stderr: Its standard error over episodes, whose parts are not independent; NaN for one.
        num_questions: Questions asked.
        all_right: Share of episodes with every part right; NaN where every episode failed.
        num_failed: Episodes that failed.
    """

    exact_match: float
    stderr: float
    num_questions: int
    all_right: float
    num_failed: int


def evaluation_tasks(config: Config) -> list[Task]:
    """The first test rows that hold at least `evaluation.questions` questions, always the same."""
    rows = task_rows("test", config.task.parts, key="evaluation")
    count = -(-config.evaluation.questions // config.task.parts)
    return [Task(row.id, row.info) for row in rows[:count]]


def evaluate(
    rollout: Rollout, tasks: Sequence[Task], step: int, *, temperature: float | None = None
) -> tuple[Evaluation, list[Episode]]:
    """Plays every test task once; the same noise at every call with the same step."""
    episodes = rollout.evaluate(tasks, step, temperature=temperature)
    scored = [episode for episode in episodes if episode.outcome is not None]
    shares = np.array([episode.outcome for episode in scored], np.float64)
    right = np.array([bool(episode.success) for episode in scored])
    return (
        Evaluation(
            exact_match=float(shares.mean()) if scored else float("nan"),
            stderr=_stderr(shares),
            num_questions=sum(int(episode.task.info["parts"]) for episode in scored),
            all_right=float(right.mean()) if scored else float("nan"),
            num_failed=len(episodes) - len(scored),
        ),
        episodes,
    )


def _stderr(values: np.ndarray) -> float:
    count = len(values)
    return float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")
