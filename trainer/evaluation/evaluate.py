"""Evaluation on test questions: greedy once, and several samples of each.

Leaves out what the answers come to in numbers (`scores`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.config import Config
from trainer.evaluation.scores import (
    EXACT_MATCH,
    GREEDY,
    OUTCOME,
    SAMPLED,
    answer_rows,
    evaluation_rows,
    score_rows,
)
from trainer.rollout import Rollout
from trainer.tasks import ENVIRONMENTS
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
        match: The score that is the exact match: "outcome" where the task itself pays it,
            "exact_match" where a function of the user's pays; null where no task tells it.
    """

    evaluations: list[Row]
    answers: list[Row]
    scores: list[Row]
    match: str | None

    @property
    def tables(self) -> Mapping[str, list[Row]]:
        """All rows, by the name of their table."""
        return {"evaluations": self.evaluations, "answers": self.answers, "scores": self.scores}

    @property
    def metrics(self) -> dict[str, float]:
        """The scores over all questions, by name; NaN where every episode failed.

        eval/exact_match_share is absent where no task tells it (a chat), eval/outcome_share where
        the outcome is the exact match. eval/all_right_share is the share of episodes with every
        part right. These are of samples. Questions are counted once, failed episodes of samples
        each for itself.
        """
        found = {
            **self._means(SAMPLED),
            "eval/all_right_share": self._score(SAMPLED, "success"),
            **self._means(GREEDY),
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

    def _means(self, decoding: str) -> dict[str, float]:
        """Exact match and outcome, each where it is a number of its own, with standard errors."""
        names: dict[str, tuple[str, str]] = {}
        if self.match is not None:
            names[self.match] = (EXACT_MATCH, "eval/stderr_share")
        if self.match != "outcome":
            names["outcome"] = (OUTCOME, "eval/outcome_stderr_share")
        head = "eval/greedy_" if decoding == GREEDY else "eval/"
        return {
            name.replace("eval/", head): self._score(decoding, metric, column)
            for metric, both in names.items()
            for name, column in zip(both, ("value", "stderr"), strict=True)
        }

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
    tells = getattr(ENVIRONMENTS[config.task.name], "outcomes", ())
    own = "exact_match" if "exact_match" in tells else None
    for decoding, samples, temperature in (
        (SAMPLED, config.evaluation.samples, None),
        (GREEDY, 1, 0.0),
    ):
        episodes = rollout.evaluate(tasks * samples, 0, temperature=temperature)
        _refuse_all_failed(episodes)
        evaluations += evaluation_rows(episodes, decoding, len(tasks))
        answers += answer_rows(episodes, decoding, len(tasks), tells)
    return Evaluation(
        evaluations=evaluations,
        answers=answers,
        scores=score_rows(evaluations, answers),
        match=own if config.reward else "outcome",
    )


def _refuse_all_failed(episodes: Sequence[Episode]) -> None:
    if all(episode.outcome is None for episode in episodes):
        raise RuntimeError(
            f"All {len(episodes)} test episodes failed, the first one because: "
            f"{episodes[0].info['reason']}"
        )
