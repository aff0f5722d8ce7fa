"""Scores of an evaluation as tables on the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from trainer.evaluation.scores import ANSWER_METRICS
from twinstats.records import read

_WIDTH = 100  # of tables outside a terminal

Row = Mapping[str, Any]


def print_tables(*tables: Table, stderr: bool = False) -> None:
    """Prints tables one below the other."""
    console = wide_console(stderr=stderr)
    for table in tables:
        console.print(table)


def wide_console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, and 100 columns where there is none."""
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def score_tables(scores: Sequence[Row], title: str) -> list[Table]:
    """A table of the scores of all questions, and for each decoding one by kind of question.

    Args:
        scores: Rows of the table `scores`, of one evaluation.
        title: What was evaluated.
    """
    whole = [row for row in scores if row["kind"] == "all"]
    tables = [_pivot(f"{title}: all questions", whole, "metric", "decoding")]
    told = {row["metric"] for row in scores if row["kind"] != "all"}
    shown = told.intersection(ANSWER_METRICS) or {"outcome"}
    kinds = [
        {**row, "questions": f"{row['kind']} {row['group']}"}
        for row in scores
        if row["kind"] != "all" and row["metric"] in shown
    ]
    for decoding in dict.fromkeys(row["decoding"] for row in kinds):
        own = [row for row in kinds if row["decoding"] == decoding]
        tables.append(
            _pivot(f"{title}: by kind of question, {decoding}", own, "questions", "metric")
        )
    return tables


def last_scores(run: Path) -> list[Table]:
    """The tables of a run's last evaluation."""
    rows = read(run, "scores").filter(pl.col("step") == pl.col("step").max()).collect().to_dicts()
    return score_tables(rows, f"{run.resolve().name}, step {rows[0]['step']}")


def plain_table(title: str, columns: Sequence[str], caption: str | None = None) -> Table:
    """An empty table; all columns but the first hold numbers."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right")
    return table


def share(value: float | None) -> str:
    """A share as people read it: .431, -.020, 1.000, or a dash where undefined."""
    if value is None:
        return "-"
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def interval(low: float | None, high: float | None) -> str:
    """An interval of shares; empty where undefined."""
    return "" if low is None or high is None else f"[{share(low)}, {share(high)}]"


def _pivot(title: str, rows: Sequence[Row], down: str, across: str) -> Table:
    """One line a value of `down` and one column a value of `across`, in order of appearance."""
    names, columns = (list(dict.fromkeys(row[key] for row in rows)) for key in (down, across))
    cells = {(row[down], row[across]): row for row in rows}
    table = plain_table(title, (down, "answers", *columns), "95% intervals, clustered by task")
    for name in names:
        found = [cells.get((name, column)) for column in columns]
        counts = dict.fromkeys(str(row["num_values"]) for row in found if row is not None)
        table.add_row(name, " / ".join(counts), *(map(_cell, found)))
    return table


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{share(row['value'])} {interval(row['low'], row['high'])}".strip()
