"""What a task environment is.

An environment plays one episode of one task row. It knows nothing of models, tokens or credit: text
goes in, text comes out. What it leaves out: chat templates and tokenisation, which belong to the
rollout.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Row = Mapping[str, Any]
Steps = Sequence[Mapping[str, Any]]
"""The `Step.info` of each turn of an episode, in order."""

Tell = Callable[[Row, Steps], Sequence[Any]]
"""What a task knows of an episode besides its outcome: a need's entries from row and steps."""


class Step(NamedTuple):
    """What an environment returns for one turn of the model.

    `observation` is the exact text that follows the model's turn (tags included, empty when
    `done`); `reward` is this turn's share of the outcome. `info["won"]` alone says whether the task
    was solved (null: that is not defined) and `info["truncated"]` whether a turn limit ended it:
    `done` says neither.
    """

    observation: str
    reward: float
    done: bool
    info: dict[str, Any]


class ToolError(RuntimeError):
    """A tool of the environment failed: the episode is recorded without an outcome."""


class Environment(Protocol):
    """One episode of one task row: deterministic given the noise, replayable from its turns.

    `stop` are tokens that end a turn of the model; they stay part of the turn's text. Texts that
    end one whatever their tokens are stand in an attribute `stop_texts`, if a task has any.
    `max_turns` is the largest number of turns in one part of an episode.
    `noise` is the luck of the environment (a key, or None where the task draws nothing). `reset`
    and every slot have a key of their own; draws of one call are told apart by position or lane.

    A task may have a class attribute `needs`, a mapping from needs of credit methods ("tool",
    "predicates", ...) to a `Tell` for each; methods that need another one are refused. Its rows
    then hold the constants that go with them (`twinstats.credit.inputs`). Another is `outcomes`:
    the names of numbers that `Step.info` tells when a part ends, each of which can be the reward.
    A method `cut() -> float` says what more is paid on the last turn of an episode that a limit
    ends. A task that neither waits for anything nor runs code of others may say `can_hang = False`:
    after `reset` it is called without a time limit, which costs more than a short step.
    """

    @property
    def stop(self) -> tuple[str, ...]:
        """Tokens that end a turn."""
        ...

    @property
    def max_turns(self) -> int:
        """The most turns of one part."""
        ...

    def reset(self, row: Row, noise: Any) -> str:
        """Start `row` afresh, whatever was played before; return the first text."""
        ...

    def step(self, text: str, noise: Any) -> Step:
        """Play one turn: `text` is what the model itself wrote, stop string included."""
        ...

    def slot(self, history: Sequence[str]) -> int:
        """Name of the turn that follows the turns `history`: never repeated within an episode.

        From 0 to 65,534: slot 65,535 is that of `reset`. A task without a better name returns
        `len(history)`.
        """
        ...
