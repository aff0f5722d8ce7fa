"""An environment that cannot stop a run: whatever goes wrong in it is a `ToolError` with a reason.

Tools are other people's code: they raise, hang and return what they should not. Leaves out what
becomes of the episode (`play`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from trainer.rollout.patience import outcome_within
from trainer.tasks import Environment, Row, Step, ToolError
from twinstats.errors import Stopped

_LONGEST = 300  # characters of a reason that somebody else wrote


class Guarded:
    """An environment with a time limit, whose answers are checked.

    All methods raise a `ToolError` of one sentence where the environment fails.

    Args:
        make: Makes the environment of one episode.
        seconds: How long each call may take; up to twice as long where several are made at once.
    """

    def __init__(self, make: Callable[[], Environment], *, seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._asked, self._num_answers, self._can_hang = "", 0, True

    def reset(self, row: Row, noise: Any) -> str:
        """The first text of an episode, whose environment is made for it."""

        def begin() -> str:
            self._environment = self._ask("the environment's constructor", self._make)
            return self._ask("`reset`", lambda: self._environment.reset(row, noise))

        shown = _checked_text("`reset`", self._patiently(begin))
        self._can_hang = getattr(self._environment, "can_hang", True) is not False
        return shown

    def step(self, text: str, noise: Any) -> Step:
        """What follows a turn."""
        step: Step = self._patiently(lambda: self._step(text, noise))
        return step

    def cut(self) -> float:
        """What is paid besides for an episode that a limit ends here; 0 unless the task says."""
        cut = getattr(self._environment, "cut", None)
        if cut is None:
            return 0.0
        paid: float = self._patiently(lambda: _checked_reward(self._ask("`cut`", cut)))
        return paid

    def replay(self, turns: Sequence[tuple[str, Any]]) -> Iterator[Step]:
        """What follows each of some turns, given with their noise, up to the end of the episode.

        They are played at once, when the first is asked for: each time that somebody's code is
        waited for costs much more than most tools do. A failure is raised in its place.
        """
        steps: list[Step] = []

        def play() -> None:
            for turn in turns:
                steps.append(self._step(*turn))
                if steps[-1].done:
                    return

        failure = None
        try:
            self._patiently(play)
        except ToolError as error:
            failure = error
        yield from tuple(steps)  # what was abandoned may still add to them
        if failure is not None:
            raise failure

    def slot(self, history: Sequence[str]) -> int:
        """The name of the turn that follows some turns: a function of texts, which is not timed."""
        try:
            slot = self._environment.slot(history)
        except (KeyboardInterrupt, Stopped):  # not of the slot: this is the program's own thread
            raise
        # other people's code: SystemExit, too, is no more than the reason of a recorded row
        except BaseException as error:
            raise _failure("`slot`", error) from error
        if not isinstance(slot, Integral):
            raise ToolError(f"`slot` must return a whole number, got {type(slot).__name__}")
        return int(slot)

    def _step(self, text: str, noise: Any) -> Any:
        return self._ask("`step`", lambda: checked_step(self._environment.step(text, noise)))

    def _ask(self, where: str, function: Callable[[], Any]) -> Any:
        """One call of the environment; of one that can hang, on the thread that is waited for."""
        self._asked = where
        try:
            answer = function()
        # other people's code: SystemExit, too, is no more than the reason of a recorded row
        except BaseException as error:
            if not self._can_hang and isinstance(error, (KeyboardInterrupt, Stopped)):
                raise  # not of the environment: this is the program's own thread
            raise _failure(where, error) from error
        self._num_answers += 1
        return answer

    def _patiently(self, function: Callable[[], Any]) -> Any:
        """What a function returns that asks the environment, if each answer comes in time."""
        if not self._can_hang:
            return function()
        try:
            future = outcome_within(self._seconds, function, progress=lambda: self._num_answers)
        except TimeoutError as error:
            waited = f"{self._asked} took longer than {self._seconds:g} seconds"
            raise ToolError(waited) from error
        return future.result()


def _failure(where: str, raised: BaseException) -> ToolError:
    """What somebody else's code raised, as one short sentence."""
    said = " ".join(_message(raised).split())[:_LONGEST]
    is_told = isinstance(raised, ToolError)
    return ToolError(said if is_told else f"{where} raised {type(raised).__name__}: {said}")


def _message(raised: BaseException) -> str:
    """What an exception says, fit for a table; what cannot be written there is escaped."""
    try:
        return str(raised).encode(errors="backslashreplace").decode()
    except BaseException as error:  # its `__str__` is other people's code, too
        return f"(its message cannot be read: {type(error).__name__})"


def checked_step(answer: Any) -> Step:
    """What an environment's `step` returned, with a float reward and flags that are bools.

    `won` may be null.

    Raises:
        ToolError: It is no `Step`; the first thing that is wrong is named.
    """
    if not isinstance(answer, tuple) or len(answer) != len(Step._fields):
        wanted = ", ".join(Step._fields)
        raise ToolError(f"`step` must return {wanted}, got {type(answer).__name__}")
    observation, reward, done, info = answer
    is_done = _checked_flag("done", done)
    if not isinstance(info, Mapping) or not {"won", "truncated"} <= info.keys():
        raise ToolError("`step` must return an info that has `won` and `truncated`")
    won = None if info["won"] is None else _checked_flag("won", info["won"])
    flags = {"won": won, "truncated": _checked_flag("truncated", info["truncated"])}
    text = _checked_text("`step`", observation)
    return Step(text, _checked_reward(reward), is_done, dict(info) | flags)


def _checked_flag(name: str, flag: Any) -> bool:
    if not isinstance(flag, bool | np.bool_):
        raise ToolError(f"`step` must return `{name}` as a bool, got {type(flag).__name__}")
    return bool(flag)


def _checked_reward(reward: Any) -> float:
    if not isinstance(reward, Real):
        raise ToolError(f"`step` must return its reward as a number, got {type(reward).__name__}")
    try:
        value = float(reward)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ToolError(f"`step` must return a finite reward, got {value}")
    return value


def _checked_text(where: str, text: Any) -> str:
    if not isinstance(text, str):
        raise ToolError(f"{where} must return a text to show, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"{ascii(text[error.start])} at character {error.start}"
        raise ToolError(f"{where} must return text of whole characters, got {found}") from error
    return text
