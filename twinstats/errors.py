"""Mistakes of the caller that the command line answers with exit code 2."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Something that was asked for is not to be had; the message says what is."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist: the nearest right one, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")
