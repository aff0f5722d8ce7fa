"""The table `pairs` of training runs, read back: what coupling saved, and the null twins' floor.

Leaves out the statistics (`variance`).
"""

import polars as pl

from twinstats.variance import VarianceAccount, variance_account


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


def account(twins: pl.DataFrame, *, confidence: float | None = 0.95) -> VarianceAccount | None:
    """The account of joined twins, clustered by task; null without a twin.

    Args:
        twins: Rows of `joined`.
        confidence: Nominal coverage of its intervals; null for none, which is much faster.
    """
    if twins.is_empty():
        return None
    control = twins["control_outcome"]
    return variance_account(
        twins["factual_outcome"].to_list(),
        twins["twin_outcome"].to_list(),
        control=None if control.is_null().all() else control.to_list(),
        equal=twins["equal"].to_list(),
        cluster=[f"{run} {task}" for run, task in twins.select("run", "task").iter_rows()],
        confidence=confidence,
    )


def null_floor(pairs: pl.DataFrame) -> dict[str, int]:
    """Null twins, and how many did not end as their factual did; one that failed counts as such."""
    nulls = pairs.filter(pl.col("kind") == "null")
    return {
        "num_nulls": len(nulls),
        "token_disagreements": int((~nulls["same_tokens"].fill_null(False)).sum()),
        "outcome_disagreements": int(
            nulls["factual_outcome"].ne_missing(nulls["twin_outcome"]).sum()
        ),
    }
