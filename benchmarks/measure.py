"""Measures pairs of functions against each other and prints the table."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Ours against what a user would otherwise use.

    Attributes:
        what: What is done.
        ours: Our function.
        theirs: The other one.
        goal: Ratio of seconds, ours over theirs, that we want to stay below.
    """

    what: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    goal: float


def report(title: str, comparisons: Sequence[Comparison], *, repeats: int) -> None:
    """Times both sides in turns, and prints medians with their spread, ratios and goals."""
    table = Table(title=title)
    for column in ("what", "ours (s)", "theirs (s)", "ratio", "goal"):
        table.add_column(column)
    met = 0
    for one in comparisons:
        ours, theirs = _timed(one, repeats)
        ratio = statistics.median(ours) / statistics.median(theirs)
        met += ratio < one.goal
        table.add_row(one.what, _spread(ours), _spread(theirs), f"{ratio:.2f}", f"{one.goal:.2f}")
    console = Console()
    console.print(table)
    console.print(f"{met} met, {len(comparisons) - met} missed")


def _timed(one: Comparison, repeats: int) -> tuple[list[float], list[float]]:
    sides: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for seconds, function in zip(sides, (one.ours, one.theirs), strict=True):
            began = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - began)
    return sides[0][1:], sides[1][1:]  # the first round warms up


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.4f} ({min(seconds):.4f}-{max(seconds):.4f})"
