"""When twins pay: coupling gain by dial, and by what can be known of it before any twin is played.

Leaves out how gain turns into error at equal tokens (`leaderboard`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper import coupling, logs, style
from paper.figures import variance
from twinstats.episodes import SLOTS_PER_PART

NEEDS = ("gain", "gain_rule", "pairs")
COMMAND = "twice simulate gain --out runs/gain"

DIALS = {
    "horizon, chain": ("chain", "horizon", "all"),
    "density, chain": ("chain", "density", "all"),
    "sharpness, chain": ("chain", "sharpness", "all"),
    "luck, chain": ("chain", "luck", "all"),
    "ends, chain": ("chain", "ends", "all"),
    "horizon, errand": ("errand", "horizon", "all"),
    "skill, errand": ("errand", "skill", "all"),
    "contrary, bets": ("bets", "contrary", "opening"),
}
"""The panels of dials: world, dial, and the part of the turns."""

KNOWN = {
    "untouched": "untouched share",
    "tail": "turns after the decision",
    "equal_share": "share of equal decisions",
}
"""The panels of cells: columns of the study and what they are called."""

RULES = ("untouched", "untouched, from logs", "tail and equal")
"""The rules whose errors the caption tells."""

SERIES = {"raw": "raw_gain", "deduplicated": "gain", "rule": "predicted"}
LOOKS: dict[str, dict[str, Any]] = {
    "raw": {"color": style.MUTED, "marker": "s", "ls": ":"},
    "deduplicated": {"color": style.COLOURS[0], "marker": "o", "ls": "-"},
    "rule": {"color": style.COLOURS[1], "marker": "", "ls": "--"},
}
LABELS = {
    "raw": "raw gain",
    "deduplicated": "deduplicated: what coupling gives",
    "rule": "the rule 1 / (1 - untouched)",
}
WORLD_LOOKS: dict[str, dict[str, Any]] = {
    "errand": {"color": style.COLOURS[2], "marker": "D"},
    "chain": {"color": style.COLOURS[5], "marker": "o"},
    "bets": {"color": style.COLOURS[4], "marker": "^"},
}
SCHEMA = {
    "panel": pl.String,
    "series": pl.String,
    "label": pl.String,
    "place": pl.Float64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
}


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """Rows of the panels.

    Panels of a dial: `place` the dial, `value` the geometric mean over tables of the raw gain, the
    deduplicated gain or the rule, `low` and `high` the least and the largest table; `label` the
    part of the turns. Panels "untouched", "tail", "equal_share": a cell of the test half each,
    `series` its world, `value` its deduplicated gain. Panel "agent": where training runs have
    twins in parts, the deduplicated gain of the forks at the first turn of each part, with its
    interval, and the number of parts not over yet (series "rule"). Panel "rule": errors of a rule
    (`label`) on the test half, `series` what they are.

    Raises:
        MissingLogs: The study was not run, or has no gain that is identified.
    """
    study, rules = logs.read(runs, "gain"), logs.read(runs, "gain_rule")
    if study is None:
        raise logs.missing("gain", NEEDS[:1], runs, COMMAND)
    rows = [row for panel in DIALS for row in _dial_rows(study, panel)]
    rows += [row for panel in KNOWN for row in _cell_rows(study, panel)]
    rows += _agent_rows(runs)
    if all(row["value"] is None for row in rows):
        raise logs.missing("gain", NEEDS[:1], runs, COMMAND, rows="identified gain")
    rows += [] if rules is None else _rule_rows(rules)
    return pl.DataFrame(rows, schema=SCHEMA)


def _dial_rows(study: pl.DataFrame, panel: str) -> list[dict]:
    """The world's base, and its settings in which this dial alone was turned."""
    world, dial, part = DIALS[panel]
    own = study.filter(pl.col("dial").is_in(["base", dial]), world=world, part=part)
    rows = []
    for (place,), tables in own.sort(dial, "seed").group_by(dial, maintain_order=True):
        for series, column in SERIES.items():
            known = tables[column].drop_nulls().to_numpy()
            if len(known) == len(tables):
                rows.append(
                    {
                        "panel": panel,
                        "series": series,
                        "label": part,
                        "place": float(str(place)),
                        "value": float(np.exp(np.log(known).mean())),
                        "low": float(known.min()),
                        "high": float(known.max()),
                    }
                )
    return rows


def _cell_rows(study: pl.DataFrame, panel: str) -> list[dict]:
    cells = study.filter(pl.col("part") != "all", half="test").sort("world", "setting", "seed")
    own = cells.select(panel=pl.lit(panel), series="world", label="part", place=panel, value="gain")
    return own.to_dicts()


def _agent_rows(runs: Sequence[Path]) -> list[dict]:
    """First turns of the parts of training runs, and how many parts are not over."""
    measured = [row for row in variance.gain_rows(runs) if row["series"] == "deduplicated"]
    if not coupling.has_parts(row["place"] for row in measured):
        return []
    first = [row for row in measured if row["place"] % SLOTS_PER_PART == 0]
    last = max(row["place"] for row in first) // SLOTS_PER_PART
    rows = []
    for row in first:
        part = row["place"] // SLOTS_PER_PART
        own = {"panel": "agent", "label": row["label"], "place": part}
        rows.append(own | {"series": "measured"} | {k: row[k] for k in ("value", "low", "high")})
        rows.append(own | {"series": "rule", "value": last - part + 1, "low": None, "high": None})
    return rows


def _rule_rows(rules: pl.DataFrame) -> list[dict]:
    own = rules.filter(half="test", world="every").unique("rule", keep="first", maintain_order=True)
    return [
        {"panel": "rule", "series": error, "label": row["rule"], "value": row[error]}
        for row in own.to_dicts()
        for error in ("r2", "median_factor", "p90_factor", "worst_factor")
    ]


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """Two rows of dials; below them cells by what is known of them, and the agent."""
    figure, rows = style.grid(3, 4, height=2.05)
    for panel, name in zip([*rows[0], *rows[1]], DIALS, strict=True):
        _draw_dial(panel, table.filter(panel=name), name)
    for panel, name in zip(rows[2], KNOWN, strict=False):
        _draw_cells(panel, table.filter(panel=name), name)
    _draw_agent(rows[2][3], table.filter(panel="agent"))
    for row in rows:
        row[0].set_ylabel("coupling gain")
    handles = [
        rows[0][0].plot([], [], label=LABELS[name], **look)[0] for name, look in LOOKS.items()
    ]
    handles += [
        rows[2][0].plot([], [], ls="", label=f"{world}, a cell", **look)[0]
        for world, look in WORLD_LOOKS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _draw_dial(panel: Axes, rows: pl.DataFrame, name: str) -> None:
    for series, look in LOOKS.items():
        own = rows.filter(series=series)
        if series == "rule":
            own = own.with_columns(low=None, high=None)
        style.bars(panel, own.sort("place"), is_log=True, markersize=3, **look)
    dial, world = name.split(", ")
    if dial == "horizon" and len(rows):
        panel.set_xscale("log")
        style.plain_log_axis(panel.xaxis)
    panel.set_title(f"{world}")
    panel.set_xlabel(dial)
    _finish(panel)


def _draw_cells(panel: Axes, rows: pl.DataFrame, name: str) -> None:
    for world, look in WORLD_LOOKS.items():
        own = rows.filter(series=world).drop_nulls(["place", "value"])
        panel.plot(
            own["place"],
            own["value"],
            ls="",
            alpha=0.6,
            markersize=2.2,
            mew=0,
            rasterized=True,
            **look,
        )
    if name == "untouched":
        place = np.linspace(0, 0.99, 200)
        panel.plot(place, 1 / (1 - place), color=LOOKS["rule"]["color"], ls="--", lw=1.2)
    if name == "tail":
        panel.set_xscale("symlog", linthresh=1)
        panel.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    panel.set_xlabel(KNOWN[name])
    _finish(panel)


def _draw_agent(panel: Axes, rows: pl.DataFrame) -> None:
    panel.set_title("agent")
    panel.set_xlabel("part forked at")
    if rows.is_empty():
        panel.text(
            0.5, 0.5, "no training run in parts", ha="center", fontsize=7, transform=panel.transAxes
        )
        panel.set_axis_off()
        return
    measured = rows.filter(series="measured").drop_nulls("value")
    style.bars(panel, measured, is_log=True, **LOOKS["deduplicated"] | {"ls": ""})
    rule = rows.filter(series="rule").sort("place")
    panel.plot(rule["place"], rule["value"], color=LOOKS["rule"]["color"], ls="--")
    panel.set_xticks(rule["place"].unique().to_list())
    _finish(panel)


def _finish(panel: Axes) -> None:
    panel.axhline(1, color=style.MUTED, lw=0.8, ls="--")
    panel.set_yscale("log")
    style.plain_log_axis(panel.yaxis)


def caption(table: pl.DataFrame) -> str:
    """What the panels show, and how far the rules are off."""
    text = (
        "Coupling gain, E[D^2] of an independent branch over that of a twin, exact. Panels a to h: "
        "one dial turned, all turns of an episode (bets: the first turn); lines: geometric means "
        "over tables, bars: the least and the largest table. Raw over deduplicated is what equal "
        "decisions give. Dashed: 1 / (1 - untouched), untouched being the share of the squared "
        "difference of two independent worlds that arises after they are in the same state again "
        "or from luck that is the same in every state. Panels i to k: cells of the settings on "
        "which no rule was fitted."
    )
    if (table["panel"] == "agent").any():
        text += (
            " Panel l: a training run's agent, deduplicated gain at the first turn of each part "
            "with 95% intervals clustered by task; dashed: the parts not over yet, which is the "
            "rule where all parts have as much luck and a decision touches its own part only."
        )
    rules = table.filter(panel="rule")
    for name in [rule for rule in RULES if (rules["label"] == rule).any()]:
        errors = dict(rules.filter(label=name).select("series", "value").iter_rows())
        text += (
            f" Rule '{name}': off by a factor of {errors['median_factor']:.2f} in the median cell, "
            f"at least {errors['p90_factor']:.2f} in the worst tenth."
        )
    below = table.filter(pl.col("panel") == "untouched", pl.col("value") < 1)
    return text + f" Cells with a gain below 1: {len(below)}."
