"""Variance of pairs: measured against 1 - rho_eff, and what coupling itself saved by turn.

Leaves out how credit turns lower variance into learning (`learning`).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from paper import coupling, logs, style
from twinstats import logged_pairs

NEEDS = ("variance", "pairs")
COMMAND = "twice simulate variance --out runs/variance"

FEWEST_CONTROLS = 20
SCHEMA = {
    "panel": pl.String,
    "series": pl.String,
    "label": pl.String,
    "place": pl.Float64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "num_pairs": pl.Int64,
    "equal_share": pl.Float64,
}


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """Rows of up to three panels.

    `panel` "ratio" is a setting of the study: `place` its exact ratio (1 - rho_eff in the bandit),
    `value` the measured Var(paired) / Var(independent), mean over seeds. `panel` "chain" is a turn
    of the study's chains and "gain" a slot of training runs' forks: `place` the turn or slot,
    `value` the coupling gain, `series` "raw" or "deduplicated". Where runs with learning rate 0
    are among them, they alone count: training changes the policy whose gain it is. Slots with fewer
    than 20 forks that have a control are left out.

    Raises:
        MissingLogs: Neither the study nor training runs with twins and controls, or nothing of
            them is identified.
    """
    rows = [*_ratio_rows(runs), *gain_rows(runs)]
    if all(row["value"] is None for row in rows):
        enough = f"turn with {FEWEST_CONTROLS} twins that have a control and outcomes that differ"
        raise logs.missing("variance", NEEDS, runs, COMMAND, rows=enough)
    return pl.DataFrame(rows, schema=SCHEMA)


def _ratio_rows(runs: Sequence[Path]) -> list[dict]:
    """Settings of the study, and in its chains the gain by turn; means over seeds."""
    study = logs.read(runs, "variance")
    if study is None:
        return []
    rows: list[dict] = []
    for (setting, turn), own in study.sort("setting", "turn", "seed").group_by(
        "setting", "turn", maintain_order=True
    ):
        series = own["regime"][0] or own["world"][0]
        common = {"series": series, "label": setting, "num_pairs": int(own["num_pairs"].sum())}
        common |= {"equal_share": own["equal_share"].mean()}
        ratio = _mean(own, "ratio", "ratio_low", "ratio_high")
        rows.append(common | ratio | {"panel": "ratio", "place": own["predicted"].mean()})
        if turn is None:
            continue
        for name, column in (("raw", "coupling_gain"), ("deduplicated", "deduplicated_gain")):
            gain = _mean(own, column, f"{column}_low", f"{column}_high")
            rows.append(common | gain | {"panel": "chain", "series": name, "place": float(turn)})
    return rows


def _mean(own: pl.DataFrame, value: str, low: str, high: str) -> dict[str, float | None]:
    """The mean over seeds with an interval from theirs, which are independent."""
    known = own.drop_nulls(value)
    if known.is_empty():
        return {"value": None, "low": None, "high": None}
    centre, count = float(known[value].to_numpy().mean()), len(known)
    ends: dict[str, float | None] = {"value": centre, "low": None, "high": None}
    if known[low].null_count() == 0 and known[high].null_count() == 0:
        ends["low"] = centre - float(np.linalg.norm(known[value] - known[low])) / count
        ends["high"] = centre + float(np.linalg.norm(known[high] - known[value])) / count
    return ends


def gain_rows(runs: Sequence[Path]) -> list[dict]:
    """Raw and deduplicated gains of training runs by slot, the `panel` "gain"."""
    pairs = logs.read(runs, "pairs")
    if pairs is None:
        return []
    described = logs.describe(runs).select("run", "recipe", "learns")
    twins = logged_pairs.joined(pairs).join(described, on="run", how="left")
    twins = twins.with_columns(pl.col("recipe").fill_null("pairs"))
    if not twins["learns"].all():
        twins = twins.filter(~pl.col("learns"))
    rows = []
    for (recipe, slot), own in twins.sort("recipe", "slot").group_by(
        "recipe", "slot", maintain_order=True
    ):
        if own["control_outcome"].count() < FEWEST_CONTROLS:
            continue
        found = logged_pairs.account(own)
        assert found is not None
        for series, measured in coupling.gains(found).items():
            rows.append(
                measured
                | {"panel": "gain", "series": series, "label": str(recipe), "place": float(slot)}
                | {"num_pairs": own["control_outcome"].count(), "equal_share": found.equal_share}
            )
    return rows


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """Measured against predicted variance, and the gain by turn; a panel each, if there."""
    parts = {name: table.filter(pl.col("panel") == name) for name in ("ratio", "chain", "gain")}
    parts = {name: rows for name, rows in parts.items() if len(rows)}
    width = style.PAGE if len(parts) > 1 else style.COLUMN
    figure, panels = style.panels(len(parts), width=width, height=3.1)
    for panel, (name, rows) in zip(panels, parts.items(), strict=True):
        PANELS[name](panel, rows.drop_nulls(["place", "value"]))
    return figure


def _draw_ratio(panel: Axes, rows: pl.DataFrame) -> None:
    top = 1.05 * float(np.max(rows.select("place", "value").to_numpy(), initial=1.0))
    panel.plot([0, top], [0, top], color=style.MUTED, lw=0.8, ls="--")
    looks = style.looks(rows["series"].unique().to_list(), first=("smooth",))
    for series, look in looks.items():
        style.bars(panel, rows.filter(series=series), label=series, **look)
    panel.set_xlabel(r"exact ratio (bandit: $1-\rho_{\mathrm{eff}}$)")
    panel.set_ylabel("measured variance ratio")
    panel.set_xlim(0, top)
    panel.set_ylim(0, top)
    style.legend_below(panel, num_columns=2)


def _draw_chain(panel: Axes, rows: pl.DataFrame) -> None:
    """The gain along the turns of the study's chains: a colour a chain, raw solid."""
    looks = style.looks(rows["label"].unique().to_list(), first=())
    for (label, series), own in rows.group_by("label", "series", maintain_order=True):
        is_raw = series == "raw"
        name = str(label) if is_raw else None
        style.bars(
            panel, own, is_log=True, label=name, ls="-" if is_raw else ":", **looks[str(label)]
        )
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel("forked at turn (dotted: dedup.)")
    _finish_gain(panel)


def _draw_gain(panel: Axes, rows: pl.DataFrame) -> None:
    """The gain of training runs by the slot forked at: raw beside deduplicated."""
    slots = rows["place"].unique().sort().to_list()
    in_parts = coupling.has_parts(slots)
    labels = rows["label"].unique(maintain_order=True).to_list()
    looks = style.looks(rows["series"].unique().to_list(), first=("dedup",))
    groups = list(rows.group_by("label", "series", maintain_order=True))
    for index, ((label, series), own) in enumerate(groups):
        shift = 0.5 * ((index + 0.5) / len(groups) - 0.5)
        places = own.with_columns(
            place=pl.col("place").replace_strict(slots, range(len(slots))) + shift
        )
        name = str(series) if len(labels) == 1 else f"{label}: {series}"
        look = looks[str(series)] | {"marker": style.MARKERS[labels.index(label)]}
        style.bars(panel, places, label=name, is_log=True, **look)
    names = [coupling.slot_name(int(slot), in_parts) for slot in slots]
    panel.set_xticks(range(len(slots)), names, rotation=90 if len(slots) > 8 else 0)
    panel.set_xlabel("forked at part.turn" if in_parts else "forked at turn")
    _finish_gain(panel)


def _finish_gain(panel: Axes) -> None:
    panel.axhline(1, color=style.MUTED, lw=0.8, ls="--")
    panel.set_yscale("log")
    style.plain_log_axis(panel.yaxis)
    panel.set_ylabel("coupling gain")
    style.legend_below(panel)


PANELS = {"ratio": _draw_ratio, "chain": _draw_chain, "gain": _draw_gain}


def caption(table: pl.DataFrame) -> str:
    """What the panels show."""
    texts = []
    if (table["panel"] == "ratio").any():
        texts.append(
            "Measured variance of pairs over that of pairs with fresh luck, against its exact "
            "value, which is 1 - rho_eff in the bandit; dashed: identity."
        )
    gain = table.filter(pl.col("panel") != "ratio")
    if len(gain):
        undefined = gain["value"].null_count()
        texts.append(
            "Coupling gain on the same forks and decisions, shared against fresh luck, by the turn "
            "forked at: raw, and deduplicated (the control's difference set to 0 where decisions "
            "are equal), which is what coupling itself gives."
            + (f" Undefined and not drawn: {undefined}." if undefined else "")
        )
    return " ".join([*texts, "Bars: 95% intervals, clustered by task in training runs."])
