"""What training achieved, method by method: test scores, tokens, and what coupling saved.

Leaves out the curves (`paper.figures.learning`).
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paper import coupling, logs, style
from twinstats import logged_pairs, records
from twinstats.corrections import holm
from twinstats.means import mean_interval
from twinstats.pairs import paired

NEEDS = ("scores", "metrics")
COMMAND = "twice results --out runs/results"

METRICS = ("exact_match", "f1")
REFERENCE = "rloo"

SCHEMA = {
    "setting": pl.String,
    "method": pl.String,
    "against": pl.String,
    "decoding": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "num_seeds": pl.Int64,
    "pvalue": pl.Float64,
    "pvalue_holm": pl.Float64,
    "reason": pl.String,
}


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """Rows of each setting (recipe, questions an episode, reward) and method, over its seeds.

    - With `against` null: the mean of a test score at the end of training (`metric` exact_match or
      f1, sampled and greedy), or of a number of the whole run (`decoding` null): updates,
      total_tokens, auxiliary_share, and deduplicated_gain, the coupling gain of all its pairs.
      95% t intervals over seeds (for the gain clustered by task), null with one seed.
    - With `against`, another method: the mean difference of a score, method - against, paired by
      seed, with its t interval and p-value, and Holm's over all pairs of methods of that setting,
      decoding and metric. Seeds share questions, so this speaks of new runs on these questions.

    Before training all runs of a setting answer alike: method "(before)".

    Raises:
        MissingLogs: No finished training run with scores.
    """
    described = _described(runs)
    scores, metrics = logs.read(runs, "scores"), logs.read(runs, "metrics")
    if scores is None or metrics is None or described.is_empty():
        raise logs.missing("training", NEEDS, runs, COMMAND, rows="finished run that learns")
    ends = scores.filter(pl.col("kind") == "all", pl.col("metric").is_in(METRICS)).join(
        described, on="run"
    )
    rows = [*_scores(ends), *_differences(ends), *_spent(metrics.join(described, on="run"))]
    rows += _gains(runs, described)
    return pl.DataFrame(rows, schema=SCHEMA).sort(
        "setting", "method", "against", "decoding", "metric", maintain_order=True
    )


def _described(runs: Sequence[Path]) -> pl.DataFrame:
    """run, setting, method and seed of every finished run that learns."""
    finished = [run for run in runs if records.read_run(run).get("finished")]
    described = logs.describe(finished).filter(pl.col("method").is_not_null() & pl.col("learns"))
    return described.select("run", "setting", "method", "seed")


_SCORE = ["setting", "decoding", "metric"]


def _scores(ends: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Means over seeds at the last evaluation, and before training."""
    last = pl.col("step") == pl.col("step").max().over("run")
    for (setting, decoding, metric, method), own in ends.filter(last).group_by(
        *_SCORE, "method", maintain_order=True
    ):
        known = {"setting": setting, "decoding": decoding, "metric": metric, "method": method}
        yield known | _mean(own["value"].to_list())
    for (setting, decoding, metric), own in ends.filter(step=0).group_by(
        *_SCORE, maintain_order=True
    ):
        by_seed = own.group_by("seed").agg(pl.col("value").mean())["value"].to_list()
        known = {"setting": setting, "decoding": decoding, "metric": metric}
        yield known | {"method": "(before)"} | _mean(by_seed)


def _mean(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and 95% t interval."""
    found = np.array([value for value in values if value is not None], np.float64)
    row: dict[str, Any] = {"num_seeds": len(found)}
    if not len(found):
        return row | {"reason": "no run has it"}
    row["value"] = float(found.mean())
    interval = mean_interval(found)
    if interval is None:
        return row | {"reason": "one seed has no interval"}
    return row | dict(zip(("low", "high"), interval, strict=True))


def _differences(ends: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Every pair of methods on the seeds that both have, corrected together."""
    last = ends.filter(pl.col("step") == pl.col("step").max().over("run"))
    for (setting, decoding, metric), own in last.group_by(*_SCORE, maintain_order=True):
        known = {"setting": setting, "decoding": decoding, "metric": metric}
        found = []
        for method, against in itertools.permutations(own["method"].unique().sort(), 2):
            both = own.filter(method=method).join(own.filter(method=against), on="seed")
            row = known | {"method": method, "against": against}
            found.append(row | _difference(both["value"].to_list(), both["value_right"].to_list()))
        yield from _corrected(found)


def _difference(one: list[float], other: list[float]) -> dict[str, Any]:
    if len(one) < 2:
        return {"num_seeds": len(one), "reason": "fewer than two seeds in common"}
    found = paired(one, other)
    low, high = found.confidence_interval() or (None, None)
    row = {"num_seeds": len(one), "value": found.estimate, "low": low, "high": high}
    return row | {"pvalue": found.pvalue, "reason": " ".join(found.warnings) or None}


def _corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With Holm's p-values; a pair of methods is one test, in either order."""
    once = [row for row in rows if row["method"] < row["against"]]
    corrected = holm([row.get("pvalue") for row in once])
    by_pair = {
        frozenset((row["method"], row["against"])): pvalue
        for row, pvalue in zip(once, corrected, strict=True)
    }
    return [
        row | {"pvalue_holm": by_pair[frozenset((row["method"], row["against"]))]} for row in rows
    ]


def _spent(metrics: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Updates and tokens of whole runs."""
    of = {
        name: pl.col("value").filter(pl.col("name") == f"train/{name}_tokens")
        for name in ("total", "auxiliary")
    }
    runs = metrics.group_by("setting", "method", "run", maintain_order=True).agg(
        updates=pl.col("step").max().cast(pl.Float64),
        total_tokens=of["total"].max(),
        auxiliary_share=of["auxiliary"].sum() / of["total"].max(),
    )
    for (setting, method), own in runs.group_by("setting", "method", maintain_order=True):
        for metric in ("updates", "total_tokens", "auxiliary_share"):
            known = {"setting": setting, "method": method, "metric": metric}
            yield known | _mean(own[metric].to_list())


def _gains(runs: Sequence[Path], described: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The coupling gain over all pairs of a setting and method that have a control."""
    pairs = logs.read(runs, "pairs")
    if pairs is None:
        return
    joined = logged_pairs.joined(pairs).join(described, on="run")
    for (setting, method), own in joined.group_by("setting", "method", maintain_order=True):
        if not own["control_outcome"].count():
            continue
        account = logged_pairs.account(own)
        assert account is not None
        known = {"setting": setting, "method": method, "metric": "deduplicated_gain"}
        yield known | coupling.gains(account)["deduplicated"] | {"num_seeds": own["run"].n_unique()}


def show(table: pl.DataFrame) -> pl.DataFrame:
    """Text: a row a setting and method, by sampled exact match, the best first."""
    rows = []
    for (setting,), part in table.group_by("setting", maintain_order=True):
        lines = [
            (_value(own, "sampled", "exact_match"), _line(str(setting), str(method), own))
            for (method,), own in part.group_by("method", maintain_order=True)
        ]
        rows += [line for _, line in sorted(lines, key=lambda one: -(one[0] or 0.0))]
    return pl.DataFrame(rows)


def _value(own: pl.DataFrame, decoding: str | None, metric: str) -> float | None:
    found = _cell(own, decoding, metric)
    return None if found is None else found["value"]


def _cell(
    own: pl.DataFrame, decoding: str | None, metric: str, against: str | None = None
) -> dict[str, Any] | None:
    found = own.filter(
        pl.col("decoding").eq_missing(decoding),
        pl.col("metric") == metric,
        pl.col("against").eq_missing(against),
    )
    return found.row(0, named=True) if len(found) else None


def _line(setting: str, method: str, own: pl.DataFrame) -> dict[str, str]:
    difference = _cell(own, "sampled", "exact_match", REFERENCE)
    scores = _cell(own, "sampled", "exact_match")
    return {
        "setting": setting,
        "method": style.mark(method, method),
        "seeds": "" if scores is None else str(scores["num_seeds"]),
        "EM": _text(scores),
        "F1": _text(_cell(own, "sampled", "f1")),
        "EM, greedy": _text(_cell(own, "greedy", "exact_match")),
        f"EM - {REFERENCE}'s": _text(difference),
        "p (Holm)": _pvalue(difference),
        "updates": _number(_value(own, None, "updates")),
        "auxiliary": _share(_value(own, None, "auxiliary_share")),
        "gain, deduplicated": _text(_cell(own, None, "deduplicated_gain")),
    }


def _text(cell: dict[str, Any] | None) -> str:
    """A number with its interval; empty where there is none."""
    if cell is None or cell["value"] is None:
        return ""
    if cell["low"] is None or cell["high"] is None:
        return f"{cell['value']:.3f}"
    return f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"


def _pvalue(cell: dict[str, Any] | None) -> str:
    pvalue = None if cell is None else cell["pvalue_holm"]
    if pvalue is None:
        return ""
    return f"{pvalue:.3f}" if pvalue >= 0.0005 else "< 0.001"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def caption(table: pl.DataFrame) -> str:
    """What the columns are."""
    text = (
        "Test scores after training at equal sampled tokens, twins included: means over seeds with "
        f"95% t intervals. EM - {REFERENCE}'s: difference paired by seed; p corrected (Holm) over "
        "all pairs of methods of the setting. Seeds share their test questions. Auxiliary: share "
        "of the tokens that forks sampled. Gain: variance of fresh-luck branches over that of "
        "twins, equal decisions counting as 0, over all pairs with a control, clustered by task."
    )
    told = table.filter(pl.col("metric").is_in(METRICS))["setting"]
    if silent := sorted(set(table["setting"]) - set(told)):
        text += f" No EM or F1 of {'; '.join(silent)}: the task does not tell if a reply is right."
    if any(style.is_reconstructed(method) for method in table["method"]):
        text += " * Reconstructed from second-hand descriptions."
    return text
