"""Two ways to call a search: tags in one message (Search-R1), and tool calls (Hermes, Qwen).

tags: the model writes `<search>query</search>` and its message goes on after what was found,
`<information>...</information>`. hermes: a message of the model ends with
`<tool_call>{"name": "search", "arguments": {"query": ...}}</tool_call>`, and a message of the role
`tool` answers it, which Qwen's template puts into `<tool_response>`. Both answer by
`<answer>...</answer>`. The first whole call or answer of a turn counts.
"""

import json
import re
from collections.abc import Sequence
from typing import Protocol

from trainer.tasks.facts import Action
from trainer.tasks.messages import Format, Message
from trainer.tasks.passages import Passage

ILLEGIBLE = Action("illegible", "")
MAX_SHOWN_TOKENS = 500  # of passages: Search-R1's max_obs_length


class Calls(Protocol):
    """How a model calls, and how it is answered.

    `stop_texts` end a turn.
    """

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end a turn."""
        ...

    def opening(self, form: Format, messages: Sequence[Message], question: str) -> str:
        """All that stands before the first turn."""
        ...

    def read(self, turn: str) -> Action:
        """What a turn asks for: "search", "answer" or "illegible"."""
        ...

    def found(self, form: Format, turn: str, passages: Sequence[Passage]) -> str:
        """What follows a search."""
        ...

    def refused(self, form: Format, turn: str) -> str:
        """What follows an illegible turn."""
        ...


def shown(form: Format, passages: Sequence[Passage]) -> str:
    r"""Passages as Search-R1 shows them: `Doc 1(Title: "...") text`, one a line.

    The title is the contents' first line, quotes kept. At most 500 tokens in all, and no control
    tokens.
    """
    told = []
    for number, passage in enumerate(passages, start=1):
        title, _, text = passage.contents.partition("\n")
        told.append(f"Doc {number}(Title: {title}) {text}\n")
    return form.cut(form.plain("".join(told).strip()), MAX_SHOWN_TOKENS)


class TagCalls:
    """Search-R1's tags."""

    stop_texts = ("</search>", "</answer>")
    _action = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
    # what Search-R1 shows, word for word: models are trained on it
    _invalid = (
        "\nMy previous action is invalid. If I want to search, I should put the query between "
        "<search> and </search>. If I want to give the final answer, I should put the answer "
        "between <answer> and </answer>. Let me try again.\n"
    )
    _instruction = (
        "Answer the question below. Think inside <think> and </think> whenever you learned "
        "something new. To look something up, write <search> query </search>; what is found will "
        "stand between <information> and </information>. Search as often as you need. When you "
        "know enough, give nothing but the answer inside <answer> and </answer>.\n"
        "Question: {question}\n"
    )

    def opening(self, form: Format, messages: Sequence[Message], question: str) -> str:
        """The row's messages if they speak of `<search>`; else an instruction and the question."""
        return form.opening(_instructed(messages, "<search>", self._instruction, question))

    def read(self, turn: str) -> Action:
        """The first whole tag."""
        found = self._action.search(turn)
        return Action(found[1], found[2].strip()) if found else ILLEGIBLE

    def found(self, form: Format, turn: str, passages: Sequence[Passage]) -> str:
        """The passages, within the same message."""
        told = f"\n\n<information>{shown(form, passages)}</information>\n\n"
        return form.resuming(turn) + told

    def refused(self, form: Format, turn: str) -> str:
        """Search-R1's notice, within the same message."""
        return form.resuming(turn) + self._invalid


class HermesCalls:
    """Tool calls in the form of Hermes and Qwen, tools shown by the chat template."""

    stop_texts: tuple[str, ...] = ()
    _action = re.compile(
        r"<tool_call>(?P<call>.*?)</tool_call>|<answer>(?P<answer>.*?)</answer>", re.DOTALL
    )
    _tool = {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Finds passages of an encyclopedia.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "What to look up."}},
                "required": ["query"],
            },
        },
    }
    _invalid = (
        "That was no call of `search` and no answer. Call the tool with a query, or give the "
        "answer inside <answer> and </answer>."
    )
    _instruction = (
        "Answer the question below. Think inside <think> and </think> whenever you learned "
        "something new. Call the tool search as often as you need, once a message. When you know "
        "enough, give nothing but the answer inside <answer> and </answer>.\n"
        "Question: {question}\n"
    )

    def opening(self, form: Format, messages: Sequence[Message], question: str) -> str:
        """The row's messages if they speak of `<tool_call>`; else instruction and question."""
        told = _instructed(messages, "<tool_call>", self._instruction, question)
        return form.opening(told, [self._tool])

    def read(self, turn: str) -> Action:
        """The first whole call or answer; a call of something else than `search` is illegible."""
        found = self._action.search(turn)
        if found is None:
            return ILLEGIBLE
        if found["answer"] is not None:
            return Action("answer", found["answer"].strip())
        query = _query(found["call"])
        return ILLEGIBLE if query is None else Action("search", query)

    def found(self, form: Format, turn: str, passages: Sequence[Passage]) -> str:
        """A message of the tool."""
        return form.following(turn, "tool", shown(form, passages))

    def refused(self, form: Format, turn: str) -> str:
        """A message of the user."""
        return form.following(turn, "user", self._invalid)


FORMATS: dict[str, Calls] = {"tags": TagCalls(), "hermes": HermesCalls()}
"""By the values of `task.format`."""


def _instructed(
    messages: Sequence[Message], call: str, instruction: str, question: str
) -> Sequence[Message]:
    if any(call in message["content"] for message in messages):
        return messages
    own = [message for message in messages if message["role"] == "system"]
    if any(other in message["content"] for message in own for other in ("<search>", "<tool_call>")):
        own = []  # it explains the other way
    return [*own, {"role": "user", "content": instruction.format(question=question)}]


def _query(call: str) -> str | None:
    """The query of a call of `search`; null where it is none."""
    try:
        told = json.loads(call)
        query = told["arguments"]["query"] if told["name"] == "search" else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return query.strip() if isinstance(query, str) else None
