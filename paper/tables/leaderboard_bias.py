"""Whether credit that claims to be unbiased is: bias within a margin, place by place.

Leaves out errors and tokens (`paper.tables.leaderboard`).
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from paper import logs

NEEDS = ("leaderboard_bias",)
COMMAND = "twice simulate leaderboard --out runs/leaderboard"


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a setting, method and place: bias, simultaneous bounds, and whether they are within.

    Raises:
        MissingLogs: The study was not run.
    """
    return logs.study(NEEDS[0], ["setting", "method", "place"], runs, COMMAND)


def show(table: pl.DataFrame) -> pl.DataFrame:
    """Text: a row a setting and method that claims no bias, the widest bounds last."""
    rows = []
    for (setting,), part in table.filter("claimed").group_by("setting", maintain_order=True):
        own = [rest for _, rest in part.group_by("method", maintain_order=True)]
        rows += [{"setting": str(setting)} | _line(rest) for rest in sorted(own, key=_widest)]
    text = ("setting", "method", "bias", "within everywhere", "farthest bound", "excludes 0")
    return pl.DataFrame(rows, schema=dict.fromkeys(text, pl.String))


def _widest(own: pl.DataFrame) -> float:
    """The bound of any place that is farthest from 0."""
    bounds = pl.max_horizontal(pl.col("low").abs(), pl.col("high").abs())
    return float(own.select(bounds.max()).item())


def _line(own: pl.DataFrame) -> dict[str, str]:
    mean, first = own.filter(place="all"), own.row(0, named=True)
    value, low, high = (mean[name][0] for name in ("bias", "low", "high"))
    return {
        "method": first["method"] + ("*" if first["reconstructed"] else ""),
        "bias": f"{value:.3f} [{low:.3f}, {high:.3f}]",
        "within everywhere": "yes" if own["equivalent"].all() else "not shown",
        "farthest bound": f"{_widest(own):.2f}",
        "excludes 0": f"{own['excludes_zero'].sum()} of {len(own)}",
    }


def caption(table: pl.DataFrame) -> str:
    """What is bounded, and by what margin."""
    margins = ", ".join(f"{margin:g}" for margin in table["margin"].unique().sort())
    return (
        "Bias of a turn's credit over the root of the mean exact squared advantage, with "
        "simultaneous 95% bounds over all turns and over the turns of each action; groups are the "
        f"units. Within everywhere: all bounds are within {margins} of 0; where that is not shown, "
        "the sample is too noisy to say. Excludes 0: bounds that 0 is not within, of all places. "
        "* Reconstructed from second-hand descriptions."
    )
