"""Credit methods against exact truth: error by the tokens they spend, a panel a setting.

Leaves out what the credit does to learning (`learning`), and the numbers as a table
(`paper.tables.leaderboard`).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper import logs, style

NEEDS = ("leaderboard",)
COMMAND = "twice simulate leaderboard --out runs/leaderboard"

METRIC = "mse_scaled"
"""What is drawn: fair to methods whose scale is free. All metrics are in the table."""

LABELLED = (
    "twice",
    "independent",
    "vine",
    "vine_coupled",
    "rloo",
    "t2spo",
    "rtmc",
)
"""The methods that have a colour of their own (there are seven); the others are thin grey lines."""

MOST_SETTINGS = 9
PLACE = ["world", "horizon", "density", "setting"]
COLUMNS = ["metric", "method", "budget", "value", "low", "high", "num_seeds", "reason"]
FLAGS = ["reconstructed", "estimates_advantage"]
_OTHERS = "others"


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a setting, metric, method and budget, with 95% intervals over seeds.

    `budget` is total tokens a step as a multiple of four rollouts' tokens. `is_drawn` is false for
    null values, and for errors that are not positive: their axis is logarithmic.

    Raises:
        MissingLogs: The study was not run, or has no error that can be drawn.
    """
    study = logs.read(runs, "leaderboard")
    if study is None:
        raise logs.missing("leaderboard", NEEDS, runs, COMMAND)
    on_axis = pl.col("value").is_not_null() & (pl.col("value") > 0)
    table = (
        study.select(*PLACE, *COLUMNS, *FLAGS)
        .unique(["setting", "metric", "method", "budget"], keep="first", maintain_order=True)
        .with_columns(is_drawn=on_axis)
        .sort(*PLACE, "metric", "method", "budget")
    )
    shown = table.filter(metric=METRIC)
    if not shown["is_drawn"].any():
        unknown = f"positive {METRIC}{logs.reasons(shown)}"
        raise logs.missing("leaderboard", NEEDS, runs, COMMAND, rows=unknown)
    return table


def drawn_settings(table: pl.DataFrame) -> list[str]:
    """The settings with a panel: one of each world, and as many others, evenly spread, as fit.

    That of a world is named after it, or its first.
    """
    places = table.select("world", "setting").unique(maintain_order=True)
    named = places.sort(pl.col("setting") != pl.col("world"), maintain_order=True)
    chosen = named.unique("world", keep="first", maintain_order=True)["setting"].to_list()
    others = [name for name in places["setting"].to_list() if name not in chosen]
    room = min(len(others), max(0, MOST_SETTINGS - len(chosen)))
    spread = np.linspace(0, len(others) - 1, room).round().astype(int)
    kept = {*chosen[:MOST_SETTINGS], *(others[place] for place in spread)}
    return [name for name in places["setting"].to_list() if name in kept]


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """Error against budget, a panel a setting, both axes logarithmic."""
    settings = drawn_settings(table)
    looks = style.looks(LABELLED, first=("twice",))
    num_columns = min(3, len(settings))
    num_rows = -(-len(settings) // num_columns)
    width = style.PAGE if num_columns > 1 else 0.7 * style.PAGE
    figure, rows = style.grid(num_rows, num_columns, width=width, height=2.4)
    panels = [panel for row in rows for panel in row]
    for panel, setting in zip(panels, settings, strict=False):
        own = table.filter("is_drawn", metric=METRIC, setting=setting)
        _draw_panel(panel, own, looks)
        panel.set_title(setting)
    for panel in panels[len(settings) :]:
        panel.set_axis_off()
        panel.set_title("", loc="left")
    for row in rows:
        row[0].set_ylabel("squared error (1 = no credit)")
    for panel in panels[max(0, len(settings) - num_columns) : len(settings)]:
        panel.set_xlabel("total tokens (1 = 4 rollouts a task)")
    style.shared_legend(figure, panels, last=_OTHERS)
    return figure


def _draw_panel(panel: Axes, own: pl.DataFrame, looks: dict[str, dict]) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.axhline(1.0, color=style.MUTED, lw=0.6, ls=":")
    curves = {str(name): rows for (name,), rows in own.group_by("method", maintain_order=True)}
    for method, rows in curves.items():
        if method not in looks:
            panel.plot(rows["budget"], rows["value"], color="#c4c4c4", lw=0.6, label=_OTHERS)
    for method, look in looks.items():
        if method in curves:
            _draw_method(panel, method, curves[method], look)
    low, high = panel.get_ylim()
    is_short = high < 10 * low
    style.plain_log_axis(panel.yaxis, steps=(1, 1.5, 2, 3, 5, 7) if is_short else (1, 2, 5))
    style.plain_log_axis(panel.xaxis)


def _draw_method(panel: Axes, method: str, rows: pl.DataFrame, look: dict) -> None:
    name = method + ("*" if rows["reconstructed"][0] else "")
    is_scaled = not rows["estimates_advantage"][0]
    style.bars(
        panel,
        rows.rename({"budget": "place"}),
        is_log=True,
        label=name,
        ls="--" if is_scaled else "-",
        markerfacecolor="none" if is_scaled else look["color"],
        zorder=3,
        **look,
    )


def caption(table: pl.DataFrame) -> str:
    """What the panels show, which settings were not drawn and what had no place on the axes."""
    text = (
        "Credit methods against exact truth at equal total tokens (1 = four rollouts a task). "
        "Squared error after one least-squares scale fitted on other seeds, divided by the mean "
        "of the exact squared advantage: 1 is no better than no credit. Bars: 95% t intervals "
        "over seeds."
    )
    if not table["estimates_advantage"].all():
        text += " Open markers: the method's scale does not estimate the advantage."
    shown = table.filter(metric=METRIC)
    others = sorted(set(shown.drop_nulls("value")["method"].unique().to_list()) - {*LABELLED})
    if others:
        text += f" Grey: {', '.join(_marked(table, others))}."
    if table["reconstructed"].any():
        text += " * Reconstructed from second-hand descriptions."
    if shown["value"].null_count():
        text += " A method has no point at budgets that its knob does not reach."
    dropped = len(shown.drop_nulls("value").filter(~pl.col("is_drawn")))
    if dropped:
        text += f" Not positive, so not on a log axis: {dropped} dropped."
    drawn = drawn_settings(table)
    left_out = [name for name in table["setting"].unique(maintain_order=True) if name not in drawn]
    return text + (f" Settings in the table only: {', '.join(left_out)}." if left_out else "")


def _marked(table: pl.DataFrame, methods: Sequence[str]) -> list[str]:
    rebuilt = set(table.filter("reconstructed")["method"].to_list())
    return [name + ("*" if name in rebuilt else "") for name in methods]
