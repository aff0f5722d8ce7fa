"""The task `search_qa`: open questions and a search, in the formats of Search-R1 and verl.

A turn is one search or one answer (`tool_calls` says how either is written). After four turns
without an answer there is a last one, whose search is not played. Nothing is random: `noise` is
never read, and what a search found is kept (`passages`), so twins see the same.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from trainer.tasks.answers import Answer
from trainer.tasks.environment import Row, Step, Steps
from trainer.tasks.facts import Action
from trainer.tasks.messages import Format, Plain
from trainer.tasks.passages import Search
from trainer.tasks.scoring import score
from trainer.tasks.tool_calls import FORMATS

MAX_ACTIONS = 4  # Search-R1's max_turns in its paper's scripts; train_grpo.sh has 2
TOP_K = 3


class SearchQa:
    """One episode of the task. An instance is cheap, plays one episode at a time, and may be reset.

    A row is one of `chat_rows.search_row`. The reward is the answer's exact match, paid on the turn
    that ends the episode. Of the model's own turns alone an answer is read: tags of prompts and
    passages are not its.

    Args:
        search: Finds passages.
        form: Of the chat.
        calls: How the model calls the search: a value of `task.format`.
    """

    max_turns: ClassVar[int] = MAX_ACTIONS + 1
    outcomes: ClassVar[tuple[str, ...]] = ("exact_match", "f1", "cover_match")

    def __init__(self, *, search: Search, form: Format | None = None, calls: str = "tags") -> None:
        self._search, self._form = search, form or Plain()
        self._calls = FORMATS[calls]
        self._golds: Sequence[str] = ()
        self._source, self._turn = "", self.max_turns

    @property
    def stop(self) -> tuple[str, ...]:
        """Tokens that end a turn."""
        return self._form.ends

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end a turn, whatever their tokens."""
        return self._calls.stop_texts

    def reset(self, row: Row, noise: Any = None) -> str:
        """The row's messages, or an instruction and its question where they explain no call."""
        self._golds, self._source, self._turn = row["golds"][0], row["data_source"], 0
        return self._calls.opening(self._form, row["prompt"], row["questions"][0])

    def step(self, text: str, noise: Any = None) -> Step:
        """Plays one turn.

        The info tells `action`, `turn`, `query` and `documents` (ids) of a search,
        `is_illegible`; at the end `answer`, `exact_match`, `f1`, `cover_match` and
        `is_no_answer`; and always `won` and `truncated` (no answer in the last turn).

        Raises:
            ValueError: The episode is over, or was never reset.
        """
        if self._turn >= self.max_turns:
            raise ValueError("`step` must follow a `reset` and not the end of the episode.")
        action = self._calls.read(text)
        info: dict[str, Any] = {
            "action": action.kind,
            "part": 0,
            "turn": self._turn,
            "is_illegible": action.kind == "illegible",
            "won": False,
            "truncated": False,
        }
        self._turn += 1
        if action.kind == "answer" or self._turn == self.max_turns:
            return self._end(action, info)
        return Step(self._reaction(action, text, info), 0.0, False, info)

    def slot(self, history: Sequence[str]) -> int:
        """The number of turns before."""
        return len(history)

    def privileged(self, row: Row) -> str:
        """The question and its first right answer."""
        return f"Question: {row['questions'][0]}\nAnswer: {row['golds'][0][0]}\n"

    def answers(self, row: Row, history: Sequence[str]) -> list[Answer]:
        """The right answers."""
        return [Answer("<answer>", gold) for gold in row["golds"][0]]

    def ending(self, row: Row, steps: Steps) -> str:
        """What was answered, and whether that was right."""
        return "".join(
            f"Question: {row['questions'][0]}\nAnswer: {info['answer'] or 'none'}\n"
            f"It was {'right' if info['won'] else 'wrong'}.\n"
            for info in steps
            if "answer" in info
        )

    def _reaction(self, action: Action, text: str, info: dict[str, Any]) -> str:
        if action.kind != "search":
            return self._calls.refused(self._form, text)
        found = self._search.passages(action.content, TOP_K)
        info |= {"query": action.content, "documents": [passage.id for passage in found]}
        return self._calls.found(self._form, text, found)

    def _end(self, action: Action, info: dict[str, Any]) -> Step:
        self._turn = self.max_turns
        answer = action.content if action.kind == "answer" else None
        scored = score(answer, self._golds, is_hotpot=self._source == "hotpotqa")
        info |= {
            "answer": answer,
            "exact_match": scored.exact_match,
            "f1": scored.f1,
            "cover_match": scored.cover,
            "is_no_answer": scored.is_no_answer,
            "won": scored.exact_match == 1.0,
            "truncated": answer is None,
        }
        return Step("", scored.exact_match, True, info)
