"""A tokenizer's own chat template, in pieces: what stands before a turn, and what between two.

What was sampled is never rendered again, so nothing is ever tokenised twice: the pieces are found
by rendering a stand-in for the model's message. Texts of users and documents cannot become control
tokens: a space breaks the name of each special token in them, `< |im_end|>`. What a model wrote
reaches the environment as text and comes back only through documents that were found with it.
"""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from trainer.tasks.messages import Message, Tool
from twinstats.errors import UsageError

_STAND_IN = "what the assistant says"
_ASKED = {"role": "user", "content": "what the user says"}


class ChatTemplate:
    """A `Format`: that of a tokenizer's template.

    Args:
        tokenizer: Has a template that shows an assistant's message as it is.

    Raises:
        UsageError: It has none, or no token that ends a message.

    Attributes:
        ends: The token with which the template ends a message, and the tokenizer's own end of
            text; a turn ends with either.
        takes_tools: Whether the template shows tools.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if not tokenizer.chat_template:
            raise UsageError(
                "This task needs a chat template, and the tokenizer of the model has none: take "
                "a model whose tokenizer_config.json has a `chat_template`."
            )
        self._tokenizer = tokenizer
        self._special = sorted(
            (one.content for one in tokenizer.added_tokens_decoder.values() if one.special),
            key=len,
            reverse=True,
        )
        self.takes_tools = "tools" in str(tokenizer.chat_template)
        closing = self._after_turn([])
        ends = [token for token in self._special if closing.startswith(token)]
        self._end = ends[0] if ends else ""
        found = dict.fromkeys((self._end, tokenizer.eos_token))
        self.ends: tuple[str, ...] = tuple(token for token in found if token)
        if not self.ends:
            raise UsageError("The tokenizer must have a token that ends a message, and has none.")
        self._closing = closing
        asked = self._render([_ASKED])
        self._prompt = self._render([_ASKED], prompt=True).removeprefix(asked)

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """All that stands before the first turn: messages, tools, and the assistant's heading.

        Raises:
            UsageError: Tools that the template does not show.
        """
        if tools and not self.takes_tools:
            raise UsageError("The tokenizer's chat template must take tools: `task.format=tags`.")
        return self._render([self._plain_message(one) for one in messages], tools, prompt=True)

    def following(self, turn: str, role: str, content: str) -> str:
        """The end of the model's message as far as it is missing, the answer, and its heading."""
        return self.between(turn, [{"role": role, "content": content}])

    def between(self, turn: str, messages: Sequence[Message]) -> str:
        """The same for several messages, or none, before the model's next."""
        answers = [self._plain_message(message) for message in messages]
        return self._missing(turn, self._after_turn(answers, prompt=True))

    def resuming(self, turn: str) -> str:
        """Nothing where a turn left its message open; else the heading of another message."""
        if not turn.endswith(self.ends):
            return ""
        return self._missing(turn, self._closing) + self._prompt

    def plain(self, content: str) -> str:
        """The text with a space in the name of each special token."""
        for token in self._special:
            content = content.replace(token, f"{token[:1]} {token[1:]}")
        return content

    def cut(self, content: str, num_tokens: int) -> str:
        """The start of a text that was so many tokens long in it."""
        encoded = self._tokenizer(content, add_special_tokens=False, return_offsets_mapping=True)
        if len(encoded["input_ids"]) <= num_tokens:
            return content
        return content[: encoded["offset_mapping"][num_tokens - 1][1]]

    def _missing(self, turn: str, after: str) -> str:
        is_closed = bool(self._end) and turn.endswith(self._end)
        return after.removeprefix(self._end) if is_closed else after

    def _after_turn(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        said = {"role": "assistant", "content": _STAND_IN}
        rendered = self._render([_ASKED, said, *messages], prompt=prompt)
        before, found, after = rendered.partition(_STAND_IN)
        if not found:
            raise UsageError("The chat template must show an assistant's message as it is.")
        return after

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, prompt: bool = False
    ) -> str:
        rendered: Any = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=prompt,
        )
        return str(rendered)

    def _plain_message(self, message: Message) -> Message:
        return {**message, "content": self.plain(message["content"])}
