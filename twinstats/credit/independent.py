"""Independent branching: what TWICE is without the shared luck, and its fair control."""

from collections.abc import Generator
from typing import Any

from twinstats.credit._twin_credit import Mixing, Reading, twin_credit
from twinstats.credit._twin_forks import TwinForm, choose
from twinstats.credit.budget import Budget, BudgetMemory
from twinstats.episodes import FRESH, Credit, Group


def independent(
    group: Group,
    *,
    twins: int = 1,
    budget: Budget | None = None,
    mixing: Mixing = "plain",
    two_sided: bool = False,
    different: bool = False,
    dedup: bool = True,
    control_variate: bool = False,
    memory: BudgetMemory | None = None,
) -> Generator[Any, Any, Credit]:
    """Credit A_t = R - mean outcome of branches whose turn t was resampled, with fresh luck.

    With `dedup` a resampled turn equal to the factual's counts as difference 0 and plays no tail:
    unbiased, because the mean difference of two plays of the same decision is 0, and free. The
    resampled decisions are those that `twice` draws, forced ones too. Without it every branch
    plays its tail. Two branches with the same decision are two plays: each has luck of its own, so
    nothing is saved on them. `two_sided` is the original's comparison of siblings.

    Inputs, cost, edge cases, other arguments and errors: as `twice`.

    Source: Chen et al., C3, arXiv 2603.06859 (independent siblings at a fixed context).
    """
    reading = Reading(
        mixing=mixing, two_sided=two_sided, control_variate=control_variate, different=different
    )
    form = TwinForm(luck=FRESH, action=reading.action, dedup=dedup)
    chosen = choose(group, twins, budget, form=form, memory=memory)
    return twin_credit(group, chosen, form, reading)
