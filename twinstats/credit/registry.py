"""What a registry entry is, and the method that `make` builds from it.

Leaves out which methods there are: that one mapping is in the package's `__init__`.
"""

import inspect
import math
import types
import typing
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from twinstats.episodes import Credit, Group
from twinstats.errors import UsageError, unknown


@dataclass(frozen=True, slots=True)
class Need:
    """Something a world has to provide; `forks` says it is wanted on forks as well."""

    name: str
    forks: bool = False


Ratios = Sequence[Sequence[np.ndarray]]
"""After the update: for each credit and each of its episodes, every turn's likelihood ratio."""


@runtime_checkable
class Memory(Protocol):
    """What a method carries over steps."""

    def observe(self, credits: Sequence[Credit], ratios: Ratios | None) -> None:
        """Learns from a finished step; `ratios` may be null."""

    def state(self) -> dict[str, Any]:
        """Everything it carries, as strict JSON."""

    def load(self, state: dict[str, Any]) -> None:
        """Takes up what `state` returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A method in the registry.

    Attributes:
        function: Group and options to `Credit`, or to a generator that yields forks.
        needs: What the world has to provide.
        reconstructed: Built from second-hand descriptions; shown wherever the method is.
        estimates_advantage: Whether its scale is the advantage's.
        compares_members: Whether it is undefined for groups of one.
        memory: Builds what it carries over steps from its options; null where it needs none.
        finish: Called once over a step's credits; a method with a memory gets it as `memory`.
        option_needs: What its options ask for besides `needs`.
        knob: Name of the option that scales its forks; null where tokens buy larger groups.
        knob_unit: What the knob is raised by in sweeps: what it takes to play one thing more.
        unbiased: With its defaults it claims to be unbiased for the advantage of every turn.
        observes_ratios: Whether its memory learns from likelihood ratios after the update.
    """

    function: Callable[..., Credit | Generator[Any, Any, Credit]]
    needs: tuple[Need, ...] = ()
    reconstructed: bool = False
    estimates_advantage: bool = True
    compares_members: bool = False
    memory: Callable[[dict[str, Any]], Memory | None] | None = None
    finish: Callable[..., list[Credit]] | None = None
    option_needs: Callable[[dict[str, Any]], tuple[Need, ...]] | None = None
    knob: str | None = None
    knob_unit: int = 1
    unbiased: bool = False
    observes_ratios: bool = False


def remembers(kind: Callable[..., Memory]) -> Callable[[dict[str, Any]], Memory]:
    """Builds a memory from those of a method's options that it takes itself."""
    own = inspect.signature(kind).parameters

    def build(options: dict[str, Any]) -> Memory:
        return kind(**{name: value for name, value in options.items() if name in own})

    return build


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an option's type; types of a method's own are left to the method."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return isinstance(value, str)  # which words there are, the method says
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in parts)
    if typing.get_origin(hint) is tuple:
        is_pair = isinstance(value, Sequence) and len(value) == len(parts)
        return is_pair and all(map(_fits, value, parts))
    if hint is bool:
        return isinstance(value, bool | np.bool_ | Integral) and int(value) in (0, 1)
    if hint in (int, float):
        kind = Integral if hint is int else Real
        return isinstance(value, kind) and not isinstance(value, bool) and not math.isnan(value)
    checkable = isinstance(hint, type) and hint is not inspect.Parameter.empty
    return not checkable or isinstance(value, hint)


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


def _words(hint: Any) -> str:
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(map(_words, parts))
    if typing.get_origin(hint) is tuple:
        return f"({', '.join(map(_words, parts))})"
    return _WORDS.get(hint) or f"a {hint.__name__}"


class Method:
    """A credit method with its options and its memory."""

    def __init__(self, name: str, entry: Entry, options: dict[str, Any]) -> None:
        known = inspect.signature(entry.function).parameters
        allowed = [p for p in known if p not in ("group", "memory")]
        for option in options:
            if option not in allowed:
                raise unknown(f"option of method {name!r}", option, allowed)
            if not _fits(options[option], known[option].annotation):
                raise UsageError(
                    f"`{option}` of method {name!r} must be {_words(known[option].annotation)}, "
                    f"got {options[option]!r}."
                )
        self.name = name
        self.options = dict(options)
        self._entry = entry
        self._memory = entry.memory(self.options) if entry.memory else None

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the world has to provide."""
        more = self._entry.option_needs
        return self._entry.needs + (more(self.options) if more else ())

    @property
    def reconstructed(self) -> bool:
        """Whether it was built from second-hand descriptions."""
        return self._entry.reconstructed

    @property
    def estimates_advantage(self) -> bool:
        """Whether its scale is the advantage's."""
        return self._entry.estimates_advantage

    @property
    def compares_members(self) -> bool:
        """Whether it is undefined for groups of one."""
        return self._entry.compares_members

    @property
    def observes_ratios(self) -> bool:
        """Whether `observe` is to be told likelihood ratios, which cost two passes a step."""
        return self._entry.observes_ratios

    def __call__(self, group: Group) -> Credit | Generator[Any, Any, Credit]:
        """The method on one group."""
        return self._entry.function(group, **self.options, **self._remembered)

    def finish(self, credits: list[Credit]) -> list[Credit]:
        """What the method does once over a step's credits."""
        if self._entry.finish is None:
            return credits
        return self._entry.finish(credits, **self._remembered)

    @property
    def _remembered(self) -> dict[str, Any]:
        return {} if self._memory is None else {"memory": self._memory}

    def observe(self, step: int, credits: Sequence[Credit], ratios: Ratios | None = None) -> None:
        """Learns from a finished step; called once a step, groups in row order."""
        if self._memory is not None:
            self._memory.observe(credits, ratios)

    def state(self) -> dict[str, Any]:
        """What it carries over steps, as strict JSON; empty without a memory."""
        return {} if self._memory is None else self._memory.state()

    def load(self, state: dict[str, Any]) -> None:
        """Takes up what `state` returned."""
        if self._memory is not None:
            self._memory.load(state)
