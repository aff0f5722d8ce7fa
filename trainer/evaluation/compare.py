"""Runs compared on the same test questions, by pairs of answers.

A pair is one task (or one question of it) answered by two runs; samples of a task are averaged
first. Leaves out playing (`evaluate`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import polars as pl

from trainer.evaluation.scores import ANSWER_METRICS, EPISODE_METRICS, GREEDY, SAMPLED
from twinstats.corrections import holm
from twinstats.errors import UsageError
from twinstats.pairs import PairedResult, paired
from twinstats.records import parts, read, step_of

_KEY = ("task", "part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One metric of two runs on the questions that both answered.

    Attributes:
        first: Name of a run.
        second: Name of another; the difference is first - second.
        decoding: How both answered.
        metric: What is compared.
        means: Of each run over the shared questions.
        result: The paired difference with its test and intervals.
        holm: Its p-value, corrected over all pairs of runs of this metric and decoding; null where
            it is undefined.
    """

    first: str
    second: str
    decoding: str
    metric: str
    means: tuple[float, float]
    result: PairedResult
    holm: float | None = None


def compare(runs: Sequence[Path], step: int | None = None) -> list[Comparison]:
    """All pairs of runs in every metric that both have, sampled and greedy.

    Outcome and success are compared by task; exact_match, f1 and cover_match by question, clustered
    by task. A question that failed in either run is left out and counted (`result.num_missing`).

    Args:
        runs: Run folders of `twice train` or `twice evaluate`, at least two.
        step: Of the evaluations; the last of each run if null.

    Raises:
        UsageError: Fewer than two runs, one named twice, one without such an evaluation, or two
            that share no question.
    """
    if len(runs) < 2 or len({run.resolve() for run in runs}) < len(runs):
        raise UsageError("`twice compare` needs at least two different runs.")
    names = [run.name for run in runs]
    labels = [run.name if names.count(run.name) == 1 else str(run) for run in runs]
    answered = [_answered(run, step) for run in runs]
    found = []
    for (first, one), (second, other) in combinations(zip(labels, answered, strict=True), 2):
        own = _pair(one, other, first, second)
        if not own:
            raise UsageError(f"{first} and {second} share no test question: nothing to compare.")
        found += own
    return [_corrected(one, found) for one in found]


def _answered(run: Path, step: int | None) -> pl.DataFrame:
    """A row a task (or question) and metric: its mean over samples, null if any of them failed."""
    frames = []
    for table, metrics in (("evaluations", EPISODE_METRICS), ("answers", ANSWER_METRICS)):
        rows = _at(run, table, step)
        if "decoding" not in rows.columns:
            raise UsageError(f"{run} was evaluated by an older version: use `twice evaluate`.")
        if "part" not in rows.columns:
            rows = rows.with_columns(part=pl.lit(-1, pl.Int64))
        long = rows.select("decoding", *_KEY, *(pl.col(one).cast(pl.Float64) for one in metrics))
        frames.append(long.unpivot(index=["decoding", *_KEY], variable_name="metric"))
    known = pl.col("value").is_not_null()
    return (
        pl.concat(frames)
        .group_by("decoding", "metric", *_KEY, maintain_order=True)
        .agg(value=pl.when(known.all()).then(pl.col("value").mean()))
    )


def _at(run: Path, table: str, step: int | None) -> pl.DataFrame:
    """A table's rows of one evaluation."""
    written = [step_of(part) for part in parts(run, table)]
    if step is not None and step not in written:
        have = ", ".join(map(str, written)) or "none"
        raise UsageError(f"{run} has no evaluation at step {step}; it has: {have}.")
    wanted = max(written, default=0) if step is None else step
    return read(run, table).filter(pl.col("step") == wanted).collect()


def _pair(one: pl.DataFrame, other: pl.DataFrame, first: str, second: str) -> list[Comparison]:
    key = ["decoding", "metric", *_KEY]
    both = one.join(other, on=key, how="inner", suffix="_other", maintain_order="left")
    found = []
    for decoding in (SAMPLED, GREEDY):
        for metric in (*EPISODE_METRICS, *ANSWER_METRICS):
            own = both.filter(decoding=decoding, metric=metric)
            if own["value"].count() and own["value_other"].count():
                found.append(_comparison(own, first, second, decoding, metric))
    return found


def _comparison(
    own: pl.DataFrame, first: str, second: str, decoding: str, metric: str
) -> Comparison:
    has_parts = own["task"].n_unique() < len(own)
    result = paired(
        own["value"].to_list(),
        own["value_other"].to_list(),
        cluster=own["task"].to_list() if has_parts else None,
    )
    known = own.drop_nulls(["value", "value_other"])
    means = (float(known["value"].mean()), float(known["value_other"].mean()))  # type: ignore[arg-type]  # numbers
    return Comparison(
        first=first, second=second, decoding=decoding, metric=metric, means=means, result=result
    )


def _corrected(one: Comparison, found: Sequence[Comparison]) -> Comparison:
    """The comparison with Holm's p-value, over all pairs of runs of its metric and decoding."""
    family = [own for own in found if (own.metric, own.decoding) == (one.metric, one.decoding)]
    corrected = holm([own.result.pvalue for own in family])
    return replace(one, holm=corrected[family.index(one)])
