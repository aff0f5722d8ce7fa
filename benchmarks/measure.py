"""Measures functions against each other, or against a stated limit, and prints the table."""

import statistics
import time
import tracemalloc
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


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def peak_bytes(function: Callable[[], object]) -> float:
    """The most memory that a call holds beyond what was there before, NumPy's included."""
    tracemalloc.start()
    try:
        function()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Ours against a number that it must stay below.

    Attributes:
        what: What is done.
        ours: Our function.
        limit: The number, in `unit`.
        unit: Its unit.
        measure: What is measured of a call.
        per: How much of what is measured makes one `unit`.
    """

    what: str
    ours: Callable[[], object]
    limit: float
    unit: str = "s"
    measure: Callable[[Callable[[], object]], float] = seconds
    per: float = 1.0


def report(title: str, rows: Sequence[Comparison | Limit], *, repeats: int) -> None:
    """Measures both sides in turns, and prints medians with their spread, ratios and goals.

    The ratio is the median over the turns: what slows the machine for a while slows both sides.

    The other side of a `Limit` is the limit, and its goal is a ratio of 1.
    """
    table = Table(title=title)
    for column in ("what", "ours (s, or the limit's unit)", "theirs (s)", "ratio", "goal"):
        table.add_column(column)
    met = 0
    for row in rows:
        if isinstance(row, Limit):
            ours = [row.measure(row.ours) / row.per for _ in range(repeats + 1)][1:]
            theirs, goal = f"limit {row.limit:g} {row.unit}", 1.0
            ratio = statistics.median(ours) / row.limit
        else:
            ours, others = _timed(row, repeats)
            theirs, goal = _spread(others), row.goal
            ratio = statistics.median(a / b for a, b in zip(ours, others, strict=True))
        met += ratio < goal
        table.add_row(row.what, _spread(ours), theirs, f"{ratio:.2f}", f"{goal:.2f}")
    console = Console()
    console.print(table)
    console.print(f"{met} met, {len(rows) - met} missed")


def _timed(one: Comparison, repeats: int) -> tuple[list[float], list[float]]:
    sides: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for times, function in zip(sides, (one.ours, one.theirs), strict=True):
            times.append(seconds(function))
    return sides[0][1:], sides[1][1:]  # the first round warms up


def _spread(numbers: Sequence[float]) -> str:
    return f"{statistics.median(numbers):.4f} ({min(numbers):.4f}-{max(numbers):.4f})"
