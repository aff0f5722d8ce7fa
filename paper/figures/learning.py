"""Learning curves: what each method's agent achieves for the tokens it has sampled.

Leaves out what the credit was worth by itself (`leaderboard`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.special import ndtri

from paper import logs, style
from twinstats.means import mean_interval

NEEDS = ("metrics",)
COMMAND = "twice train RECIPE --out runs/NAME"

CURVES = {
    "exact_match": ("eval/exact_match_share", "eval/total_tokens", "eval/stderr_share"),
    "test_outcome": ("eval/outcome_share", "eval/total_tokens", "eval/outcome_stderr_share"),
    "outcome": ("train/outcome_share", "train/total_tokens", None),
}
"""Each measure by the metrics that hold its values, its tokens and its standard errors.

Only runs with a reward of the user's own have a test outcome; theirs may be any number.
"""

TESTS = {"test_outcome": "test outcome", "exact_match": "test exact match"}
"""The measures of test questions, what is trained first, and what they are called."""

MOST_POINTS = 24
FEWEST_SEEDS = 3
"""With fewer, intervals are those of the test questions: they say nothing of other seeds."""

SCHEMA = {
    "setting": pl.String,
    "method": pl.String,
    "measure": pl.String,
    "kind": pl.String,
    "run": pl.String,
    "seed": pl.Int64,
    "tokens": pl.Float64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "num_seeds": pl.Int64,
}


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """Points of the learning curves.

    `kind` is "seed" (one run; its interval is that of its test questions), "mean" (over the runs of
    a setting and method, linear between a run's points, where all of them have tokens), "before" or
    "after" (the mean at the runs' first and last evaluation). Intervals of means are 95% t
    intervals over runs; with fewer than three, the mean of the runs' intervals for their test
    questions. Training outcomes are means over blocks of steps.

    Raises:
        MissingLogs: No training run with evaluations or outcomes.
    """
    points = _points(runs)
    if points is None or points.is_empty():
        lacks = "evaluations or outcomes of a run that learns"
        raise logs.missing("learning", NEEDS, runs, COMMAND, rows=lacks)
    rows: list[dict] = []
    free = set(points.filter(measure="test_outcome")["run"])
    for (setting, method, measure), own in points.group_by(
        "setting", "method", "measure", maintain_order=True
    ):
        name = {"setting": setting, "method": method, "measure": measure}
        curves = [curve for _, curve in own.group_by("run", maintain_order=True)]
        rows += [name | row for row in own.drop("setting", "method", "measure").to_dicts()]
        is_share = measure == "exact_match" or free.isdisjoint(own["run"])
        rows += [name | row for row in _mean_rows(curves, is_share=is_share)]
    return pl.DataFrame(rows, schema=SCHEMA).sort(
        "setting", "method", "measure", "kind", "run", "tokens", nulls_last=True
    )


def _points(runs: Sequence[Path]) -> pl.DataFrame | None:
    """The single runs' points of all measures."""
    metrics = logs.read(runs, "metrics")
    if metrics is None:
        return None
    # a learning rate of 0 only measures the policy it starts from
    described = logs.describe(runs).filter(pl.col("method").is_not_null() & pl.col("learns"))
    frames = []
    for measure in CURVES:
        own = _joined(metrics, measure)
        frame = own.join(described.drop("recipe", "learns"), on="run", how="inner")
        frames.append(frame.with_columns(measure=pl.lit(measure)))
    points = pl.concat(frames).with_columns(kind=pl.lit("seed"), num_seeds=pl.lit(1, pl.Int64))
    return points.sort("setting", "method", "measure", "run", "tokens").select(list(SCHEMA))


def _joined(metrics: pl.DataFrame, measure: str) -> pl.DataFrame:
    """run, tokens, value, low, high: a measure against the tokens spent when it was logged."""
    value, tokens, stderr = CURVES[measure]
    names = [name for name in (value, tokens, stderr) if name is not None]
    wide = (
        metrics.filter(pl.col("name").is_in(names))
        .pivot(
            on="name",
            on_columns=names,
            index=["run", "step"],
            values="value",
            aggregate_function="last",
        )
        .drop_nulls([value, tokens])
        .sort("run", "step")
    )
    columns = [pl.col("run"), pl.col(tokens).alias("tokens"), pl.col(value).alias("value")]
    if stderr is None:
        return _blocks(wide.select(*columns))
    half = ndtri(0.975) * pl.col(stderr)
    low, high = pl.col(value) - half, pl.col(value) + half
    if measure == "exact_match":
        low, high = low.clip(0, 1), high.clip(0, 1)
    return wide.select(*columns, low=low, high=high)


def _blocks(points: pl.DataFrame) -> pl.DataFrame:
    """Means over as many blocks of consecutive steps as a curve can show."""
    index, count = pl.int_range(pl.len()).over("run"), pl.len().over("run")
    block = index * pl.min_horizontal(count, MOST_POINTS) // count
    return (
        points.with_columns(block=block)
        .group_by("run", "block", maintain_order=True)
        .agg(pl.col("tokens", "value").mean())
        .select(
            "run",
            "tokens",
            "value",
            low=pl.lit(None, pl.Float64),
            high=pl.lit(None, pl.Float64),
        )
    )


def _mean_rows(curves: Sequence[pl.DataFrame], *, is_share: bool) -> list[dict]:
    """The mean over runs along their common range of tokens, and at their two ends."""
    lows = [float(curve["tokens"][0]) for curve in curves]
    highs = [float(curve["tokens"][-1]) for curve in curves]
    all_tokens = np.unique(np.concatenate([curve["tokens"].to_numpy() for curve in curves]))
    inside = all_tokens[(all_tokens >= max(lows)) & (all_tokens <= min(highs))]
    if len(inside) > MOST_POINTS:
        inside = np.linspace(inside[0], inside[-1], MOST_POINTS)
    rows = [
        _mean_row("mean", float(tokens), [_at(curve, float(tokens)) for curve in curves], is_share)
        for tokens in inside
    ]
    for kind, ends in (("before", lows), ("after", highs)):
        own = [_at(curve, tokens) for curve, tokens in zip(curves, ends, strict=True)]
        rows.append(_mean_row(kind, float(np.mean(ends)), own, is_share))
    return rows


def _at(curve: pl.DataFrame, tokens: float) -> dict[str, float]:
    """value, low and high of a run, linear between its points; NaN where it has no interval."""
    names = ("value", "low", "high")
    return {
        name: float(
            np.interp(tokens, curve["tokens"], curve[name].cast(pl.Float64).fill_null(np.nan))
        )
        for name in names
    }


def _mean_row(kind: str, tokens: float, own: Sequence[dict[str, float]], is_share: bool) -> dict:
    """The mean of values; its interval stays within [0, 1] where they are shares."""
    num, values = len(own), np.array([point["value"] for point in own])
    mean = float(values.mean())
    row = {"kind": kind, "tokens": tokens, "value": mean, "num_seeds": num}
    if num < FEWEST_SEEDS:
        # runs answer the same questions, so their mean is no surer of them than each of them is
        ends = {name: float(np.mean([point[name] for point in own])) for name in ("low", "high")}
        return row | {name: None if np.isnan(end) else end for name, end in ends.items()}
    low, high = mean_interval(values) or (mean, mean)
    if is_share:
        low, high = max(low, 0.0), min(high, 1.0)
    return row | {"low": low, "high": high}


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """A row a setting: test and training curves against tokens, the test before and after."""
    measures = [name for name in CURVES if name in set(table["measure"])]
    has_test = not set(TESTS).isdisjoint(measures)
    ratios = [1.0] * len(measures) + [0.6] * has_test
    settings = table.partition_by("setting", maintain_order=True)
    figure, rows = style.grid(len(settings), len(ratios), ratios=ratios, height=2.8)
    looks = style.looks(table["method"].unique().to_list())
    for panels, own in zip(rows, settings, strict=True):
        _draw_setting(panels, own, measures, looks)
        if len(settings) > 1:
            panels[0].set_title(own["setting"][0], fontsize="medium")
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        handles |= dict(zip(*panel.get_legend_handles_labels()[::-1], strict=True))
    columns = min(len(handles), 6)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns)
    return figure


def _draw_setting(
    panels: Sequence[Axes], own: pl.DataFrame, measures: Sequence[str], looks: dict[str, dict]
) -> None:
    names = TESTS | {"outcome": "training outcome"}
    for panel, measure in zip(panels, measures, strict=False):
        _draw_curves(panel, own.filter(pl.col("measure") == measure), looks)
        panel.set_ylabel(names[measure])
    if len(panels) > len(measures):
        tested = [name for name in TESTS if name in set(own["measure"])]
        _draw_ends(panels[-1], own.filter(pl.col("measure").is_in(tested[:1])), looks)
        if tested[:1] == ["test_outcome"]:
            panels[-1].set_ylabel(TESTS["test_outcome"])


def _draw_curves(panel: Axes, own: pl.DataFrame, looks: dict[str, dict]) -> None:
    for (method,), rows in own.group_by("method", maintain_order=True):
        look = looks[str(method)]
        mean = rows.filter(pl.col("kind") == "mean")
        seeds = rows.filter(pl.col("kind") == "seed")
        if seeds["run"].n_unique() > 1:
            for _, seed in seeds.group_by("run", maintain_order=True):
                panel.plot(seed["tokens"], seed["value"], lw=0.5, alpha=0.45, color=look["color"])
        band = mean.drop_nulls("low")
        if len(band):
            panel.fill_between(
                band["tokens"], band["low"], band["high"], alpha=0.15, lw=0, color=look["color"]
            )
        label = style.mark(str(method))
        panel.plot(
            mean["tokens"], mean["value"], label=label, **look, markevery=max(1, len(mean) // 6)
        )
    panel.set_xlabel("sampled tokens, twins included")
    panel.xaxis.set_major_locator(MaxNLocator(4))
    panel.xaxis.set_major_formatter(lambda value, _: style.short_number(value))
    _start_at_zero(panel)


def _draw_ends(panel: Axes, own: pl.DataFrame, looks: dict[str, dict]) -> None:
    ends = own.filter(pl.col("kind").is_in(["before", "after"]))
    methods = ends["method"].unique().sort().to_list()
    for index, name in enumerate(methods):
        shift = 0.3 * (index / max(len(methods) - 1, 1) - 0.5) if len(methods) > 1 else 0.0
        rows = ends.filter(pl.col("method") == name).sort("kind", descending=True)
        places = [shift, 1 + shift]
        panel.plot(places, rows["value"], **looks[name])
        known = rows.with_columns(place=pl.Series(places)).drop_nulls("low")
        panel.vlines(known["place"], known["low"], known["high"], color=looks[name]["color"], lw=1)
    panel.set_xticks([0, 1], ["before", "after"])
    panel.set_xlim(-0.4, 1.4)
    _start_at_zero(panel)
    panel.grid(axis="x", visible=False)


def _start_at_zero(panel: Axes) -> None:
    """Lets the values start at 0, unless some are below."""
    if panel.dataLim.y0 >= 0:
        panel.set_ylim(bottom=0)


def caption(table: pl.DataFrame) -> str:
    """What the curves are, and how many seeds each has."""
    key = ["setting", "method"]
    means = table.filter(pl.col("kind") == "after").unique(key, keep="first").sort(key)
    text = (
        "What the agent achieves against all tokens sampled so far, twins included. Thick lines "
        "are means over seeds, bands their 95% t intervals, thin lines single seeds."
    )
    if "test_outcome" in set(table["measure"]):
        text += " Test outcome: what the run's own reward pays on test questions."
    for (setting,), own in means.group_by("setting", maintain_order=True):
        seeds = ", ".join(f"{row['method']} {row['num_seeds']}" for row in own.to_dicts())
        text += f" Seeds, {setting}: {seeds}."
    if (means["num_seeds"] < FEWEST_SEEDS).any():
        text += (
            " A method with fewer than three seeds has the interval of its test questions instead, "
            "which says nothing of other seeds."
        )
    if any(style.is_reconstructed(method) for method in table["method"]):
        text += " * Reconstructed from second-hand descriptions."
    return text
