"""The oracle study's tables, read back: errors over tokens, and twins beside their controls.

The study (of the trainer) estimates the truth of an agent's turns by many rollouts each, and holds
credit methods against it. Leaves out what is made of them (`paper.figures`, `paper.tables`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from paper import coupling, logs
from twinstats import logged_pairs, records
from twinstats.board import REFERENCE, Curve, curves
from twinstats.pairs import paired
from twinstats.variance import variance_account

COMMAND = "twice oracle RECIPE --out runs/oracle"
PLACE = ["setting", "outcome"]

Board = dict[str, Curve]


def boards(points: pl.DataFrame) -> Iterator[tuple[str, str, Board]]:
    """The methods' curves of each setting and outcome, whose errors have the reference's noise out.

    Args:
        points: Rows of `oracle_points`; of a point that is there twice the first counts.
    """
    key = [*PLACE, "method", "knob", "seed"]
    once = points.unique(key, keep="first", maintain_order=True)
    ordered = once.sort("seed", "knob", nulls_last=True, maintain_order=True)
    for (setting, outcome), own in ordered.group_by(PLACE, maintain_order=True):
        yield str(setting), str(outcome), curves(own.to_dicts())[str(setting)]


def reference(board: Board) -> tuple[str, float]:
    """VinePPO and the number of rollouts whose error others have to reach: 9, or its most."""
    name, knob = REFERENCE
    played = [float(value) for value in board[name].knobs] if name in board else []
    return name, float(knob) if knob in played else max(played, default=float(knob))


def drawn(table: pl.DataFrame, most: int) -> list[tuple[str, str]]:
    """The settings and outcomes with a place in a figure: an outcome of each setting first.

    Those without any value have one only if all are such.
    """
    known = table.drop_nulls("value")
    places = (table if known.is_empty() else known).select(PLACE).unique(maintain_order=True)
    first = places.unique("setting", keep="first", maintain_order=True)
    rest = places.join(first, on=PLACE, how="anti", maintain_order="left")
    kept = set(pl.concat([first, rest]).head(most).iter_rows())
    return [place for place in places.iter_rows() if place in kept]


def left_out(table: pl.DataFrame, most: int) -> str:
    """A sentence that names what has no place in a figure; empty where all have one."""
    kept = drawn(table, most)
    places = table.select(PLACE).unique(maintain_order=True).iter_rows()
    lost = [", ".join(place) for place in places if place not in kept]
    return f" In the table only: {'; '.join(lost)}." if lost else ""


def read(runs: Sequence[Path], table: str) -> pl.DataFrame | None:
    """A table of episodes as `logs.read` has it, with the `task` of each: what clusters them.

    An episode is named by its step and its row in it, and rows go task by task.
    """
    rows = logs.read(runs, table)
    if rows is None:
        return None
    names = logs.labels(runs)
    sizes = {names[run]: _group_size(records.read_run(run)) for run in runs}
    step, row = (pl.col("episode").str.split("/").list.get(place) for place in (0, 1))
    group = row.cast(pl.Int64) // pl.col("run").replace_strict(sizes, return_dtype=pl.Int64)
    return rows.with_columns(task=pl.format("{} {}/{}", "run", step, group))


def _group_size(description: dict[str, Any]) -> int:
    """Episodes of a task: one where tasks were not played in groups."""
    leaves = records.flatten(description.get("configuration") or {})
    return int(leaves.get("oracle.group_size") or 1)


def beside_controls(forks: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Forks of a kind with shared luck, each with its control, as `logged_pairs.joined` has them.

    Args:
        forks: Rows of `oracle_forks` of one setting and outcome, read by `read`.
        kind: "twin" or "maximal".
    """
    own = forks.filter(pl.col("kind").is_in([kind, "control"])).select(
        "run",
        "task",
        "turn",
        "slot",
        "alternative",
        "tail_tokens",
        "equal",
        kind=pl.col("kind").replace(kind, "twin"),
        factual=pl.col("episode"),
        factual_outcome=pl.col("factual"),
        twin_outcome=pl.col("fork"),
    )
    return logged_pairs.joined(own)


def mean(rows: pl.DataFrame, name: str) -> dict[str, float | None]:
    """A column's mean, 95% t interval clustered by task: what pairs with 0 have as their effect."""
    clusters = rows["task"].to_list()
    result = paired(rows[name].to_list(), [0.0] * len(rows), cluster=clusters, test="t")
    ends = result.confidence_interval(method="t") or (None, None)
    return {"value": result.estimate, "low": ends[0], "high": ends[1]}


def mean_square(forks: pl.DataFrame) -> dict[str, Any]:
    """The mean of (factual - fork)^2, clustered by episode: what an account calls the floor.

    Where no difference is seen, `is_bound` is true and `high` is the exact 95% bound on the share
    of episodes with one.
    """
    factual, other = (forks[name].cast(pl.Float64).to_list() for name in ("factual", "fork"))
    episodes = [f"{run} {episode}" for run, episode in forks.select("run", "episode").iter_rows()]
    account = variance_account(factual, other, null=other, cluster=episodes)
    count = {"num_pairs": len(forks), "num_episodes": account.num_clusters}
    if factual == other:
        bound = 1 - 0.05 ** (1 / account.num_clusters)
        return count | {"value": 0.0, "low": 0.0, "high": bound, "is_bound": True}
    return count | coupling.measured(account, "floor") | {"is_bound": False}
