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
    """Answers on the test split.

    Attributes:
        exact_match: Share of questions answered right.
        stderr: Its standard error over episodes, whose parts are not independent; NaN for one.
        num_questions: Questions asked.
        all_right: Share of episodes with every part right.
    """

    exact_match: float
    stderr: float
    num_questions: int
    all_right: float


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
    shares = np.array([episode.outcome for episode in episodes], np.float64)
    right = np.array([bool(episode.success) for episode in episodes])
    return (
        Evaluation(
            exact_match=float(shares.mean()),
            stderr=_stderr(shares),
            num_questions=sum(int(task.info["parts"]) for task in tasks),
            all_right=float(right.mean()),
        ),
        episodes,
    )


def _stderr(values: np.ndarray) -> float:
    count = len(values)
    return float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")
