"""What a task knows of its right answers: an environment may say it, and some methods need it.

Everything is text for the policy to read, in the task's own wording; nothing here is shown to a
policy that plays.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from trainer.tasks.environment import Row, Steps


class Answer(NamedTuple):
    """A right answer as a turn gives it: the text that opens such a turn, and the answer alone."""

    opening: str
    text: str


@runtime_checkable
class Answers(Protocol):
    """An environment whose right answers are known: from the row, whatever it plays."""

    def privileged(self, row: Row) -> str:
        """The right answers of the whole row, to be put before an episode."""
        ...

    def answers(self, row: Row, history: Sequence[str]) -> Sequence[Answer]:
        """The right answers to what is asked after the turns `history`; at least one.

        A function of the history alone. Where nothing is asked any more, those of the last part.
        """
        ...

    def ending(self, row: Row, steps: Steps) -> str:
        """How an episode went whose steps told these infos, to be put before it."""
        ...
