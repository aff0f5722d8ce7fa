"""Rewards of the user's own: a Python function that scores an episode in place of its task.

It is called as TRL calls its reward functions, for one episode at a time:

    function(prompts=[prompt], completions=[completion], **{column: [value]}) -> [float or None]

`prompt` is the row's (messages or a text; for a task without prompts, the first text shown), and
`completion` what came after: for messages a list of them, the model's turns with the role assistant
and what was shown after each with the role tool; else one text. The columns are those of the row's
file, or what the row tells. A number instead of a list of one is taken as well. TRL's other
arguments (`completion_ids`, `trainer_state`, `log_extra`, `log_metric`) are not given.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache
from numbers import Real
from typing import Any

from trainer.tasks.environment import Environment, Row, Step, ToolError
from twinstats.errors import UsageError

Reward = Callable[..., Any]


@cache
def load_reward(path: str) -> Reward:
    """The function at `package.module:name`.

    Raises:
        UsageError: Nothing of that name can be imported, or it is no function that can be called
            as rewards are.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise UsageError(f"`reward` must be package.module:function, got {path!r}.")
    try:
        function: Reward = getattr(importlib.import_module(module), name)
    # other people's code: whatever it raises when imported is told, an exit too
    except (Exception, SystemExit) as error:
        told = str(error) if isinstance(error, Exception) else repr(error)
        said = " ".join(told.split())[:300]
        raise UsageError(f"`reward`: {path} cannot be loaded: {said}") from error
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise UsageError(f"`reward`: {path} must be a function, and not an async one.")
    _check_arguments(path, function)
    return function


class Rewarded:
    """An environment whose episodes another function scores, all of it paid on the last turn.

    Whatever the task pays is dropped; what it tells (`won`, exact match) stays. An episode that a
    limit cuts is scored by what there is of it (`cut`).

    Args:
        environment: The task's.
        function: As the module says.
    """

    def __init__(self, environment: Environment, function: Reward) -> None:
        self._environment, self._function = environment, function
        self.stop, self.max_turns = environment.stop, environment.max_turns
        self.stop_texts = getattr(environment, "stop_texts", ())
        self._row: Row = {}
        self._opening = ""
        self._pieces: list[tuple[str, str]] = []

    def reset(self, row: Row, noise: Any) -> str:
        """As the task does."""
        self._row, self._pieces = row, []
        self._opening = self._environment.reset(row, noise)
        return self._opening

    def step(self, text: str, noise: Any) -> Step:
        """As the task does, with the function's reward when it is done and none before.

        Raises:
            ToolError: The function raised, or returned no finite number.
        """
        step = self._environment.step(text, noise)
        self._pieces.append((text, step.observation))
        return step._replace(reward=self.cut() if step.done else 0.0)

    def slot(self, history: Sequence[str]) -> int:
        """As the task does."""
        return self._environment.slot(history)

    def cut(self) -> float:
        """The reward of the episode as far as it went.

        Raises:
            ToolError: As `step`.
        """
        prompt = self._row.get("prompt", self._opening)
        columns = self._row.get("columns", self._row)
        given = {name: [value] for name, value in columns.items() if name != "prompt"}
        completion = self._completion(is_chat=not isinstance(prompt, str))
        try:
            told = self._function(prompts=[prompt], completions=[completion], **given)
        # other people's code: whatever it raises is the reason of a recorded row
        except Exception as error:
            raise ToolError(f"the reward raised {type(error).__name__}: {error}") from error
        return _number(told)

    def _completion(self, *, is_chat: bool) -> Any:
        if not is_chat:
            return "".join(turn + shown for turn, shown in self._pieces)
        messages = []
        for turn, shown in self._pieces:
            messages.append({"role": "assistant", "content": _without_end(turn, self.stop)})
            if shown:
                messages.append({"role": "tool", "content": shown})
        return messages


def _without_end(turn: str, ends: Sequence[str]) -> str:
    end = next((end for end in ends if turn.endswith(end)), "")
    return turn.removesuffix(end)


def _number(told: Any) -> float:
    value = told
    if isinstance(told, Sequence) and not isinstance(told, str):
        if len(told) != 1:
            raise ToolError(f"the reward must return one number an episode, got {len(told)}")
        value = told[0]
    if value is None:
        raise ToolError("the reward returned None")
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ToolError(f"the reward must return a finite number, got {value!r}")
    return float(value)


def _check_arguments(path: str, function: Reward) -> None:
    try:
        inspect.signature(function).bind_partial(prompts=[], completions=[])
    except TypeError as error:
        raise UsageError(
            f"`reward`: {path} must take `prompts`, `completions` and **columns: {error}."
        ) from error
