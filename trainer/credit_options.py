"""Options of a credit method by name and text: `credit.options.NAME=VALUE`.

Text is read by the annotation of the method's parameter, and the method is tried on a made-up group
so that what it refuses is refused before a rollout is paid for. Leaves out the options that have a
field of their own in `CreditConfig`: those are set there and nowhere else.
"""

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Generator, Mapping
from typing import Any, Literal

import numpy as np

from trainer.config import parse
from twinstats.credit import METHODS, MOST_FORKS, Budget, make
from twinstats.episodes import Episode, Group, Task, Turn
from twinstats.errors import UsageError, unknown

_FEW = 8

FIELDS = ("twins", "budget", "rollouts")
"""Options that `CreditConfig` has a field for."""


def read(method: str, given: Mapping[str, str]) -> dict[str, Any]:
    """The options of a method from their texts.

    Raises:
        UsageError: An option that the method lacks (the nearest is named), that has a field of its
            own or that no text can set, or a text that is no value of its type.
    """
    function = METHODS[method].function
    known, hints = inspect.signature(function).parameters, typing.get_type_hints(function)
    settable = [name for name in known if name not in FIELDS and _is_text(hints.get(name))]
    options = {}
    for name, text in given.items():
        path = f"credit.options.{name}"
        if name in FIELDS and name in known:
            raise UsageError(f"`{path}` is set by `credit.{name}` and nowhere else.")
        if name not in settable:
            raise unknown(f"option of method {method!r}", name, settable)
        options[name] = _value(hints[name], text, path)
    return options


def try_out(method: str, options: Mapping[str, Any]) -> None:
    """Tries a method with its options on a made-up group, and refuses what it refuses.

    Of numbers of forks only a few are tried: what a method says of 8 it says of more, up to the
    most that can be numbered. A method that refuses this group with its defaults as well says
    nothing of the options.

    Raises:
        UsageError: The method's own sentence.
    """
    reason = _refusal(method, {name: _small(value) for name, value in options.items()})
    if reason is not None and _refusal(method, {}) is None:
        raise UsageError(f"Method {method!r} refuses its options: {reason}")


def _small(value: Any) -> Any:
    """A number of forks, or what they may cost, cut down to a few."""
    if isinstance(value, Budget):
        return dataclasses.replace(value, ratio=min(value.ratio, float(_FEW)))
    return min(value, _FEW) if type(value) is int and value <= MOST_FORKS else value


def _is_text(hint: Any) -> bool:
    """Whether a text can be read as a value of this type."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return True
    if typing.get_origin(hint) in (types.UnionType, typing.Union, tuple):
        return all(part is type(None) or _is_text(part) for part in parts)
    return hint in (int, float, bool, str)


def _value(hint: Any, text: str, path: str) -> Any:
    if typing.get_origin(hint) is tuple:
        parts, words = typing.get_args(hint), text.split(",")
        if len(parts) != len(words):
            raise UsageError(f"`{path}` must be {len(parts)} values with commas, got {text!r}.")
        return tuple(_value(part, word, path) for part, word in zip(parts, words, strict=True))
    value = parse(hint, text, path)
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"`{path}` must be finite, got {value}.")
    return value


def _refusal(method: str, options: Mapping[str, Any]) -> str | None:
    """Why a method cannot begin on a made-up group with these options; null if it can."""
    try:
        begun = make(method, **options)(_made_up())
        if isinstance(begun, Generator):
            next(begun, None)  # up to its first forks, which are not played
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return str(error)  # all but the first: a method of one's own that wants another group
    return None


def _made_up() -> Group:
    """Two episodes of two turns that differ, with every need that a registered method has."""
    info = {"entities": ["x"], "predicate_graph": [["x", "y"]], "goal": ["y"]}
    task = Task("made up", info)
    episodes = [_made_up_episode(task, row) for row in (0, 1)]
    return Group(task, episodes, seed=0, step=1)


def _made_up_episode(task: Task, row: int) -> Episode:
    turns = [
        Turn((row, 1), -1.0, 0.5, 2, state=f"state {turn}", reward=float(row * turn))
        for turn in (0, 1)
    ]
    states, decisions = np.arange(3.0), np.arange(2.0)
    return Episode(
        task=task,
        step=1,
        row=row,
        turns=turns,
        outcome=float(row),
        terminated=True,
        truncated=False,
        success=bool(row),
        final_state="end",
        sampled=4,
        info={
            **dict.fromkeys(("value", "gold_logprob", "state_score"), states),
            **dict.fromkeys(("hindsight_logprob", "first_entropy", "turn_reward"), decisions),
            **dict.fromkeys(("predicates", "entities"), [set(), {"x"}, {"x", "y"}]),
            "teacher_gap": [decisions, decisions],
            "segments": [(0, 1, 1)],
            "features": states[:, None],
            "tool": ["search", "answer"],
            "signature": [("state", "search"), ("state", "answer")],
        },
    )
