"""What coupling saved in training runs: twins joined with their fresh-luck controls.

Leaves out the statistics (`twinstats.variance`).
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from twinstats.results import Result
from twinstats.variance import VarianceAccount, variance_account

PART_SIZE = 64
"""A slot is part * 64 + turn within the part where a task has several parts."""


def joined(pairs: pl.DataFrame) -> pl.DataFrame:
    """Each twin beside its control: the same fork and decision with fresh luck, null without one.

    Equal decisions that the twin took without a tail are kept: their difference is 0.

    Args:
        pairs: Rows of the table `pairs`, of one or several runs.

    Returns:
        Rows of kind "twin" with `control_outcome`; failed twins are left out.
    """
    key = ["run", "factual", "turn", "alternative"]
    control = pairs.filter(pl.col("kind") == "control").select(
        *key, control_outcome=pl.col("twin_outcome")
    )
    twins = pairs.filter(pl.col("kind") == "twin").drop_nulls(["factual_outcome", "twin_outcome"])
    return twins.join(control.unique(key, keep="first", maintain_order=True), on=key, how="left")


def account(twins: pl.DataFrame) -> VarianceAccount | None:
    """The account of joined twins, clustered by task; null without a twin."""
    if twins.is_empty():
        return None
    control = twins["control_outcome"]
    return variance_account(
        twins["factual_outcome"].to_list(),
        twins["twin_outcome"].to_list(),
        control=None if control.is_null().all() else control.to_list(),
        equal=twins["equal"].to_list(),
        cluster=[f"{run} {task}" for run, task in twins.select("run", "task").iter_rows()],
    )


def measured(found: Result, name: str) -> dict[str, float | None]:
    """A statistic of an account with the ends of its interval, null where undefined."""
    value = getattr(found, name)
    interval = getattr(found, "intervals", {}).get(name)
    low, high = (None, None) if value is None or interval is None else interval
    return {"value": value, "low": low, "high": high}


def null_floor(pairs: pl.DataFrame) -> dict[str, Any]:
    """Null twins that were played, and how many did not end as their factual did."""
    nulls = pairs.filter(pl.col("kind") == "null").drop_nulls("twin_outcome")
    return {
        "num_nulls": len(nulls),
        "token_disagreements": int((~nulls["same_tokens"].fill_null(False)).sum()),
        "outcome_disagreements": int((nulls["factual_outcome"] != nulls["twin_outcome"]).sum()),
    }


def slot_name(slot: int, is_in_parts: bool) -> str:
    """A slot as people read it: the turn, or part and turn within it."""
    return f"{slot // PART_SIZE}.{slot % PART_SIZE}" if is_in_parts else str(slot)


def gains(found: VarianceAccount) -> Mapping[str, dict[str, float | None]]:
    """The raw and the deduplicated coupling gain."""
    return {
        "raw": measured(found, "coupling_gain"),
        "deduplicated": measured(found, "coupling_gain_deduplicated"),
    }
