"""The task `facts`: multi-hop questions over real facts, a search tool, one question a part.

Text of an episode, everything the model sees or writes:

    <question>What is the currency of the country of Moundou?</question>
    <search>country of Moundou</search><information>Moundou is a city of Chad</information>
    <search>currency of Chad</search><information>XAF is the currency of Chad</information>
    <answer>XAF</answer><question>...

(in one line). A turn is one search or one answer. A part ends with an answer, or after `max_turns`
turns without one; then the next question follows. Nothing is random: `noise` is never read.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

from trainer.tasks import facts_needs
from trainer.tasks.answers import Answer
from trainer.tasks.environment import Row, Step, Steps, Tell
from trainer.tasks.questions import documents
from trainer.tasks.retriever import Document, Retriever
from trainer.tasks.scoring import Mode, extract, extract_answer, score
from twinstats.episodes import SLOTS_PER_PART

SPECIAL_TOKENS = (
    "<question>",
    "</question>",
    "<search>",
    "</search>",
    "<information>",
    "</information>",
    "<answer>",
    "</answer>",
)
NOTHING_FOUND = "nothing found"
ILLEGIBLE = "search or answer"
RIGHT, WRONG = "right", "wrong"
Metric = Literal["exact_match", "f1"]
METRICS: tuple[Metric, ...] = ("exact_match", "f1")


def render_question(text: str) -> str:
    """A question as the model sees it: the first text of a part."""
    return f"<question>{text}</question>"


def render_search(query: str) -> str:
    """A turn that searches."""
    return f"<search>{query}</search>"


def render_answer(answer: str) -> str:
    """A turn that answers."""
    return f"<answer>{answer}</answer>"


def render_information(text: str) -> str:
    """What a search (or an illegible turn) brings: a document's text, or a short notice."""
    return f"<information>{text}</information>"


class Action(NamedTuple):
    """What a turn asks for: `kind` is "search", "answer" or "illegible"."""

    kind: str
    content: str


def read_action(text: str) -> Action:
    """The action in the model's own text: its last answer if legible, else its last search.

    A text whose last answer tag is open is illegible, whatever stands before it.
    """
    answer = extract_answer(text)
    if answer is not None:
        return Action("answer", answer)
    query = extract(text, "search")
    if query is not None and "<answer>" not in text:
        return Action("search", query)
    return Action("illegible", "")


@cache
def retriever() -> Retriever:
    """The index over all documents, built once a process and shared by all instances."""
    return Retriever(documents())


class Facts:
    """One episode of the task. An instance is cheap, plays one episode at a time, and may be reset.

    A row holds `questions` (texts) and `golds` (for each question the right answers). Each part's
    reward is its exact match (or F1) over the number of parts, paid on the turn that ends it.
    """

    stop: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")
    max_turns: ClassVar[int] = 3
    can_hang: ClassVar[bool] = False
    outcomes: ClassVar[tuple[str, ...]] = METRICS
    needs: ClassVar[Mapping[str, Tell]] = facts_needs.NEEDS

    def __init__(self, *, metric: Metric = "exact_match", mode: Mode = "squad") -> None:
        """Rewards are paid by `metric` on texts normalised by `mode`; `won` is always exact.

        Raises:
            ValueError: `metric` is unknown.
        """
        if metric not in METRICS:
            raise ValueError(f"`metric` must be one of {', '.join(METRICS)}, got {metric!r}.")
        self._metric, self._mode = metric, mode
        self._index = retriever()
        self._questions: tuple[str, ...] = ()
        self._golds: tuple[tuple[str, ...], ...] = ()
        self._part = self._turn = self._num_right = 0

    @property
    def state(self) -> tuple[Any, ...]:
        """All that the future depends on, hashable: equal states continue equally."""
        return (self._questions, self._golds, self._part, self._turn, self._num_right)

    @property
    def num_parts(self) -> int:
        """Number of questions of the row in play."""
        return len(self._questions)

    def reset(self, row: Row, noise: Any = None) -> str:
        """Start `row`; return its first question.

        Raises:
            ValueError: The row has no question, or a question without a right answer.
        """
        questions, golds = tuple(row["questions"]), tuple(map(_listed, row["golds"]))
        if not questions or len(questions) != len(golds) or not all(golds):
            raise ValueError(
                "`row` must hold at least one question and right answers for each, "
                f"got {len(questions)} questions and {[len(right) for right in golds]} answers."
            )
        self._questions, self._golds = questions, golds
        self._part = self._turn = self._num_right = 0
        return render_question(questions[0])

    def step(self, text: str, noise: Any = None) -> Step:
        """Play one turn.

        The info tells `action`, `part`, `turn` (in the part), `document` (its id) and
        `is_truncated_query` of a search; `answer`, `exact_match` and `f1` when the part ends; and
        always `won` (every part right), `truncated` (the episode ended for want of turns),
        `is_illegible` and `is_no_answer`.

        Raises:
            ValueError: The episode is over, or was never reset.
        """
        if self._part >= len(self._questions):
            raise ValueError("`step` must follow a `reset` and not the end of the episode.")
        action = read_action(text)
        info: dict[str, Any] = {
            "action": action.kind,
            "part": self._part,
            "turn": self._turn,
            "is_illegible": action.kind == "illegible",
            "is_no_answer": False,
            "won": False,
            "truncated": False,
        }
        self._turn += 1
        observation = self._react(action, info)
        if action.kind != "answer" and self._turn < self.max_turns:
            return Step(observation, 0.0, False, info)
        return self._end_part(action, info)

    def slot(self, history: Sequence[str]) -> int:
        """64 times the part plus the turn in the part, of the turn that follows `history`.

        A function of the turns' texts alone, so twins line up again after a part of another length.
        """
        part = turn = 0
        for text in history:
            turn += 1
            if turn == self.max_turns or read_action(text).kind == "answer":
                part, turn = part + 1, 0
        return SLOTS_PER_PART * part + turn

    def privileged(self, row: Row) -> str:
        """Every question of the row, and its first right answer as a document would state it."""
        return "".join(
            render_question(text) + render_information(_stated(text, _listed(golds)[0]))
            for text, golds in zip(row["questions"], row["golds"], strict=True)
        )

    def answers(self, row: Row, history: Sequence[str]) -> list[Answer]:
        """The right answers to the question in play after `history`, or to the last question."""
        part = min(self.slot(history) // SLOTS_PER_PART, len(row["golds"]) - 1)
        return [Answer("<answer>", right) for right in _listed(row["golds"][part])]

    def ending(self, row: Row, steps: Steps) -> str:
        """Every question that came to its end: what was answered, and whether that was right."""
        return "".join(
            render_question(row["questions"][info["part"]])
            + render_answer(info["answer"] or "")
            + render_information(RIGHT if info["exact_match"] == 1.0 else WRONG)
            for info in steps
            if "answer" in info
        )

    def _react(self, action: Action, info: dict[str, Any]) -> str:
        if action.kind != "search":
            return render_information(ILLEGIBLE)
        hits = self._index.hits(action.content, 1)
        found: Document | None = next(iter(hits.documents), None)
        info["document"] = None if found is None else found.id
        info["is_truncated_query"] = hits.is_truncated
        return render_information(NOTHING_FOUND if found is None else found.text)

    def _end_part(self, action: Action, info: dict[str, Any]) -> Step:
        answer = action.content if action.kind == "answer" else None
        scored = score(answer, self._golds[self._part], mode=self._mode)
        is_right = scored.exact_match == 1.0
        info |= {"answer": answer, "exact_match": scored.exact_match, "f1": scored.f1}
        info["is_no_answer"] = scored.is_no_answer
        self._num_right += is_right
        self._part, self._turn = self._part + 1, 0
        done = self._part == len(self._questions)
        earned = scored.f1 if self._metric == "f1" else scored.exact_match
        reward = earned / len(self._questions)
        if not done:
            return Step(render_question(self._questions[self._part]), reward, False, info)
        info["won"] = self._num_right == len(self._questions)
        info["truncated"] = answer is None
        return Step("", reward, True, info)


def _stated(question: str, answer: str) -> str:
    """The sentence that answers "What is ...?"."""
    return f"{answer} is {question.removeprefix('What is ').removesuffix('?')}"


def _listed(right: str | Sequence[str]) -> tuple[str, ...]:
    return (right,) if isinstance(right, str) else tuple(right)
