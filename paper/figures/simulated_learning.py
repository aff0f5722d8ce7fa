"""Learning in worlds whose return is known exactly, by every credit method.

Leaves out training runs of language models (`learning`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper import logs, style

NEEDS = ("learning",)
COMMAND = "twice simulate learning --out runs/learning"

NAMED = ("twice", "twice_budget", "independent", "independent_budget", "vine_1", "rloo", "grpo")
"""The curves that have a colour; the others are thin and grey, and named in the lower row."""

BANDED = ("twice", "rloo")
"""The curves whose intervals are drawn."""

MOST_SETTINGS = 4
PLACE = ["world", "setting"]
COLUMNS = ["method", "reading", "budget", "return", "low", "high", "num_seeds"]
FLAGS = [
    "updates",
    "auxiliary_share",
    "step_size",
    "is_edge",
    "best_return",
    "estimates_advantage",
    "reconstructed",
    "helpers",
]
_GREY = "#b9b9b9"
_LINE_INCHES = 0.125


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a setting, method, reading and budget: exact return, its 95% interval over seeds.

    `budget` is sampled tokens, forks included. `reading` is "end" (the policy it pays for) or
    "mean" (over the tokens up to there). Rows without a return are left out.

    Raises:
        MissingLogs: The study was not run.
    """
    study = logs.read(runs, "learning")
    if study is None:
        raise logs.missing("simulated_learning", NEEDS, runs, COMMAND)
    known = (
        study.select(*PLACE, *COLUMNS, *FLAGS)
        .with_columns(pl.col("low", "high").cast(pl.Float64), pl.col("helpers").cast(pl.String))
        .drop_nulls("return")
        .unique(["setting", "method", "reading", "budget"], keep="first", maintain_order=True)
        .sort(*PLACE, "method", "reading", "budget")
    )
    if known.is_empty():
        raise logs.missing(
            "simulated_learning", NEEDS, runs, COMMAND, rows="return that is not null"
        )
    return known


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """Return against tokens above; below it all methods by their mean on the way, best first."""
    settings = _settings(table)[:MOST_SETTINGS]
    order = ranking(table.filter(pl.col("setting").is_in(settings)))
    figure, (curves, ends) = style.grid(2, len(settings), height=1.0)
    lower = _LINE_INCHES * (len(order) + 1) + 0.5
    layout = ends[0].get_gridspec()
    assert layout is not None
    layout.set_height_ratios([2.2, lower])
    figure.set_size_inches(style.PAGE, 2.2 + lower + 0.8)
    for upper, below, setting in zip(curves, ends, settings, strict=True):
        own = table.filter(setting=setting)
        _draw_curves(upper, own)
        upper.set_title(setting, loc="right", fontsize=7.5)
        _draw_ends(below, own, order)
        below.set_yticks(range(len(order)), [""] * len(order))
    curves[0].set_ylabel("exact return")
    ends[0].set_yticks(range(len(order)), [_name(table, method) for method in order])
    for label, method in zip(ends[0].get_yticklabels(), order, strict=True):
        label.set_color(_look(method)["color"] if method in NAMED else "black")
    handles, texts = curves[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=4)
    return figure


def ranking(table: pl.DataFrame) -> list[str]:
    """The methods, best first, by the mean over settings of how far their mean return gets.

    That is from the lowest method's, 0, to the return of the best policy, 1. Methods that more
    settings have come first.
    """
    least = pl.col("return").min()
    share = (pl.col("return") - least) / (pl.col("best_return").first() - least)
    shares = _last(table, "mean").with_columns(share=share.over("setting"))
    means = shares.group_by("method").agg(pl.len().alias("count"), pl.col("share").mean())
    ranked = means.sort("count", "share", "method", descending=[True, True, False])
    return ranked["method"].to_list()


def _last(table: pl.DataFrame, reading: str) -> pl.DataFrame:
    is_last = pl.col("budget") == pl.col("budget").max().over("setting")
    return table.filter(is_last, reading=reading)


def _settings(table: pl.DataFrame) -> list[str]:
    return table["setting"].unique(maintain_order=True).to_list()


def _look(method: str) -> dict[str, Any]:
    if method not in NAMED:
        return {"color": _GREY, "marker": "o"}
    place = NAMED.index(method)
    return {"color": style.COLOURS[place], "marker": style.MARKERS[place]}


def _name(table: pl.DataFrame, method: str) -> str:
    """With an asterisk where it is reconstructed, a dagger where a helper knows the truth."""
    row = table.filter(method=method).row(0, named=True)
    return method + "*" * row["reconstructed"] + "†" * (row["helpers"] is not None)


def _draw_curves(panel: Axes, own: pl.DataFrame) -> None:
    own = own.filter(reading="end")
    panel.axhline(own["best_return"][0], color=style.MUTED, lw=0.8, ls=":")
    others = own.filter(~pl.col("method").is_in(NAMED))
    for _, rows in others.group_by("method", maintain_order=True):
        panel.plot(rows["budget"], rows["return"], color=_GREY, lw=0.5, zorder=1)
    for method in NAMED:
        rows = own.filter(method=method)
        if rows.is_empty():
            continue
        look = _look(method)
        label = _name(own, method)
        panel.plot(rows["budget"], rows["return"], label=label, markersize=3, **look)
        band = rows.drop_nulls("low") if method in BANDED else rows.clear()
        panel.fill_between(
            band["budget"], band["low"], band["high"], color=look["color"], alpha=0.12, lw=0
        )
    panel.set_xscale("log")
    style.plain_log_axis(panel.xaxis, steps=(1, 3))
    least, most = min(own["return"].to_list()), own["best_return"][0]
    panel.set_ylim(least - 0.04 * (most - least), most + 0.04 * (most - least))
    panel.set_xlabel("sampled tokens")


def _draw_ends(panel: Axes, own: pl.DataFrame, order: Sequence[str]) -> None:
    last = _last(own, "mean")
    panel.axvline(last["best_return"][0], color=style.MUTED, lw=0.8, ls=":")
    for row in last.to_dicts():
        place = order.index(row["method"])
        look = _look(row["method"])
        colour = look["color"] if row["method"] in NAMED else style.MUTED
        if row["low"] is not None:
            panel.hlines(place, row["low"], row["high"], color=colour, lw=1.0)
        panel.plot(row["return"], place, color=colour, marker=look["marker"], markersize=3.2)
    least, most = min(last["return"].to_list()), last["best_return"][0]
    panel.set_xlim(least - 0.1 * (most - least), most + 0.06 * (most - least))
    panel.set_ylim(len(order) - 0.4, -0.6)
    panel.set_xlabel(f"mean return\nup to {style.short_number(last['budget'][0])} tokens")


def caption(table: pl.DataFrame) -> str:
    """What the panels show, how steps were chosen and which settings were not drawn."""
    last = _last(table, "mean")
    seeds = sorted(last["num_seeds"].unique().to_list())
    text = (
        "Exact return of a tabular policy against all tokens sampled so far, forks included. "
        "Steps do not depend on the scale of credit; each seed uses the step size that did best "
        "on the other seeds. Above: the policy that the tokens pay for; grey: methods without a "
        f"colour, dotted: the best policy, bands ({' and '.join(BANDED)}): 95% t intervals over "
        f"{' or '.join(map(str, seeds))} seeds. Below: the mean of the curve over the tokens, for "
        "all methods, ordered by how far it gets to the best policy; a method is missing where "
        "the world lacks what it needs, and then stands last. Intervals may leave their panel."
    )
    if table["reconstructed"].any():
        text += " * Reconstructed from second-hand descriptions."
    if table["helpers"].null_count() < len(table):
        text += " † Reads a helper that the world computes from its exact solution."
    edges = last.filter("is_edge", pl.col("updates") > 0)
    if len(edges):
        text += (
            f" Step size most often chosen at an end of the grid: {len(edges)} of {len(last)} "
            "methods and panels."
        )
    left_out = _settings(table)[MOST_SETTINGS:]
    return text + (f" Settings in the table only: {', '.join(left_out)}." if left_out else "")
