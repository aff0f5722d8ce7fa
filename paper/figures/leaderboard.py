"""Credit methods against exact truth: error, and direction, by the tokens they spend.

Leaves out what the credit does to learning (`learning`).
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper import logs, style

NEEDS = ("leaderboard",)
COMMAND = "twice simulate leaderboard --out runs/leaderboard"

METRICS = {"mse": "squared error of credit", "cosine": "cosine with the exact gradient"}
"""The metrics that are drawn, a row of panels each; all are in the table."""

MOST_SETTINGS = 3
PLACE = ["world", "horizon", "density", "setting"]
COLUMNS = ["metric", "method", "budget", "value", "low", "high", "num_seeds"]
FLAGS = ["reconstructed", "estimates_advantage"]


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a setting, metric, method and budget, with 95% intervals over seeds.

    `budget` is total tokens a step as a multiple of four rollouts' tokens. `is_drawn` is false for
    null values, and for errors that are not positive: their axis is logarithmic.

    Raises:
        MissingLogs: The study was not run.
    """
    study = logs.read(runs, "leaderboard")
    if study is None:
        raise logs.missing("leaderboard", NEEDS, runs, COMMAND)
    on_axis = pl.col("value").is_not_null() & ((pl.col("metric") != "mse") | (pl.col("value") > 0))
    return (
        study.select(*PLACE, *COLUMNS, *FLAGS)
        .unique(["setting", "metric", "method", "budget"], keep="first", maintain_order=True)
        .with_columns(is_drawn=on_axis)
        .sort(*PLACE, "metric", "method", "budget")
    )


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """Error and cosine against budget, a column of panels a setting."""
    settings = table["setting"].unique(maintain_order=True).to_list()[:MOST_SETTINGS]
    metrics = [name for name in METRICS if (table["metric"] == name).any()]
    looks = style.looks(table["method"].unique().to_list())
    width = style.PAGE if len(settings) > 1 else 0.7 * style.PAGE
    figure, panels = style.grid(len(metrics), len(settings), width=width, height=2.3)
    for row, metric in zip(panels, metrics, strict=True):
        for panel, setting in zip(row, settings, strict=True):
            own = table.filter("is_drawn", metric=metric, setting=setting)
            _draw_panel(panel, own, looks)
            if metric == "mse":
                panel.set_yscale("log")
                style.plain_log_axis(panel.yaxis)
            else:
                panel.set_ylim(top=min(panel.get_ylim()[1], 1.05))
        row[0].set_ylabel(METRICS[metric])
    for panel, setting in zip(panels[0], settings, strict=True):
        panel.set_title(setting)
    for panel in panels[-1]:
        panel.set_xlabel("total tokens (1 = 4 rollouts a task)")
    handles, texts = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=min(len(texts), 5))
    return figure


def _draw_panel(panel: Axes, own: pl.DataFrame, looks: dict[str, dict]) -> None:
    panel.set_xscale("log")
    style.plain_log_axis(panel.xaxis)
    for (method,), rows in own.group_by("method", maintain_order=True):
        look = looks[str(method)]
        is_scaled = not rows["estimates_advantage"][0]
        name = str(method) + ("*" if rows["reconstructed"][0] else "")
        places = rows.rename({"budget": "place"})
        style.bars(
            panel,
            places,
            is_log=bool((rows["metric"] == "mse").all()),
            label=name,
            ls="--" if is_scaled else "-",
            markerfacecolor="none" if is_scaled else look["color"],
            **look,
        )


def caption(table: pl.DataFrame) -> str:
    """What the panels show, which settings were not drawn and what had no place on the axes."""
    text = (
        "Credit methods against exact truth at equal total tokens (1 = four rollouts a task). "
        "Squared error is divided by the mean of the exact squared advantage: 1 is no better than "
        "no credit. Bars: 95% t intervals over seeds."
    )
    if not table["estimates_advantage"].all():
        text += (
            " Open markers: the method's scale does not estimate the advantage, and its error is "
            "after one least-squares scale fitted on other seeds."
        )
    if table["reconstructed"].any():
        text += " * Reconstructed from second-hand descriptions."
    shown = table.filter(pl.col("metric").is_in(list(METRICS)))
    if shown["value"].null_count():
        text += " A method has no point at budgets that its knob does not reach."
    dropped = len(shown.drop_nulls("value").filter(~pl.col("is_drawn")))
    if dropped:
        text += f" Not positive, so not on a log axis: {dropped} dropped."
    left_out = table["setting"].unique(maintain_order=True).to_list()[MOST_SETTINGS:]
    return text + (f" Settings in the table only: {', '.join(left_out)}." if left_out else "")
