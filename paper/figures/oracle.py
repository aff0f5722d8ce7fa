"""Credit methods on a real agent: error against a reference of many rollouts, by tokens spent.

Leaves out the worlds whose truth is exact (`leaderboard`), and tokens to equal error as a table
(`paper.tables.oracle`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper import logs, oracle, style
from twinstats.board import Curve
from twinstats.board import read as read_curve
from twinstats.means import mean_interval

NEEDS = ("oracle_points", "oracle_turns")
COMMAND = oracle.COMMAND

MOST_PANELS = 6
FAMILIES = {
    "twice": style.COLOURS[0],
    "independent": style.COLOURS[2],
    "vine": style.COLOURS[5],
    "vine_coupled": style.COLOURS[1],
    "trees": style.COLOURS[3],
}
"""A colour a family of methods; markers tell its members apart. The others are grey lines."""

TREES = ("tree_grpo", "treerl", "at2po", "arpo")
_OTHERS = "others"
_BEYOND = 3  # how far over the values a panel shows their bars
_LINEAR = 0.1  # errors up to here, and below 0, are on a linear part of the axis
SCHEMA = {
    "setting": pl.String,
    "outcome": pl.String,
    "method": pl.String,
    "knob": pl.Float64,
    "tokens": pl.Float64,
    "tokens_low": pl.Float64,
    "tokens_high": pl.Float64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "num_batches": pl.Int64,
    "reconstructed": pl.Boolean,
    "estimates_advantage": pl.Boolean,
    "reason": pl.String,
    "num_rollouts": pl.Float64,
    "noise_share": pl.Float64,
    "mean_outcome": pl.Float64,
    "mean_low": pl.Float64,
    "mean_high": pl.Float64,
}
_REFERENCE = ("num_rollouts", "noise_share", "mean_outcome", "mean_low", "mean_high")


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a setting, outcome, method and knob, with 95% t intervals over batches of episodes.

    `tokens` is what was sampled beyond the base group, over the base group's. `value` is the mean
    squared error against the reference less the reference's own noise, over the mean square of
    the reference less the same noise: 1 is what no credit has, and it may be negative by chance.
    Methods whose scale does not estimate the advantage: after one least-squares scale fitted on
    the other batches. `reason`: why `value` is null. `num_rollouts` (median, a turn), `noise_share`
    (of the reference's square) and the `mean_outcome` of the episodes describe what the reference
    is of, clustered by task, where `oracle_turns` is there.

    Raises:
        MissingLogs: The study was not run, or has no error that is identified.
    """
    points, turns = logs.read(runs, NEEDS[0]), oracle.read(runs, NEEDS[1])
    if points is None:
        raise logs.missing("oracle", NEEDS[:1], runs, COMMAND)
    rows = [
        {"setting": setting, "outcome": outcome, "method": method} | row
        for setting, outcome, board in oracle.boards(points)
        for method, curve in board.items()
        for row in _curve_rows(curve)
    ]
    known = pl.DataFrame(
        rows, schema={n: kind for n, kind in SCHEMA.items() if n not in _REFERENCE}
    )
    if known["value"].null_count() == len(known):
        unknown = f"identified error{logs.reasons(known)}"
        raise logs.missing("oracle", NEEDS[:1], runs, COMMAND, rows=unknown)
    return known.join(_references(turns), on=oracle.PLACE, how="left", maintain_order="left")


def _references(turns: pl.DataFrame | None) -> pl.DataFrame:
    """How sure the reference of each setting and outcome is, and how well its episodes end."""
    schema = {name: SCHEMA[name] for name in (*oracle.PLACE, *_REFERENCE)}
    if turns is None:
        return pl.DataFrame(schema=schema)
    places = turns.group_by(oracle.PLACE, maintain_order=True)
    return pl.DataFrame([_reference(own) for _, own in places], schema=schema)


def _reference(turns: pl.DataFrame) -> dict[str, Any]:
    size = float(turns["reference"].pow(2).sum())
    noise = float(turns["reference_stderr"].pow(2).sum())
    episodes = turns.unique(["run", "episode"], keep="first", maintain_order=True)
    mean = oracle.mean(episodes, "factual")
    return {
        **turns.select(oracle.PLACE).row(0, named=True),
        "num_rollouts": turns["num_rollouts"].median(),
        "noise_share": noise / size if size > 0 else None,
        "mean_outcome": mean["value"],
        "mean_low": mean["low"],
        "mean_high": mean["high"],
    }


def _curve_rows(curve: Curve) -> Iterator[dict[str, Any]]:
    flags = {name: curve.known[name] for name in ("reconstructed", "estimates_advantage")}
    blank = flags | dict.fromkeys(("knob", "tokens", "value", "low", "high"))
    if curve.reason is not None:
        yield blank | {"num_batches": 0, "reason": curve.reason}
        return
    for index, knob in enumerate(curve.knobs):
        errors = curve.metrics["mse"][:, index]
        row = blank | {"knob": float(knob)} | _tokens(curve.budget[:, index] - 1)
        if np.isnan(errors).any():
            yield row | {"num_batches": 0, "reason": read_curve(curve, "mse", 1.0)[1]}
        else:
            yield row | _mean(errors) | {"num_batches": len(errors), "reason": None}


def _tokens(spent: np.ndarray) -> dict[str, float | None]:
    mean = _mean(spent)
    return {"tokens": mean["value"], "tokens_low": mean["low"], "tokens_high": mean["high"]}


def _mean(values: np.ndarray) -> dict[str, float | None]:
    low, high = mean_interval(values) or (None, None)
    return {"value": float(values.mean()), "low": low, "high": high}


def family(method: str) -> str | None:
    """The family of a method that has a colour; null for the others."""
    if method in ("vine", "vine_coupled"):
        return method
    if method in TREES:
        return "trees"
    return next((name for name in ("twice", "independent") if method.startswith(name)), None)


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """Error against auxiliary tokens, a panel a setting and outcome."""
    places = oracle.drawn(table, MOST_PANELS)
    looks = _looks(table["method"].unique(maintain_order=True).to_list())
    num_columns = 2 if len(places) == 4 else min(3, len(places))
    num_rows = -(-len(places) // num_columns)
    width = style.PAGE if num_columns > 1 else 0.7 * style.PAGE
    figure, rows = style.grid(num_rows, num_columns, width=width, height=2.6)
    panels = [panel for row in rows for panel in row]
    for panel, (setting, outcome) in zip(panels, places, strict=False):
        _draw_panel(panel, table.filter(setting=setting, outcome=outcome), looks)
        panel.set_title(f"{setting}, {outcome}")
    for panel in panels[len(places) :]:
        panel.set_axis_off()
        panel.set_title("", loc="left")
    for row in rows:
        row[0].set_ylabel("squared error (1 = no credit)")
    for panel in panels[max(0, len(places) - num_columns) : len(places)]:
        panel.set_xlabel("auxiliary tokens (1 = the episodes')")
    style.shared_legend(figure, panels, last=_OTHERS)
    return figure


def _looks(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The colour of a method's family, and a marker of its own within it."""
    looks: dict[str, dict[str, Any]] = {}
    for name, colour in FAMILIES.items():
        own = sorted(method for method in methods if family(method) == name)
        markers = [style.MARKERS[index % len(style.MARKERS)] for index in range(len(own))]
        looks |= {
            method: {"color": colour, "marker": marker}
            for method, marker in zip(own, markers, strict=True)
        }
    return looks


def _draw_panel(panel: Axes, own: pl.DataFrame, looks: dict[str, dict[str, Any]]) -> None:
    panel.axhline(1.0, color=style.MUTED, lw=0.6, ls=":")
    panel.axhline(0.0, color=style.MUTED, lw=0.6)
    known = own.drop_nulls("value").sort("tokens")
    methods = {str(name): rows for (name,), rows in known.group_by("method", maintain_order=True)}
    for method, rows in methods.items():
        if method not in looks:
            panel.plot(
                rows["tokens"], rows["value"], color="#b0b0b0", lw=0.8, marker=".", label=_OTHERS
            )
    for method, look in looks.items():
        if method in methods:
            _draw_method(panel, method, methods[method], look)
    panel.set_xscale("symlog", linthresh=1, linscale=0.5)
    panel.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
    panel.set_xlim(left=-0.1)
    _limit(panel, known["value"].to_list())
    style.plain_symlog_axis(panel.xaxis, linear=1)
    style.plain_symlog_axis(panel.yaxis, linear=_LINEAR)


def _limit(panel: Axes, values: Sequence[float]) -> None:
    """Keeps bars from squeezing the values: they may leave the panel."""
    bottom, top = panel.get_ylim()
    least, most = min([*values, 0.0]), max([*values, 1.0])
    panel.set_ylim(max(bottom, _BEYOND * least - _LINEAR / 2), min(top, _BEYOND * most))


def _draw_method(panel: Axes, method: str, rows: pl.DataFrame, look: dict[str, Any]) -> None:
    is_scaled = not rows["estimates_advantage"][0]
    style.bars(
        panel,
        rows.rename({"tokens": "place"}),
        label=method + ("*" if rows["reconstructed"][0] else ""),
        ls="--" if is_scaled else "-",
        markerfacecolor="none" if is_scaled else look["color"],
        **look,
    )


def caption(table: pl.DataFrame) -> str:
    """What the panels show, how sure the reference is, and what is negative or not drawn."""
    text = (
        "Credit methods on an agent: mean squared error against reference advantages, less the "
        "reference's own noise, over the mean squared advantage (1 is no better than no credit), "
        "by auxiliary tokens (1 = the episodes' own). Bars: 95% t intervals over batches of "
        "episodes; those that leave their panel are in the table. The axis is linear below 0.1."
    )
    for row in table.unique(oracle.PLACE, keep="first", maintain_order=True).to_dicts():
        if row["noise_share"] is not None:
            text += (
                f" Reference of {row['setting']}, {row['outcome']}: {row['num_rollouts']:g} "
                f"rollouts a turn, noise {row['noise_share']:.0%} of its square."
            )
    negative = table.filter(pl.col("value") < 0)
    if len(negative):
        text += f" Below 0 by the noise of the estimates: {len(negative)} points."
    names = table.drop_nulls("value")["method"].unique().sort().to_list()
    others = [name for name in names if family(name) is None]
    text += f" Grey: {', '.join(others)}." if others else ""
    text += _refusals(table)
    if not table["estimates_advantage"].all():
        text += (
            " Open markers: the method's scale does not estimate the advantage, and its errors are "
            "after one least-squares scale fitted on the other batches; all other errors, "
            "VinePPO's too, are without a scale."
        )
    if table["reconstructed"].any():
        text += " * Reconstructed from second-hand descriptions."
    return text + oracle.left_out(table, MOST_PANELS)


def _refusals(table: pl.DataFrame) -> str:
    """The methods without a point in panels that others have one in, by reason."""
    places = pl.DataFrame(oracle.drawn(table, MOST_PANELS), schema=oracle.PLACE, orient="row")
    refused = table.join(places, on=oracle.PLACE, how="semi").filter(pl.col("value").is_null())
    by_reason = refused.unique(["reason", "method"], keep="first", maintain_order=True)
    return "".join(
        f" Not drawn ({reason}): {', '.join(own['method'].to_list())}."
        for (reason,), own in by_reason.group_by("reason", maintain_order=True)
    )
