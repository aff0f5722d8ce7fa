"""Task rows of `facts`: which questions an episode asks. Deterministic from an explicit key."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from trainer.tasks.facts_needs import constants
from trainer.tasks.questions import Question, question_by_id, split_questions


class TaskRow(NamedTuple):
    """Id and constants of one episode, as `twinstats.episodes.Task` takes them.

    The info is plain JSON: `split`, `parts` (their number), and one entry a part in `questions`,
    `golds`, `question_ids`, `relations` and `hops`; then `entities`, `predicate_graph` and `goal`
    (`facts_needs.constants`).
    """

    id: str
    info: dict[str, Any]


def row_of(asked: Sequence[Question]) -> TaskRow:
    """The row that asks these questions in this order; its id is theirs joined by `+`.

    Raises:
        ValueError: No question, or questions of both splits.
    """
    if len({question.split for question in asked}) != 1:
        raise ValueError(f"`asked` must hold questions of one split, got {len(asked)} questions.")
    ids = [question.id for question in asked]
    info = {
        "split": asked[0].split,
        "parts": len(asked),
        "questions": [question.text for question in asked],
        "golds": [list(question.golds) for question in asked],
        "question_ids": ids,
        "relations": [question.relation for question in asked],
        "hops": [question.num_hops for question in asked],
        **constants(asked),
    }
    return TaskRow("+".join(ids), info)


def row_by_id(row_id: str) -> TaskRow:
    """The row with this id: those of its questions joined by `+`.

    Raises:
        ValueError: An id of no question, or questions of both splits.
    """
    return row_of([question_by_id(part) for part in row_id.split("+")])


def task_rows(split: str, num_parts: int, *, key: str) -> tuple[TaskRow, ...]:
    """Rows of `num_parts` questions that use every question of the split at most once.

    The questions come in an order that depends on `key` alone (not on a generator's state, a worker
    or the platform); those left over at the end, fewer than `num_parts`, are not asked.

    Raises:
        ValueError: `num_parts` is below 1 or above the number of questions.
    """
    asked = sorted(split_questions(split), key=lambda question: _rank(key, question.id))
    if not 1 <= num_parts <= len(asked):
        raise ValueError(f"`num_parts` must be from 1 to {len(asked)}, got {num_parts}.")
    starts = range(0, len(asked) - num_parts + 1, num_parts)
    return tuple(row_of(asked[start : start + num_parts]) for start in starts)


def _rank(key: str, question_id: str) -> bytes:
    return blake2b(f"{key}/{question_id}".encode(), digest_size=16).digest()
