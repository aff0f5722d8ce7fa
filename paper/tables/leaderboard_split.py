"""What TWICE's advantage over independent branches consists of: deduplication and coupling.

Leaves out where coupling pays (`paper.figures.gain`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from paper import logs
from paper.tables.formats import ratio_text

NEEDS = ("leaderboard_split",)
COMMAND = "twice simulate leaderboard --out runs/leaderboard"

PARTS = {"deduplication": "equal decisions free", "coupling": "shared luck", "both": "both"}
"""The factors, and what they are called."""


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a setting, form, quantity (mse, tokens) and budget: the factors, with intervals.

    Raises:
        MissingLogs: The study was not run.
    """
    return logs.study(NEEDS[0], ["setting", "form", "quantity", "budget"], runs, COMMAND)


def show(table: pl.DataFrame) -> pl.DataFrame:
    """Text: two rows a setting and form, the error at a budget that both forms pay, and tokens.

    The least such budget: one at which every turn has a branch that plays its tail.
    """
    rows = []
    paid = table.filter(pl.col("both").is_not_null(), form="twins", quantity="mse")
    least = dict(paid.group_by("setting").agg(pl.col("budget").min()).iter_rows())
    for (setting, *_), own in table.group_by("setting", "form", "quantity", maintain_order=True):
        known = own.filter(pl.col("budget").eq_missing(least.get(setting)))
        row = (known if len(known) else own).row(0, named=True)
        rows.append(
            {"setting": row["setting"], "form": row["form"], "what": _what(row)}
            | {name: _factor(row, part) for part, name in PARTS.items()}
            | {"remark": _remark(row)}
        )
    return pl.DataFrame(rows)


def _what(row: dict[str, Any]) -> str:
    is_tokens = row["quantity"] == "tokens"
    return "tokens to VinePPO's error" if is_tokens else f"squared error at {row['budget']:g}"


def _factor(row: dict[str, Any], part: str) -> str:
    return ratio_text(row[part], row[f"{part}_low"], row[f"{part}_high"], is_bound=False)


def _remark(row: dict[str, Any]) -> str:
    """Why nothing is known, or that a method's cheapest point already reaches the error."""
    return row["reason"] or ("a bound: a cheapest point reaches it" if row["is_bound"] else "")


def caption(table: pl.DataFrame) -> str:
    """What the factors are."""
    return (
        "How many times less squared error at equal total tokens, or fewer auxiliary tokens at the "
        "error of VinePPO with 9 rollouts, with 95% bootstrap intervals over seeds. Equal "
        "decisions free: branches that repeat the factual's decision count as difference 0 and do "
        "not play their tail. Shared luck: twins over those. Squared errors are at the least "
        "budget that pays for a tail of every turn (1 = four rollouts a task)."
    )
