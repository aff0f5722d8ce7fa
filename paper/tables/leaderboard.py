"""The leaderboard as a table: error at each budget, and tokens to equal error.

Leaves out the picture (`paper.figures.leaderboard`).
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from paper import logs
from paper.tables.formats import ratio_text

NEEDS = ("leaderboard", "leaderboard_tokens", "leaderboard_differences")
COMMAND = "twice simulate leaderboard --out runs/leaderboard"

BUDGETS = (1.0, 1.5, 2.0, 3.0, 5.0, 12.0, 32.0)
"""The budgets that are shown; all are in the CSV."""

METRIC = "mse_scaled"
KEY = ["setting", "method"]


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a setting, method, metric and budget: value and interval.

    For `mse` also its ratio to that of twice, `over_twice`, and Holm's p of it. For `mse` and
    `mse_scaled`, the same in all rows of a setting and method: `ratio`, `ratio_low`, `ratio_high`,
    `is_bound` and `tokens_reason`, auxiliary tokens to the error of vine with 9 rollouts over
    vine's.

    Raises:
        MissingLogs: The study was not run.
    """
    found = [logs.read(runs, name) for name in NEEDS]
    board, tokens, differences = found
    if board is None or tokens is None or differences is None:
        absent = [name for name, own in zip(NEEDS, found, strict=True) if own is None]
        raise logs.missing("leaderboard", absent, runs, COMMAND)
    keep = [*KEY, "metric", "ratio", "low", "high", "is_bound", "reason"]
    tokens = tokens.select(keep).rename(
        {"low": "ratio_low", "high": "ratio_high", "reason": "tokens_reason"}
    )
    against = differences.filter(reference="twice").select(
        *KEY, "budget", "pvalue_holm", over_twice=pl.col("ratio"), metric=pl.lit("mse")
    )
    return (
        board.drop("run", "step", strict=False)
        .unique([*KEY, "metric", "budget"], keep="first", maintain_order=True)
        .join(tokens.unique([*KEY, "metric"], keep="first"), on=[*KEY, "metric"], how="left")
        .join(
            against.unique([*KEY, "budget"], keep="first"),
            on=[*KEY, "metric", "budget"],
            how="left",
            coalesce=True,
        )
        .sort("world", "horizon", "density", *KEY, "metric", "budget")
    )


def show(table: pl.DataFrame) -> pl.DataFrame:
    """Text: a row a setting and method, a column a budget, then tokens to equal error.

    Methods by their least error. A method that the world refuses, or that does not reach vine's
    error, has its reason in the last column.
    """
    own = table.filter(metric=METRIC)
    rows = []
    for (setting,), part in own.group_by("setting", maintain_order=True):
        methods = {
            str(name): rest for (name,), rest in part.group_by("method", maintain_order=True)
        }
        for name in sorted(methods, key=lambda method: _place(methods[method])):
            rows.append({"setting": str(setting)} | _line(name, methods[name]))
    return pl.DataFrame(rows)


def _place(own: pl.DataFrame) -> tuple[bool, float]:
    """Methods by their least error; those without any come last."""
    known: list[float] = own["value"].drop_nulls().to_list()
    return not known, min(known, default=0.0)


def _line(method: str, own: pl.DataFrame) -> dict[str, str]:
    marks = ("*" if own["reconstructed"][0] else "") + (
        "" if own["estimates_advantage"][0] else "°"
    )
    line = {"method": method + marks}
    for budget in BUDGETS:
        cell = own.filter(budget=budget)
        line[f"{budget:g}"] = _cell(cell) if len(cell) else ""
    bounds = (own[name][0] for name in ("ratio", "ratio_low", "ratio_high", "is_bound"))
    line["tokens / vine's"] = ratio_text(*bounds)
    line["remark"] = _remark(own)
    return line


def _cell(cell: pl.DataFrame) -> str:
    value, low, high = (cell[name][0] for name in ("value", "low", "high"))
    if value is None:
        return ""
    return f"{value:.2f}" if low is None else f"{value:.2f} ± {(high - low) / 2:.2f}"


def _remark(own: pl.DataFrame) -> str:
    if own["value"].null_count() == len(own):
        return str(own["reason"][0])
    return str(own["tokens_reason"][0] or "")


def caption(table: pl.DataFrame) -> str:
    """What the columns are, and what the marks say."""
    return (
        "Squared error at total tokens (1 = four rollouts a task), after one least-squares scale "
        "fitted on other seeds, over the mean of the exact squared advantage: 1 is no better than "
        "no credit; ± is half a 95% t interval over seeds. Tokens / vine's: auxiliary tokens to "
        "reach the error of VinePPO with 9 rollouts, over VinePPO's, with a 95% bootstrap interval "
        "over seeds; ≤: already the cheapest point reaches it. * Reconstructed from second-hand "
        "descriptions. ° Its scale does not estimate the advantage."
    )
