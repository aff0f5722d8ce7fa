"""Messages of a chat, and how they become the text that a model reads.

Tasks that chat are given a `Format`; a tokenizer's own template is one (`trainer.chat_template`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, str]
"""One message: its `role` (system, user, assistant, tool) and its `content`."""

Tool = Mapping[str, Any]
"""A function that the model may call, as a JSON schema in OpenAI's form."""


class Format(Protocol):
    """How a chat is written down. A turn is the model's own text, what ended it included."""

    @property
    def ends(self) -> tuple[str, ...]:
        """Tokens that end the model's message."""
        ...

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """All that stands before the first turn."""
        ...

    def following(self, turn: str, role: str, content: str) -> str:
        """What comes between a turn and the next one, if a message answers it."""
        ...

    def resuming(self, turn: str) -> str:
        """What comes after a turn so that the model's own message goes on; often nothing."""
        ...

    def plain(self, content: str) -> str:
        """A text that nobody means as control tokens, without any."""
        ...

    def cut(self, content: str, num_tokens: int) -> str:
        """The start of a text that has at most so many tokens."""
        ...


class Plain:
    """No format: texts, one under the other. For tasks that are looked at without a policy."""

    ends: tuple[str, ...] = ()

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The contents."""
        return "\n".join(message["content"] for message in messages)

    def following(self, turn: str, role: str, content: str) -> str:
        """The content on lines of its own."""
        return f"\n{content}\n"

    def resuming(self, turn: str) -> str:
        """Nothing."""
        return ""

    def plain(self, content: str) -> str:
        """The text: there are no control tokens."""
        return content

    def cut(self, content: str, num_tokens: int) -> str:
        """The first characters: there are no tokens."""
        return content[:num_tokens]
