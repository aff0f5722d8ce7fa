"""Sample complexity: pairs to resolve an effect, twins against independent rollouts.

The headline is Theta(1/effect) against Theta(1/effect^2) where discordance shrinks with the effect,
and that twins follow the square law where it does not. Leaves out anytime stopping for its own
sake, and the fit (`twinstats.complexity`, logged by the study).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri

from paper import logs, style

NEEDS = ("complexity", "complexity_fit")
COMMAND = "twice simulate complexity --out runs/complexity"

HEADLINE = "smooth"
ARMS = {"shared": "twin", "fresh": "independent"}
KEY = ["regime", "arm", "reading"]
SCHEMA = {
    "regime": pl.String,
    "arm": pl.String,
    "reading": pl.String,
    "effect": pl.Float64,
    "pairs": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "is_drawn": pl.Boolean,
    "slope": pl.Float64,
    "slope_low": pl.Float64,
    "slope_high": pl.Float64,
}


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a regime, arm, reading and effect: pairs needed, and its curve's fitted exponent.

    Reading "power" is exact; "stopping" is simulated, with 95% intervals; pairs are null where too
    many runs hit their cap. Repeated rows are averaged on the log scale. `is_drawn` is false where
    effect or pairs are null or not positive: the figure's log axes have no place for them.

    Raises:
        MissingLogs: The study was not run, or has no point that can be drawn.
    """
    study = logs.read(runs, "complexity")
    if study is None:
        raise logs.missing("complexity", NEEDS[:1], runs, COMMAND)
    points = _named(study).group_by(*KEY, "effect").agg("pairs", "stderr_log_pairs")
    rows = [
        {name: point[name] for name in (*KEY, "effect")} | _averaged(**point)
        for point in points.sort(*KEY, "effect").to_dicts()
    ]
    averaged = pl.DataFrame(rows, schema={k: v for k, v in SCHEMA.items() if "slope" not in k})
    if not averaged["is_drawn"].any():
        unknown = "positive effect whose number of pairs is known"
        raise logs.missing("complexity", NEEDS[:1], runs, COMMAND, rows=unknown)
    return averaged.join(_slopes(runs), on=KEY, how="left", maintain_order="left").select(*SCHEMA)


def _named(study: pl.DataFrame) -> pl.DataFrame:
    return study.with_columns(arm=pl.col("coupling").replace(ARMS))


def _slopes(runs: Sequence[Path]) -> pl.DataFrame:
    fits = logs.read(runs, "complexity_fit")
    columns = {"slope": "slope", "slope_low": "low", "slope_high": "high"}
    if fits is None:
        return pl.DataFrame(
            schema={name: pl.String for name in KEY} | dict.fromkeys(columns, pl.Float64)
        )
    own = _named(fits).select(*KEY, **{name: pl.col(column) for name, column in columns.items()})
    return own.unique(KEY, keep="first", maintain_order=True)


def _averaged(
    *, effect: float, pairs: list[float | None], stderr_log_pairs: list[float | None], **_: str
) -> dict:
    """Geometric mean of repeated rows; one that is null or not positive is passed on."""
    known = [value for value in pairs if value is not None]
    if len(known) < len(pairs):
        return {"pairs": None, "is_drawn": False}
    if effect <= 0 or min(known) <= 0:
        return {"pairs": min(known), "is_drawn": False}
    centre = float(np.mean(np.log(known)))
    found = {"pairs": float(np.exp(centre)), "is_drawn": True}
    errors = [value for value in stderr_log_pairs if value is not None]
    if len(errors) < len(known):
        return found
    half = float(ndtri(0.975) * np.sqrt(np.sum(np.square(errors))) / len(known))
    return found | {"low": float(np.exp(centre - half)), "high": float(np.exp(centre + half))}


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """Twins against independent rollouts; twins in every regime."""
    drawn = table.filter("is_drawn")
    headline = drawn.filter(pl.col("regime") == HEADLINE)
    twins = drawn.filter(pl.col("arm") == "twin")
    figure, panels = style.panels(2, height=3.2)
    panels[1].sharey(panels[0])
    looks = {
        "twin": {"color": style.COLOURS[0], "marker": "o"},
        "independent": {"color": style.MUTED, "marker": "s"},
    }
    for arm, look in looks.items():
        own = headline.filter(pl.col("arm") == arm)
        _draw_curve(panels[0], own, arm + _both_exponents(own), look)
    panels[0].set_title(f"{HEADLINE}: discordance ~ effect")
    reference = headline.filter(pl.col("arm") == "independent")
    _draw_curve(panels[1], reference, f"independent, {HEADLINE}", looks["independent"])
    regimes = style.looks(twins["regime"].unique().to_list(), first=(HEADLINE,))
    for regime, look in regimes.items():
        own = twins.filter(pl.col("regime") == regime)
        _draw_curve(panels[1], own, regime + _exponent(own, "power"), look)
    panels[1].set_title("twins in every regime")
    for panel, num_columns in zip(panels, (1, 2), strict=True):
        _finish(panel, num_columns)
    return figure


def _draw_curve(panel: Axes, rows: pl.DataFrame, label: str, look: dict) -> None:
    """Exact pairs as a line, simulated ones as points."""
    exact = rows.filter(pl.col("reading") == "power").sort("effect")
    points = rows.filter(pl.col("reading") == "stopping").sort("effect")
    if len(exact):
        panel.plot(exact["effect"], exact["pairs"], color=look["color"], lw=1.1)
    if len(points):
        places = points.rename({"effect": "place", "pairs": "value"})
        style.bars(panel, places, is_log=True, **look)
    if len(rows):
        panel.plot([], [], label=label, **(look if len(points) else {"color": look["color"]}))


def _both_exponents(rows: pl.DataFrame) -> str:
    simulated, exact = _exponent(rows, "stopping"), _exponent(rows, "power")
    return simulated + (f", exact{exact}" if exact else "")


def _exponent(rows: pl.DataFrame, reading: str) -> str:
    """The fitted exponent as the legend shows it; simulated ones with their interval."""
    known = rows.filter(pl.col("reading") == reading).drop_nulls("slope")
    if known.is_empty():
        return ""
    row = known.row(0, named=True)
    text = f" {row['slope']:.2f}"
    if reading == "power" or row["slope_low"] is None or row["slope_high"] is None:
        return text
    return f"{text} [{row['slope_low']:.2f}, {row['slope_high']:.2f}]"


def _finish(panel: Axes, num_columns: int) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("effect")
    panel.set_ylabel("pairs to resolve it")
    style.legend_below(panel, num_columns=num_columns)


def caption(table: pl.DataFrame) -> str:
    """What lines and points are, and how many could not be drawn."""
    dropped = table.filter(~pl.col("is_drawn"))
    censored = dropped["pairs"].null_count()
    text = (
        "Pairs needed to resolve an effect, on log axes. Lines: exact, for power .8 at level .05. "
        "Points: median pairs at which the anytime test stopped, simulated, with 95% intervals. "
        "Legend: fitted exponents, of the points with their 95% interval, of the lines without. "
        "Twins follow 1/effect only where discordance shrinks with the effect."
    )
    if censored:
        text += f" {censored} points are undefined (the cap was hit in half of the runs or more)."
    if len(dropped) > censored:
        text += f" Not positive, so not on a log axis: {len(dropped) - censored} dropped."
    return text
