"""`twice compare`."""

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from trainer.commands.score_tables import interval, plain_table, print_tables, share
from trainer.evaluation.compare import Comparison
from trainer.evaluation.compare import compare as compare_runs


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Two or more run folders of train or evaluate.")
    ],
    step: Annotated[
        int | None, typer.Option(help="Step of the evaluations; default each run's last.")
    ] = None,
) -> None:
    """Compare runs on the same test questions, by paired tests.

    The difference is that of the first run named minus the second. With more than two runs all
    pairs are compared, and p-values are corrected over them, by Holm's method, within each metric.
    """
    found = compare_runs(runs, step)
    pairs = groupby(found, key=lambda one: (one.first, one.second))
    is_corrected = len(runs) > 2
    for (first, second), own in pairs:
        print_tables(_table(f"{first} - {second}", list(own), is_corrected=is_corrected))
    doubts = dict.fromkeys(text for one in found for text in one.result.warnings)
    for text in doubts:
        typer.echo(f"note: {text}")


def _table(title: str, rows: list[Comparison], *, is_corrected: bool) -> Table:
    columns = ["metric", "pairs", "first", "second", "first - second", "p"]
    columns += ["p (Holm)"] if is_corrected else []
    caption = "95% intervals; differ: pairs in which the first is higher, and lower"
    table = plain_table(title, [*columns, "differ"], caption)
    for row in rows:
        result = row.result
        higher, lower = result.discordant
        ends = result.confidence_interval() or (None, None)
        table.add_row(
            f"{row.metric}, {row.decoding}",
            str(result.num_pairs) + (f" (-{result.num_missing})" if result.num_missing else ""),
            *map(share, row.means),
            f"{share(result.estimate)} {interval(*ends)}",
            _pvalue(result.pvalue),
            *([_pvalue(row.holm)] if is_corrected else []),
            f"{higher}, {lower}",
        )
    return table


def _pvalue(value: float | None) -> str:
    if value is None:
        return "-"
    return "<.0001" if value < 1e-4 else share(value) if value >= 1e-2 else f"{value:.4f}"[1:]
