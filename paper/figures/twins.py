"""What coupling saves on a real agent, and how long twins agree after the fork.

Leaves out what that is worth at equal tokens (`oracle`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from paper import coupling, logs, oracle, style
from paper.figures.variance import FEWEST_CONTROLS
from twinstats import logged_pairs

NEEDS = ("oracle_forks",)
COMMAND = oracle.COMMAND

KINDS = ("twin", "maximal")
"""Forks with shared luck: coupled by the noise, or maximally."""

MOST_ROWS = 4
TAIL_BINS = 4
_APART = 0.03  # series beside each other, of the width of a panel
_RESAMPLES = 1999  # of the medians
_BEYOND = 4  # how far over the values a panel shows their bars
EQUAL_EDGES = (0.25, 0.5, 0.75)
PANELS = {
    "slot": "forked at turn",
    "tail": "tokens after the turn",
    "equal": "equal decisions, share",
    "agreement": "forked at turn",
}
LOOKS: dict[tuple[str, str], dict[str, Any]] = {
    ("twin", "raw"): {"color": style.MUTED, "marker": "s", "ls": ":"},
    ("twin", "deduplicated"): {"color": style.COLOURS[0], "marker": "o", "ls": "-"},
    ("maximal", "deduplicated"): {"color": style.COLOURS[1], "marker": "D", "ls": "--"},
    ("twin", "agreement"): {"color": style.COLOURS[0], "marker": "o", "ls": "-"},
    ("maximal", "agreement"): {"color": style.COLOURS[1], "marker": "D", "ls": "--"},
    ("control", "agreement"): {"color": style.COLOURS[2], "marker": "^", "ls": "-."},
}
LABELS = {
    ("twin", "raw"): "twins, raw gain",
    ("twin", "deduplicated"): "twins, deduplicated: what coupling gives",
    ("maximal", "deduplicated"): "maximal coupling, deduplicated",
    ("control", "agreement"): "fresh luck",
}
SCHEMA = {
    "setting": pl.String,
    "outcome": pl.String,
    "panel": pl.String,
    "kind": pl.String,
    "series": pl.String,
    "place": pl.Float64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "num_pairs": pl.Int64,
    "equal_share": pl.Float64,
    "equal_low": pl.Float64,
    "equal_high": pl.Float64,
}


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """Rows of the panels of each setting and outcome, with 95% intervals clustered by task.

    Panels "slot", "tail" and "equal": `value` the coupling gain of forks with shared luck (`kind`
    "twin" or "maximal") over their controls, `series` "raw" or "deduplicated"; `place` the slot
    forked at, the median tokens after that turn in each quarter of the forks, or the share of
    equal decisions among the other alternatives of the same turn (its own decision would choose
    by what is measured). Panel "agreement": the share of later turns that are the factual's, by
    slot, of forks whose decision is another. Panel "first": the median number of tokens after it
    that are the factual's before the first that is not, with the percentiles of a bootstrap over
    tasks; no row where most never differ, null for an end where half do not. Panel "null": the
    share of null twins that drew other tokens or failed, `high` the exact bound on the share of
    episodes with one where none did. Cells with fewer than 20 pairs that have a control are left
    out.

    Raises:
        MissingLogs: The study was not run, or has no gain that is identified and positive.
    """
    forks = oracle.read(runs, "oracle_forks")
    rows: list[dict[str, Any]] = []
    if forks is not None:
        for (setting, outcome), own in forks.group_by(oracle.PLACE, maintain_order=True):
            known = {"setting": setting, "outcome": outcome}
            found = (*_gain_rows(own), *_agreement_rows(own), *_null_rows(own))
            rows += [known | row for row in found]
    table = pl.DataFrame(rows, schema=SCHEMA)
    if _gains_of(table).filter(pl.col("value") > 0).is_empty():
        enough = (
            f"identified gain ({FEWEST_CONTROLS} twins of a turn that have a control, and outcomes "
            "that differ: more oracle.episodes give them)"
        )
        raise logs.missing("twins", NEEDS, runs, COMMAND, rows=enough)
    return table


def _gain_rows(forks: pl.DataFrame) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        joined = oracle.beside_controls(forks, kind)
        if joined.is_empty():
            continue
        for panel, cells in (("slot", _slots), ("tail", _tails), ("equal", _equals)):
            for place, own in cells(joined):
                for row in _gains(own):
                    yield row | {"panel": panel, "kind": kind, "place": place}


def _gains(own: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The raw and the deduplicated gain of a cell's pairs."""
    num_pairs = own["control_outcome"].count()
    if num_pairs < FEWEST_CONTROLS:
        return
    account = logged_pairs.account(own)
    assert account is not None
    equal = coupling.measured(account, "equal_share")
    known = {
        "num_pairs": num_pairs,
        "equal_share": equal["value"],
        "equal_low": equal["low"],
        "equal_high": equal["high"],
    }
    for series, gain in coupling.gains(account).items():
        yield gain | known | {"series": series}


def _slots(pairs: pl.DataFrame) -> Iterator[tuple[float, pl.DataFrame]]:
    for (slot,), own in pairs.sort("slot").group_by("slot", maintain_order=True):
        yield float(str(slot)), own


def _tails(pairs: pl.DataFrame) -> Iterator[tuple[float, pl.DataFrame]]:
    """Quarters of the pairs by tokens after the turn."""
    tails = pairs["tail_tokens"].to_numpy()
    edges = np.unique(np.quantile(tails, np.arange(1, TAIL_BINS) / TAIL_BINS))
    yield from _binned(pairs, tails, edges, np.median)


def _equals(pairs: pl.DataFrame) -> Iterator[tuple[float, pl.DataFrame]]:
    """Bins of the share of equal decisions among the other alternatives of the same turn."""
    turn = ["run", "factual", "turn"]
    others = pairs.with_columns(
        share=(pl.col("equal").sum().over(turn) - pl.col("equal")) / (pl.len().over(turn) - 1)
    ).filter(pl.len().over(turn) > 1)
    yield from _binned(others, others["share"].to_numpy(), np.array(EQUAL_EDGES), np.mean)


def _binned(
    pairs: pl.DataFrame, values: np.ndarray, edges: np.ndarray, centre: Any
) -> Iterator[tuple[float, pl.DataFrame]]:
    index = np.searchsorted(edges, values, side="left")
    for bin_ in np.unique(index).tolist():
        yield float(centre(values[index == bin_])), pairs.filter(index == bin_)


def _agreement_rows(forks: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Of forks whose decision is another than the factual's."""
    played = forks.drop_nulls("fork").filter(pl.col("kind").is_in([*KINDS, "control"]))
    others = played.filter(~pl.col("equal"))
    for (kind,), of_kind in others.group_by("kind", maintain_order=True):
        known = {"kind": kind, "series": "agreement", "equal_share": 0.0}
        for (slot,), own in (
            of_kind.drop_nulls("agree_turns").sort("slot").group_by("slot", maintain_order=True)
        ):
            where = {"panel": "agreement", "place": float(str(slot)), "num_pairs": len(own)}
            yield known | where | oracle.mean(own, "agree_turns")
        if (first := _first(of_kind)) is not None:
            where = {"panel": "first", "place": None, "num_pairs": len(of_kind)}
            yield known | where | first


def _first(own: pl.DataFrame) -> dict[str, float | None] | None:
    """The median number of tokens to the first difference; null where most have none."""
    numbers = own["first_differing"].cast(pl.Float64).fill_null(np.inf).to_numpy()
    median = float(np.median(numbers))
    if not np.isfinite(median):
        return None
    values, ends = _median_ends(numbers, np.unique(own["task"], return_inverse=True)[1])
    low, high = (float(values[end]) if np.isfinite(values[end]) else None for end in ends)
    return {"value": median, "low": low, "high": high}


def _median_ends(numbers: np.ndarray, task: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    """The numbers in order, each once, and the places among them of the median's interval."""
    values, place = np.unique(numbers, return_inverse=True)
    counts = np.zeros((task.max() + 1, len(values)))
    np.add.at(counts, (task, place), 1)

    def median_place(chosen: np.ndarray, axis: int) -> np.ndarray:
        reached = counts[chosen].sum(axis=-2).cumsum(axis=-1)
        return np.asarray((2 * reached >= reached[..., -1:]).argmax(axis=-1), np.float64)

    found = stats.bootstrap(
        (np.arange(len(counts)),),
        median_place,
        n_resamples=_RESAMPLES,
        batch=100,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return values, (int(np.floor(found.low)), int(np.ceil(found.high)))


def _null_rows(forks: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Null twins that drew other tokens, or failed: the replay's own exactness."""
    nulls = forks.filter(kind="null")
    if not nulls.is_empty():
        same = pl.col("fork").is_not_null() & pl.col("first_differing").is_null()
        asked = nulls.with_columns(factual=pl.lit(1.0), fork=same.cast(pl.Float64))
        found = oracle.mean_square(asked)
        kept = {name: found[name] for name in ("value", "low", "high", "num_pairs")}
        yield kept | {"panel": "null", "kind": "null", "series": "differing", "place": None}


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """A row a setting and outcome: the gain by turn, tail and equal decisions; the agreement."""
    places = oracle.drawn(_gains_of(table), MOST_ROWS)
    figure, rows = style.grid(len(places), len(PANELS), height=2.0)
    for panels, (setting, outcome) in zip(rows, places, strict=True):
        own = table.filter(setting=setting, outcome=outcome)
        for panel, name in zip(panels, PANELS, strict=True):
            _draw_panel(panel, own.filter(panel=name), name)
        panels[0].set_ylabel(f"{setting}\n{outcome}\ncoupling gain")
        panels[-1].set_ylabel("same later turns")
    for panel, text in zip(rows[-1], PANELS.values(), strict=True):
        panel.set_xlabel(text)
    handles = [
        rows[0][0].plot([], [], label=label, **LOOKS[key])[0] for key, label in LABELS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _gains_of(table: pl.DataFrame) -> pl.DataFrame:
    """The rows of the gains' panels: what has none of them has no place in the figure."""
    return table.filter(pl.col("panel").is_in(["slot", "tail", "equal"]))


def _draw_panel(panel: Axes, rows: pl.DataFrame, name: str) -> None:
    rows = rows.drop_nulls("value")
    is_gain = name != "agreement"
    if is_gain:
        rows = rows.filter(pl.col("value") > 0)
        panel.axhline(1, color=style.MUTED, lw=0.8, ls="--")
        panel.set_yscale("log")
    else:
        panel.set_ylim(0, 1.02)
    if name in ("slot", "agreement"):
        rows = _at_slots(panel, rows)
    if name == "equal":
        panel.set_xlim(-0.1, 1.1)
    if not rows.is_empty():
        _draw_series(panel, rows, is_log=is_gain)
    if is_gain:
        _limit(panel, rows["value"].to_list())
        style.plain_log_axis(panel.yaxis, steps=style.steps_within(*panel.get_ylim()))


def _limit(panel: Axes, values: Sequence[float]) -> None:
    """Keeps bars from squeezing the values: they may leave the panel."""
    bottom, top = panel.get_ylim()
    least, most = min([*values, 1.0]), max([*values, 1.0])
    panel.set_ylim(max(bottom, least / _BEYOND), min(top, most * _BEYOND))


def _draw_series(panel: Axes, rows: pl.DataFrame, *, is_log: bool) -> None:
    """Each kind and series of the rows, a little beside each other."""
    width = _APART * max(1.0, float(np.ptp(rows["place"].to_numpy())))
    shown = [key for key in LOOKS if len(rows.filter(kind=key[0], series=key[1]))]
    for index, (kind, series) in enumerate(shown):
        own = rows.filter(kind=kind, series=series).sort("place")
        own = own.with_columns(pl.col("place") + width * (index - (len(shown) - 1) / 2))
        style.bars(panel, own, is_log=is_log, markersize=3, **LOOKS[kind, series])


def _at_slots(panel: Axes, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with their slots side by side on the panel's axis."""
    slots = rows["place"].unique().sort().to_list()
    in_parts = coupling.has_parts(slots)
    names = [coupling.slot_name(int(slot), in_parts) for slot in slots]
    panel.set_xticks(range(len(slots)), names, rotation=90 if len(slots) > 6 else 0)
    numbers = pl.Series(range(len(slots)), dtype=pl.Float64)
    return rows.with_columns(place=pl.col("place").replace_strict(slots, numbers))


def caption(table: pl.DataFrame) -> str:
    """What the panels show, what is not on their axes, and how soon forks differ."""
    text = (
        "Coupling gain of an agent's twins, variance of fresh-luck branches over that of twins on "
        "the same forks and decisions: by the turn forked at (part.turn where a task has parts), "
        "by the tokens after that turn, by the share of equal decisions among the other "
        "alternatives of the turn; raw, and deduplicated (equal decisions count as difference 0), "
        "which is what coupling itself gives. Last panels: the share of later turns that are the "
        "factual's after another decision. Bars: 95% intervals clustered by task; those that "
        "leave their panel are in the table."
    )
    gains = _gains_of(table)
    undrawn = len(gains) - len(gains.filter(pl.col("value") > 0))
    text += f" Undefined or 0 and not drawn: {undrawn}." if undrawn else ""
    for setting in table["setting"].unique(maintain_order=True):
        first = table.drop_nulls("value").filter(panel="first", setting=setting)
        first = first.unique("kind", keep="first", maintain_order=True)
        said = [_median_text(row) for row in first.to_dicts()]
        if said:
            text += f" Median tokens until the first that differs, {setting}: {', '.join(said)}."
        nulls = table.drop_nulls("value").filter(panel="null", setting=setting).head(1)
        text += "".join(map(_null_text, nulls.to_dicts()))
    return text + oracle.left_out(gains, MOST_ROWS)


def _median_text(row: dict[str, Any]) -> str:
    low, high = ("∞" if row[end] is None else f"{row[end]:g}" for end in ("low", "high"))
    return f"{row['kind']} {row['value']:g} [{low}, {high}]"


def _null_text(row: dict[str, Any]) -> str:
    found = f"{row['value']:.1%}"
    if row["value"] == 0:
        found = f"none, at most {row['high']:.1%} of episodes"
    return f" Of {row['num_pairs']} null twins, {row['setting']}, drew other tokens: {found}."
