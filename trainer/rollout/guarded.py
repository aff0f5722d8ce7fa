"""An environment that cannot stop a run: whatever goes wrong in it is a `ToolError` with a reason.

Tools are other people's code: they raise, hang and return what they should not. Leaves out what
becomes of the episode (`play`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from trainer.rollout.patience import outcome_within
from trainer.tasks import Environment, Row, Step, ToolError

_LONGEST = 300  # characters of a reason that somebody else wrote


class Guarded:
    """An environment with a time limit, whose answers are checked.

    Args:
        make: Makes the environment of one episode.
        seconds: How long each call may take.

    Raises:
        ToolError: `make` failed; all methods raise it, with one sentence.
    """

    def __init__(self, make: Callable[[], Environment], *, seconds: float) -> None:
        self._seconds = seconds
        self._environment = self._call("the environment's constructor", make)

    def reset(self, row: Row, noise: Any) -> str:
        """The first text of an episode."""
        text = self._call("`reset`", lambda: self._environment.reset(row, noise))
        return _checked_text("`reset`", text)

    def step(self, text: str, noise: Any) -> Step:
        """What follows a turn."""
        return checked_step(self._call("`step`", lambda: self._environment.step(text, noise)))

    def slot(self, history: Sequence[str]) -> int:
        """The name of the turn that follows some turns: a function of texts, which is not timed."""
        try:
            slot = self._environment.slot(history)
        # other people's code: whatever it raises becomes the reason of a recorded row
        except Exception as error:
            raise _failure("`slot`", error) from error
        if not isinstance(slot, Integral):
            raise ToolError(f"`slot` must return a whole number, got {type(slot).__name__}")
        return int(slot)

    def _call(self, where: str, function: Callable[[], Any]) -> Any:
        try:
            future = outcome_within(self._seconds, function)
        except TimeoutError as error:
            raise ToolError(f"{where} took longer than {self._seconds:g} seconds") from error
        raised = future.exception()
        if raised is not None:
            raise _failure(where, raised) from raised
        return future.result()


def _failure(where: str, raised: BaseException) -> ToolError:
    """What somebody else's code raised, as one short sentence."""
    said = " ".join(str(raised).split())[:_LONGEST]
    is_told = isinstance(raised, ToolError)
    return ToolError(said if is_told else f"{where} raised {type(raised).__name__}: {said}")


def checked_step(answer: Any) -> Step:
    """What an environment's `step` returned, with a float reward and a bool `done`.

    Raises:
        ToolError: It is no `Step`; the first thing that is wrong is named.
    """
    if not isinstance(answer, tuple) or len(answer) != len(Step._fields):
        wanted = ", ".join(Step._fields)
        raise ToolError(f"`step` must return {wanted}, got {type(answer).__name__}")
    observation, reward, done, info = answer
    if not isinstance(done, bool | np.bool_):
        raise ToolError(f"`step` must return `done` as a bool, got {type(done).__name__}")
    if not isinstance(info, Mapping) or not {"won", "truncated"} <= info.keys():
        raise ToolError("`step` must return an info that has `won` and `truncated`")
    text = _checked_text("`step`", observation)
    return Step(text, _checked_reward(reward), bool(done), dict(info))


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
    return text
