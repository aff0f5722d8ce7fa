"""Independent branching: what TWICE is without the shared luck, and its fair control."""

from collections.abc import Generator
from typing import Any

from twinstats.credit.budget import Budget, BudgetMemory
from twinstats.credit.twice import Mixing, refuse_missing, twin_credit
from twinstats.episodes import FRESH, Credit, Group


def independent(
    group: Group,
    *,
    twins: int = 1,
    budget: Budget | None = None,
    mixing: Mixing = "plain",
    dedup: bool = True,
    different: bool = False,
    memory: BudgetMemory | None = None,
) -> Generator[Any, Any, Credit]:
    """Credit A_t = R - mean outcome of branches whose turn t was resampled, with fresh luck.

    With `dedup` a resampled turn equal to the factual's counts as difference 0 and plays no tail:
    unbiased, because the mean difference of two plays of the same decision is 0, and free. The
    resampled decisions are those that `twice` draws. Without it every branch plays its tail.

    Inputs, cost, edge cases, arguments and errors: as `twice`.

    Source: Chen et al., C3, arXiv 2603.06859 (independent siblings at a fixed context).
    """
    refuse_missing("independent", {"different": different})
    return twin_credit(
        group, FRESH, twins=twins, budget=budget, mixing=mixing, memory=memory, dedup=dedup
    )
