"""Changes to a configuration by `path=value`, and a configuration out of a dictionary."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from trainer.config.paths import paths
from trainer.config.tree import FREE, Config
from twinstats.errors import UsageError, unknown

_Tree = TypeVar("_Tree")


def changed(config: _Tree, assignments: Sequence[str]) -> _Tree:
    """The configuration with each `path=value` set; a value is parsed by its field's type.

    Raises:
        UsageError: Not of that form, an unknown path (the nearest is named), or a value that the
            field's type does not allow.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"`--set` takes path=value, got {assignment!r}.")
        config = _with(config, path.strip(), path.strip().split("."), text, paths(config))
    return config


def _with(tree: Any, path: str, names: list[str], text: str, known: list[str]) -> Any:
    holder = path.rsplit(".", 1)[0]
    if path == "recipe" or path not in known and holder not in FREE:
        raise unknown("configuration key", path, [name for name in known if name != "recipe"])
    name, rest = names[0], names[1:]
    if isinstance(getattr(tree, name), Mapping):
        own = {**getattr(tree, name), rest[0]: text} if rest else _emptied(path, text)
        return dataclasses.replace(tree, **{name: own})
    if rest:
        return dataclasses.replace(
            tree, **{name: _with(getattr(tree, name), path, rest, text, known)}
        )
    hint = typing.get_type_hints(type(tree))[name]
    return dataclasses.replace(tree, **{name: parse(hint, text, path)})


def _emptied(path: str, text: str) -> dict[str, str]:
    if text.lower() not in ("none", "null"):
        raise UsageError(f"`{path}` takes {path}.NAME=VALUE, or none, got {text!r}.")
    return {}


def parse(hint: Any, text: str, path: str) -> Any:
    """Text as a value of a field's type.

    Raises:
        UsageError: The text is no value of that type; the message names the path.
    """
    if typing.get_origin(hint) is Literal:
        if text in typing.get_args(hint):
            return text
        raise unknown(f"value of {path}", text, typing.get_args(hint))
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if text.lower() in ("none", "null"):
            return None
        inner = next(part for part in typing.get_args(hint) if part is not type(None))
        return parse(inner, text, path)
    if hint is bool:
        return _flag(text, path)
    try:
        return hint(text)
    except ValueError as error:
        raise UsageError(f"`{path}` must be {hint.__name__}, got {text!r}.") from error


def _flag(text: str, path: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise UsageError(f"`{path}` must be true or false, got {text!r}.")
    return words[text.lower()]


def from_dict(values: dict[str, Any], *, where: str = "The configuration") -> Config:
    """The configuration that `dataclasses.asdict` gave these values, maybe in another version.

    A field that this version has and the values lack takes its default.

    Args:
        values: Those of all fields, as a tree.
        where: What they are of, for messages.

    Raises:
        UsageError: A field that this version does not have, a value that its field does not allow,
            or no recipe: no training run.
    """
    if "recipe" not in values:
        raise UsageError(f"{where} names no recipe: it is not that of a training run.")
    strange = _strange(Config, values)
    if strange:
        raise UsageError(
            f"{where} was written by another version, with fields that this one does not have: "
            f"{', '.join(strange)}."
        )
    try:
        config: Config = _built(Config, values)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return config


def _strange(kind: Any, values: Any, prefix: str = "") -> list[str]:
    """Dotted paths of values that are no fields."""
    if not isinstance(values, dict):
        return []
    hints, found = typing.get_type_hints(kind), []
    for name, value in values.items():
        if name not in hints:
            found.append(f"{prefix}{name}")
        elif dataclasses.is_dataclass(hints[name]):
            found += _strange(hints[name], value, f"{prefix}{name}.")
    return found


def _built(hint: Any, value: Any, path: str = "") -> Any:
    """A value out of JSON as one of its field's type, a tree of fields or a leaf."""
    if not dataclasses.is_dataclass(hint):
        if not _is_of(hint, value):
            raise UsageError(f"`{path}` must be {_words(hint)}, got {value!r}.")
        return value
    if not isinstance(value, dict):
        raise UsageError(f"`{path}` must hold fields of {_words(hint)}, got {value!r}.")
    hints, prefix = typing.get_type_hints(hint), f"{path}." if path else ""
    kind: Any = hint
    return kind(**{name: _built(hints[name], one, prefix + name) for name, one in value.items()})


def _is_of(hint: Any, value: Any) -> bool:
    """Whether a value is of a leaf's type; what a mapping holds, the tree checks."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return value in parts
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return any(_is_of(part, value) for part in parts)
    if hint is float:
        return type(value) in (int, float)
    return hint not in (bool, int, str, type(None)) or type(value) is hint


def _words(hint: Any) -> str:
    """A type in the words of a message."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, parts))
    if parts:
        return " or ".join(map(_words, parts))
    return "null" if hint is type(None) else str(hint.__name__)
