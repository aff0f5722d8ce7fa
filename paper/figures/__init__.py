"""The figures, one file each. A new one is a file and a line here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import polars as pl
from matplotlib.figure import Figure

from paper.figures import (
    complexity,
    floor,
    gain,
    leaderboard,
    learning,
    oracle,
    simulated_learning,
    twins,
    variance,
)


class FigureModule(Protocol):
    """What a figure's file has."""

    @property
    def NEEDS(self) -> tuple[str, ...]:
        """The tables it reads, where they are there."""

    @property
    def COMMAND(self) -> str:
        """What makes them."""

    def table(self, runs: Sequence[Path]) -> pl.DataFrame:
        """The numbers; raises `MissingLogs`."""

    def draw(self, table: pl.DataFrame) -> Figure:
        """The picture of the numbers."""

    def caption(self, table: pl.DataFrame) -> str:
        """What the picture shows, what was left out, as sentences."""


FIGURES: dict[str, FigureModule] = {
    "complexity": complexity,
    "variance": variance,
    "gain": gain,
    "leaderboard": leaderboard,
    "learning": learning,
    "simulated_learning": simulated_learning,
    "twins": twins,
    "oracle": oracle,
    "floor": floor,
}
