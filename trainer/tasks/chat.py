"""The task `chat`: one reply to a prompt, scored by a function of the user's (`reward`).

A prompt that is a text is shown as it is; messages are put into the chat template.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from trainer.tasks.environment import Row, Step
from trainer.tasks.messages import Format, Plain


class Chat:
    """One reply. A row is one of `chat_rows.chat_row`; its reward comes from elsewhere: here 0.

    Args:
        form: Of the chat.
    """

    max_turns: ClassVar[int] = 1

    def __init__(self, *, form: Format | None = None) -> None:
        self._form = form or Plain()

    @property
    def stop(self) -> tuple[str, ...]:
        """Tokens that end the reply."""
        return self._form.ends

    def reset(self, row: Row, noise: Any = None) -> str:
        """The prompt."""
        prompt = row["prompt"]
        return str(prompt) if isinstance(prompt, str) else self._form.opening(prompt)

    def step(self, text: str, noise: Any = None) -> Step:
        """Takes the reply; the info tells whether it was cut (`truncated`), not if it is right."""
        is_cut = bool(self.stop) and not text.endswith(self.stop)
        return Step("", 0.0, True, {"part": 0, "won": None, "truncated": is_cut})

    def slot(self, history: Sequence[str]) -> int:
        """The number of turns before: 0."""
        return len(history)
