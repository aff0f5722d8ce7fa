"""The tables, one file each. A new one is a file and a line here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import polars as pl

from paper.tables import leaderboard, leaderboard_bias, leaderboard_split, oracle, training


class TableModule(Protocol):
    """What a table's file has."""

    @property
    def NEEDS(self) -> tuple[str, ...]:
        """The logs it reads, where they are there."""

    @property
    def COMMAND(self) -> str:
        """What makes them."""

    def table(self, runs: Sequence[Path]) -> pl.DataFrame:
        """The numbers; raises `MissingLogs`."""

    def show(self, table: pl.DataFrame) -> pl.DataFrame:
        """The numbers as text, a column a heading."""

    def caption(self, table: pl.DataFrame) -> str:
        """What the table shows, as sentences."""


TABLES: dict[str, TableModule] = {
    "leaderboard": leaderboard,
    "leaderboard_split": leaderboard_split,
    "leaderboard_bias": leaderboard_bias,
    "oracle": oracle,
    "training": training,
}
