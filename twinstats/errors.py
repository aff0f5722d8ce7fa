"""Mistakes of the caller that the command line answers with exit code 2."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Something that was asked for is not to be had; the message says what is."""


class Stopped(BaseException):
    """A command was told to end and left everything whole; the message says how far it came.

    No error: the command line answers with exit code 0, and handlers of errors let it through.

    Attributes:
        is_interrupt: By Ctrl-C, for which the exit code is that of shells.
    """

    def __init__(self, message: str, *, is_interrupt: bool = False) -> None:
        super().__init__(message)
        self.is_interrupt = is_interrupt


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist: the nearest right one, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    known_ones = f"Known: {', '.join(names)}." if names else "There is none."
    return UsageError(f"Unknown {kind} {name!r}.{hint} {known_ones}")
