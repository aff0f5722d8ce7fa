"""Tokens that methods need on a real agent to reach VinePPO's error.

Leaves out the picture of the errors (`paper.figures.oracle`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from paper import logs, oracle
from paper.tables.formats import ratio_text
from twinstats.board import equal_error

NEEDS = ("oracle_points", "oracle_turns")
COMMAND = oracle.COMMAND

KEEP = (
    "method",
    "metric",
    "target",
    "reference_tokens",
    "auxiliary_tokens",
    "ratio",
    "low",
    "high",
    "is_bound",
    "floor",
    "reason",
    "reconstructed",
    "estimates_advantage",
)


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a setting, outcome, method and metric: see `twinstats.board.equal_error`.

    Errors are those of `paper.figures.oracle`; `rollouts` is VinePPO's number of them at which its
    error is the target: 9, or the most that were played. Intervals are over batches of episodes,
    null with one batch. Nothing is identified where all episodes ended alike, as `oracle_turns`
    tells where it is there.

    Raises:
        MissingLogs: The study was not run.
    """
    points, turns = (logs.read(runs, name) for name in NEEDS)
    if points is None:
        raise logs.missing("oracle", NEEDS[:1], runs, COMMAND)
    alike = {} if turns is None else _alike(turns)
    rows = []
    for setting, outcome, board in oracle.boards(points):
        reference = oracle.reference(board)
        known = {"setting": setting, "outcome": outcome, "rollouts": reference[1]}
        blank = _blank(alike.get((setting, outcome)))
        rows += [
            known | {name: row[name] for name in KEEP} | (blank if row["ratio"] is not None else {})
            for row in equal_error({setting: board}, reference=reference)
        ]
    return pl.DataFrame(rows, infer_schema_length=None)


def _alike(turns: pl.DataFrame) -> dict[tuple[str, str], str]:
    """The settings and outcomes whose episodes all ended alike, and how."""
    places = turns.group_by(oracle.PLACE).agg(
        pl.struct("run", "episode").n_unique().alias("number"),
        pl.col("factual").min().alias("least"),
        pl.col("factual").max().alias("most"),
    )
    return {
        (row["setting"], row["outcome"]): f"{row['least']:.3f} in all {row['number']} episodes"
        for row in places.to_dicts()
        if row["least"] == row["most"]
    }


def _blank(alike: str | None) -> dict[str, Any]:
    """What a row with a ratio cannot have where all episodes ended alike."""
    if alike is None:
        return {}
    none = dict.fromkeys(("auxiliary_tokens", "ratio", "low", "high"))
    return none | {"is_bound": False, "reason": f"not identified: outcome {alike}"}


def show(table: pl.DataFrame) -> pl.DataFrame:
    """Text: a row a setting, outcome and method, the cheapest first; those without a ratio last.

    After the best scale for methods whose scale does not estimate the advantage, vine's too.
    """
    metric = pl.when("estimates_advantage").then(pl.lit("mse")).otherwise(pl.lit("mse_scaled"))
    own = table.filter(pl.col("metric") == metric).sort(
        *oracle.PLACE, "ratio", "method", nulls_last=True, maintain_order=True
    )
    return pl.DataFrame([_line(row) for row in own.to_dicts()])


def _line(row: dict) -> dict[str, str]:
    marks = ("*" if row["reconstructed"] else "") + ("" if row["estimates_advantage"] else "°")
    tokens = row["auxiliary_tokens"]
    return {
        "setting": row["setting"],
        "outcome": row["outcome"],
        "method": row["method"] + marks,
        "auxiliary tokens": "" if tokens is None else f"{tokens:,.0f}",
        "tokens / vine's": ratio_text(row["ratio"], row["low"], row["high"], row["is_bound"]),
        "remark": row["reason"] or "",
    }


def caption(table: pl.DataFrame) -> str:
    """What the columns are, and what the marks say."""
    rollouts = " or ".join(f"{number:g}" for number in table["rollouts"].unique().sort())
    return (
        "Auxiliary tokens that each method needs on an agent to reach the error of VinePPO with "
        f"{rollouts} rollouts, and over VinePPO's, with a 95% bootstrap interval over batches of "
        "episodes (none with one batch); ≤: already its cheapest point reaches it. Errors are "
        "against reference advantages, less the reference's noise. * Reconstructed from "
        "second-hand descriptions. "
        "° Its scale does not estimate the advantage: errors, vine's too, are after one "
        "least-squares scale fitted on the other batches."
    )
