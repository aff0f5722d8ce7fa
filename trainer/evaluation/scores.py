"""What evaluation episodes came to: rows of the tables `evaluations`, `answers` and `scores`.

An episode asks one question a part. Scores have 95% intervals clustered by task, because the
samples of a task and its parts are not independent. Leaves out playing (`evaluate`) and comparing
runs (`compare`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from twinstats.episodes import Episode
from twinstats.pairs import PairedResult, paired
from twinstats.rows import Row, episode_rows
from twinstats.tables import SCHEMAS

ANSWER_METRICS = ("exact_match", "f1", "cover_match")
"""Scores of one answer, where the task tells them."""
EPISODE_METRICS = ("outcome", "success")
KINDS = ("relation", "hops", "data_source")
"""What a question may be grouped by."""
SAMPLED, GREEDY = "sampled", "greedy"
EXACT_MATCH, OUTCOME = "eval/exact_match_share", "eval/outcome_share"
"""Metrics of an evaluation, of samples. The second is there where the outcome is another number."""
_UNKNOWN = "no episode has it"


def score_of(metrics: Mapping[str, float]) -> float | None:
    """What training raises, as an evaluation measured it: the mean outcome; null without one.

    >>> score_of({"eval/exact_match_share": 0.4, "eval/outcome_share": -1.5})
    -1.5
    """
    return metrics.get(OUTCOME, metrics.get(EXACT_MATCH))


def evaluation_rows(episodes: Sequence[Episode], decoding: str, num_tasks: int) -> list[Row]:
    """Rows of the table `evaluations`: row r of an evaluation is sample r // num_tasks of its task.

    Args:
        episodes: As `Rollout.evaluate` returns them.
        decoding: `SAMPLED` or `GREEDY`.
        num_tasks: Tasks that were played; each as often as the others.
    """
    return [
        row | {"decoding": decoding, "sample": row["row"] // num_tasks}
        for row in episode_rows(episodes, "evaluation")
    ]


def answer_rows(
    episodes: Sequence[Episode], decoding: str, num_tasks: int, tells: Iterable[str] = ()
) -> list[Row]:
    """Rows of the table `answers`: one a question of each episode.

    A question that an episode never came to scores 0, as it does in the outcome. In an episode
    that failed scores are null. A score that the task tells of no question is null everywhere,
    unless it is one of `tells`: those that the task would tell if an episode came to an answer.
    """
    told = set(tells).intersection(ANSWER_METRICS) | {
        name
        for episode in episodes
        for info in _endings(episode).values()
        for name in ANSWER_METRICS
        if name in info
    }
    return [
        {"decoding": decoding, "sample": episode.row // num_tasks, **row}
        for episode in episodes
        for row in _answers(episode, told)
    ]


def score_rows(
    evaluations: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> list[Row]:
    """Rows of the table `scores`: means, their standard errors and 95% intervals.

    - outcome and success are over episodes; exact_match, f1 and cover_match over questions: of
      all, and of each relation, number of hops and data source.
    - pass@k, the chance that one of k samples of a task is a success: the mean over tasks of
      1 - C(n - c, k) / C(n, k) with c successes among its n samples, for k = 1, 2, 4, ... up to
      the number of samples. A task with fewer than k samples that did not fail is left out.

    Null, with a reason, where nothing is defined.

    Source: Chen et al. 2021, Evaluating large language models trained on code (pass@k).
    """
    is_known = pl.col("outcome").is_not_null()
    plays = _frame("evaluations", evaluations).with_columns(
        success=pl.when(is_known).then(pl.col("success").cast(pl.Float64))
    )
    asked = _frame("answers", answers)
    sources = asked.select("decoding", "episode", "data_source").unique(["decoding", "episode"])
    plays = plays.join(sources, on=["decoding", "episode"], how="left")
    found = []
    for decoding in plays["decoding"].unique(maintain_order=True):
        own = pl.col("decoding") == decoding
        parts = [
            _grouped(plays.filter(own), EPISODE_METRICS, ("data_source",)),
            _grouped(asked.filter(own), ANSWER_METRICS, KINDS),
        ]
        if decoding == SAMPLED:
            parts.append(_grouped(_pass_at_k(plays.filter(own)), None, ("data_source",)))
        found += [{"decoding": decoding, **row} for rows in parts for row in rows]
    return found


def pass_at_k(num_samples: int, num_successes: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance of a success among k of n samples, c of which are.

    Raises:
        ValueError: Not 1 <= k <= n, or not 0 <= c <= n.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not 1 <= k <= num_samples or not 0 <= num_successes <= num_samples:
        raise ValueError(
            f"`k` must be in 1..{num_samples} and `num_successes` in 0..{num_samples}, "
            f"got {k} and {num_successes}."
        )
    failures = num_samples - num_successes
    later = np.arange(failures + 1, num_samples + 1)
    return 1.0 if k > failures else float(1.0 - np.prod(1.0 - k / later))


def _answers(episode: Episode, told: Iterable[str]) -> list[Row]:
    info, endings = episode.task.info, _endings(episode)
    questions = info.get("question_ids", [episode.task.id])
    return [
        {
            "episode": episode.name,
            "task": episode.task.id,
            "part": part,
            "question": question,
            "answer": endings.get(part, {}).get("answer"),
            **_kinds(info, part),
            **{name: _score(episode, endings.get(part, {}), name) for name in told},
        }
        for part, question in enumerate(questions)
    ]


def _score(episode: Episode, ending: Mapping[str, Any], name: str) -> float | None:
    return None if episode.outcome is None else float(ending.get(name, 0.0))


def _endings(episode: Episode) -> dict[int, Mapping[str, Any]]:
    """What the environment told when each part of an episode ended."""
    steps = [turn.info.get("step", {}) for turn in episode.turns]
    return {
        int(info.get("part", 0)): info
        for info in steps
        if any(name in info for name in ("answer", *ANSWER_METRICS))
    }


def _kinds(info: Mapping[str, Any], part: int) -> dict[str, str | None]:
    """How a question may be grouped, as text; null where the task does not tell."""
    found: dict[str, str | None] = dict.fromkeys(KINDS)
    for kind, name in (("relation", "relations"), ("hops", "hops")):
        if name in info:
            found[kind] = str(info[name][part])
    if info.get("data_source"):
        found["data_source"] = str(info["data_source"])
    return found


def _frame(table: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([{"step": 0, **row} for row in rows], schema=SCHEMAS[table])


def _pass_at_k(plays: pl.DataFrame) -> pl.DataFrame:
    """One row a task, its pass@k as columns; null where too few samples did not fail."""
    counts = plays.group_by("task", maintain_order=True).agg(
        pl.col("data_source").first(), n=pl.col("success").count(), c=pl.col("success").sum()
    )
    most = 1 + max(plays["sample"].to_list())
    columns = {
        f"pass@{k}": [
            pass_at_k(n, int(c), k) if n >= k else None
            for n, c in counts.select("n", "c").iter_rows()
        ]
        for k in (2**power for power in range(most.bit_length()))
    }
    return counts.select("task", "data_source").with_columns(
        **{name: pl.Series(values, dtype=pl.Float64) for name, values in columns.items()}
    )


def _grouped(frame: pl.DataFrame, metrics: Sequence[str] | None, kinds: Sequence[str]) -> list[Row]:
    """The mean of every metric over all rows, then over those of each group of each kind."""
    names = metrics or [name for name in frame.columns if name.startswith("pass@")]
    groups: list[tuple[str, str, pl.DataFrame]] = [("all", "", frame)]
    for kind in kinds:
        own = frame.drop_nulls(kind).partition_by(kind, as_dict=True)
        groups += [(kind, str(key[0]), part) for key, part in sorted(own.items())]
    return [
        {"metric": name, "kind": kind, "group": group, **_mean(part, name)}
        for name in names
        if frame[name].count() or name in EPISODE_METRICS
        for kind, group, part in groups
    ]


def _mean(frame: pl.DataFrame, name: str) -> Row:
    """Mean of a column with its interval, clustered by task."""
    known = frame.drop_nulls(name)
    if known.is_empty():
        return {"num_values": 0, "num_tasks": 0, "reason": _UNKNOWN}
    values = known[name].to_numpy()
    found = paired(values, np.zeros(len(values)), cluster=known["task"].to_list())
    low, high, reason = _interval(known, name, found)
    return {
        "value": found.estimate,
        "stderr": found.stderr,
        "low": low,
        "high": high,
        "num_values": found.num_pairs,
        "num_tasks": found.num_clusters,
        "reason": reason,
    }


def _interval(
    known: pl.DataFrame, name: str, found: PairedResult
) -> tuple[float | None, float | None, str | None]:
    """The 95% interval of a mean, within [0, 1] for a share; null, with a reason, without a width.

    Where all values are the same each task has one to give: of 0 and 1 that is a share over tasks,
    which has an interval, though the values do not vary.
    """
    values = known[name].to_numpy()
    if found.num_clusters < len(values) and values.min() == values.max():
        own = values[: found.num_clusters]
        found = paired(own, np.zeros(len(own)))
    low, high = found.confidence_interval() or (None, None)
    if low is None or high is None or low == high:
        return None, None, " ".join(found.warnings)
    if name != "outcome" or np.isin(values, (0.0, 1.0)).all():  # an outcome may be any number
        low, high = max(low, 0.0), min(high, 1.0)
    return low, high, None
