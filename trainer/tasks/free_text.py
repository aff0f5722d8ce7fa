"""The task `text`: questions over real facts, answered in a few lines of free text.

For models that are not trained to play it. Text of an episode, everything the model sees or writes
(one question; a worked example in the same form stands before it):

    Facts: Moundou is a city of Chad. The currency of Qatar is QAR. The currency of Chad is XAF. ...
    Question: What is the currency of the country of Moundou?
    Moundou is a city of Chad.
    The currency of Chad is XAF.
    Answer: XAF

A turn is one line, ended by its newline or by the limit on tokens (the newline is then supplied). A
part ends with a line that begins with "Answer:", or after `max_turns` lines; its last line is the
answer in any case. The facts are what the question needs, among those of a question like it about
another country. Nothing is random: `noise` is never read.
"""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, ClassVar

from trainer.tasks.environment import Row, Step
from trainer.tasks.questions import Question, question_by_id, split_questions
from trainer.tasks.scoring import cover_match, score
from twinstats.episodes import SLOTS_PER_PART

ANSWER = "Answer:"


def support(question: Question) -> tuple[str, ...]:
    """The facts that answer a question, in the order in which they are needed."""
    last = f"The {question.relation} of {question.country} is {question.golds[0]}."
    if question.num_hops == 1:
        return (last,)
    kind = "the capital" if question.entry == "capital" else "a city"
    return (f"{question.subject} is {kind} of {question.country}.", last)


def render_question(question: Question) -> str:
    """The facts and the question, up to where the first line is to be written."""
    facts = [*support(question), *support(_distractor(question))]
    facts.sort(key=lambda fact: _rank(question.id, fact))
    return f"Facts: {' '.join(facts)}\nQuestion: {question.text}\n"


def render_lines(question: Question) -> str:
    """The lines that answer a question well."""
    return "\n".join((*support(question), f"{ANSWER} {question.golds[0]}\n"))


def read_line(text: str) -> tuple[str, bool]:
    """A turn's line without what follows its newline, and whether it says that it answers."""
    line = text.split("\n")[0].strip()
    is_answer = line.lower().startswith(ANSWER.lower())
    return (line[len(ANSWER) :].strip() if is_answer else line), is_answer


class FreeText:
    """One episode of the task. An instance is cheap, plays one episode at a time, and may be reset.

    A row is one of `trainer.tasks.rows`. Three outcomes are told of every part: `exact_match` and
    `f1` of its last line against the right answers, and `last_line`, its agreement with the lines
    before: 1 if what it says occurs in one of them as whole words, normalised alike. The reward of
    a part is its exact match over the number of parts, paid on the turn that ends it.
    """

    stop: ClassVar[tuple[str, ...]] = ("\n",)
    max_turns: ClassVar[int] = 3
    can_hang: ClassVar[bool] = False
    outcomes: ClassVar[tuple[str, ...]] = ("exact_match", "f1", "last_line")

    def __init__(self) -> None:
        self._questions: tuple[Question, ...] = ()
        self._part = self._num_right = 0
        self._lines: list[str] = []

    def reset(self, row: Row, noise: Any = None) -> str:
        """A worked example, then the first question of `row`."""
        self._questions = tuple(map(question_by_id, row["question_ids"]))
        self._part = self._num_right = 0
        self._lines = []
        example = _example(self._questions)
        shown = render_question(example) + render_lines(example)
        return f"{shown}\n{render_question(self._questions[0])}"

    def step(self, text: str, noise: Any = None) -> Step:
        """Plays one line.

        The info tells `part`, `turn` (in the part), `won` (every part right) and `truncated` (the
        last part ended without saying that it answers); when a part ends also `answer`,
        `exact_match`, `f1` and `last_line`.

        Raises:
            ValueError: The episode is over, or was never reset.
        """
        if self._part >= len(self._questions):
            raise ValueError("`step` must follow a `reset` and not the end of the episode.")
        line, is_answer = read_line(text)
        info: dict[str, Any] = {"part": self._part, "turn": len(self._lines)}
        info |= {"won": False, "truncated": False}
        self._lines.append(line)
        newline = "" if "\n" in text else "\n"
        if not is_answer and len(self._lines) < self.max_turns:
            return Step(newline, 0.0, False, info)
        scores = self._scores()
        info |= {"answer": line, **scores}
        reward = scores["exact_match"] / len(self._questions)
        self._num_right += scores["exact_match"] == 1.0
        self._part, self._lines = self._part + 1, []
        if self._part < len(self._questions):
            shown = f"{newline}\n{render_question(self._questions[self._part])}"
            return Step(shown, reward, False, info)
        info |= {"won": self._num_right == self._part, "truncated": not is_answer}
        return Step("", reward, True, info)

    def slot(self, history: Sequence[str]) -> int:
        """64 times the part plus the line in the part, of the turn that follows `history`."""
        part = turn = 0
        for text in history:
            turn += 1
            if turn == self.max_turns or read_line(text)[1]:
                part, turn = part + 1, 0
        return SLOTS_PER_PART * part + turn

    def _scores(self) -> dict[str, float]:
        *before, answer = self._lines
        scored = score(answer, self._questions[self._part].golds)
        agreed = max((cover_match(line, answer) for line in before), default=0.0)
        return {"exact_match": scored.exact_match, "f1": scored.f1, "last_line": agreed}


@cache
def _distractor(question: Question) -> Question:
    """A question for the same relation, by the same kind of way, about another country."""
    alike = [
        other
        for other in split_questions(question.split)
        if (other.relation, other.entry) == (question.relation, question.entry)
        and other.country != question.country
        and other.golds != question.golds
    ]
    return min(alike, key=lambda other: _rank(question.id, other.id))


def _example(asked: Sequence[Question]) -> Question:
    """A train question that is not asked, with as many hops as the first one that is."""
    alike = (one for one in _mixed() if one.num_hops == asked[0].num_hops)
    return next(question for question in alike if question not in asked)


@cache
def _mixed() -> tuple[Question, ...]:
    """The train questions in a fixed mixed order."""
    return tuple(sorted(split_questions("train"), key=lambda one: _rank("example", one.id)))


def _rank(key: str, name: str) -> bytes:
    return blake2b(f"{key}/{name}".encode(), digest_size=8).digest()
