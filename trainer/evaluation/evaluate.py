"""Evaluation on test questions: greedy once, and several samples of each.

Leaves out what the answers come to in numbers (`scores`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.config import Config
from trainer.evaluation.scores import GREEDY, SAMPLED, answer_rows, evaluation_rows, score_rows
from trainer.rollout import Rollout
from trainer.tasks.choice import source_of
from twinstats.episodes import Episode, Task
from twinstats.errors import UsageError
from twinstats.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Answers on the test split, as rows of the log; `scores` says what they came to.

    Attributes:
        evaluations: One row an episode.
        answers: One row a question of each episode.
        scores: Means with intervals; episodes that failed to play are left out of them.
    """

    evaluations: list[Row]
    answers: list[Row]
    scores: list[Row]

    @property
    def tables(self) -> Mapping[str, list[Row]]:
        """All rows, by the name of their table."""
        return {"evaluations": self.evaluations, "answers": self.answers, "scores": self.scores}

    @property
    def metrics(self) -> dict[str, float]:
        """The scores over all questions, by name; NaN where every episode failed.

        eval/exact_match_share is the mean outcome, eval/all_right_share the share of episodes with
        every part right, both of samples. Questions are counted once, failed episodes of samples
        each for itself.
        """
        found = {
            "eval/exact_match_share": self._score(SAMPLED, "outcome"),
            "eval/stderr_share": self._score(SAMPLED, "outcome", "stderr"),
            "eval/all_right_share": self._score(SAMPLED, "success"),
            "eval/greedy_exact_match_share": self._score(GREEDY, "outcome"),
            "eval/greedy_stderr_share": self._score(GREEDY, "outcome", "stderr"),
            "eval/f1_share": self._score(SAMPLED, "f1"),
            "eval/greedy_f1_share": self._score(GREEDY, "f1"),
        }
        sampled = [row for row in self.evaluations if row["decoding"] == SAMPLED]
        played = {row["episode"] for row in sampled if row["outcome"] is not None}
        own = [row for row in self.answers if row["decoding"] == SAMPLED]
        asked = {(row["task"], row["part"]) for row in own if row["episode"] in played}
        counts = {
            "eval/num_questions_count": len(asked),
            "eval/failed_count": len(sampled) - len(played),
        }
        return found | self._pass_at_k() | counts

    def _score(self, decoding: str, metric: str, column: str = "value") -> float:
        for row in self.scores:
            if (row["decoding"], row["metric"], row["kind"]) == (decoding, metric, "all"):
                value = row.get(column)
                return math.nan if value is None else value
        return math.nan

    def _pass_at_k(self) -> dict[str, float]:
        names = {row["metric"] for row in self.scores if row["metric"].startswith("pass@")}
        return {
            f"eval/pass_at_{name.removeprefix('pass@')}_share": self._score(SAMPLED, name)
            for name in sorted(names - {"pass@1"})
        }


def evaluation_tasks(config: Config) -> list[Task]:
    """The first test rows that hold at least `evaluation.questions` questions, always the same.

    Raises:
        UsageError: There are not so many questions.
    """
    parts, questions = config.task.parts, config.evaluation.questions
    rows = source_of(config.task).test(key="evaluation")
    count = -(-questions // parts)
    if count > len(rows):
        raise UsageError(
            f"`evaluation.questions` must be at most {len(rows) * parts}, the test questions that "
            f"there are in episodes of {parts}, got {questions}."
        )
    return [Task(row.id, row.info) for row in rows[:count]]


def evaluate(rollout: Rollout, config: Config) -> Evaluation:
    """Plays every test task `evaluation.samples` times and once greedily.

    The noise is the same at every call, and that of the first samples does not depend on how many
    there are.

    Raises:
        UsageError: There are not so many questions.
        RuntimeError: All episodes failed; the first reason is named.
    """
    tasks = evaluation_tasks(config)
    evaluations, answers = [], []
    for decoding, samples, temperature in (
        (SAMPLED, config.evaluation.samples, None),
        (GREEDY, 1, 0.0),
    ):
        episodes = rollout.evaluate(tasks * samples, 0, temperature=temperature)
        _refuse_all_failed(episodes)
        evaluations += evaluation_rows(episodes, decoding, len(tasks))
        answers += answer_rows(episodes, decoding, len(tasks))
    return Evaluation(
        evaluations=evaluations, answers=answers, scores=score_rows(evaluations, answers)
    )


def _refuse_all_failed(episodes: Sequence[Episode]) -> None:
    if all(episode.outcome is None for episode in episodes):
        raise RuntimeError(
            f"All {len(episodes)} test episodes failed, the first one because: "
            f"{episodes[0].info['reason']}"
        )
