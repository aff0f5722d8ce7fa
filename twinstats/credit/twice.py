"""TWICE: replay the episode with one decision changed and the same luck after it."""

from collections.abc import Generator
from typing import Any

from twinstats.credit._checks import at_least_zero, at_most_forks
from twinstats.credit._twin_credit import Mixing, Reading, twin_credit
from twinstats.credit._twin_forks import Coupling, TwinForm, choose
from twinstats.credit.budget import Budget, BudgetMemory
from twinstats.episodes import SHARED, Credit, Group
from twinstats.errors import unknown


def twice(
    group: Group,
    *,
    twins: int = 1,
    budget: Budget | None = None,
    mixing: Mixing = "plain",
    two_sided: bool = False,
    different: bool = False,
    draws: int = 0,
    coupling: Coupling = "gumbel",
    control_variate: bool = False,
    memory: BudgetMemory | None = None,
) -> Generator[Any, Any, Credit]:
    """Credit A_t = R - mean outcome of twins whose turn t was resampled, luck after t shared.

    Unbiased for the advantage whatever the coupling; Var = (1 - rho_eff) of independent branches,
    and with K twins of one factual no less than s^2 (1 - rho), however many.

    With a budget only some turns get twins (S = 1); the others get B = R - b, b the mean of the
    group's others. "plain" S*D + (1-S)*B is unbiased for the policy gradient; "augmented"
    B + (S/q)*(D - B), q = P(S = 1), for the advantage as well, but noisier.

    Each option keeps that claim, but `control_variate`:

    - `two_sided`: all K + 1 worlds are trained at turn t, world i with credit
      Y_i - mean of the other worlds and share 1 / (K + 1). No further token.
    - `different`: a' != a, and the difference counts 1 - pi(a|h_t), pi from `Turn.logprob`. Below
      1e-6 the credit is 0 and nothing is played.
    - `draws`: the decisions are also replayed under luck 1..draws, the factual's (kept) and each
      different one of its twins'; the credit is the mean over lucks of the difference.
    - `control_variate`: (R - b) - beta * (mean twin - b), beta fitted on the step's other groups:
      unbiased for the policy gradient; for A only where b = V(h_t) or beta = 1.

    Inputs: branching with keyed noise. Cost: one tail a twin; its decision alone where it is equal
    to the factual's, or (in worlds that use `Fork.tail_key`) to an earlier twin's. Each of `draws`
    adds a tail for the factual and one for every distinct other decision, none where all are equal;
    a budget's plan does not foresee them, its next prices do.
    All outcomes equal: exactly 0. Failed twins are left out; a turn with none left is null and
    counted under "failed_turns". A group of one has no b: its turns without twins are null, the
    others get D. A failed episode is null.

    Args:
        group: The rollouts of a task.
        twins: Twins of every turn; without a budget only.
        budget: The random budget instead.
        mixing: How turns with and without twins are put together.
        two_sided: Train the twins as well.
        different: Force alternatives that differ from the factual's action.
        draws: Further luck draws for each pair.
        coupling: "gumbel", or "maximal" where the world offers it.
        control_variate: Use a fitted coefficient on the twins' outcome.
        memory: What a budget carries over steps; `make` supplies it.

    Raises:
        ValueError: `twins` below 1 without a budget, a negative `draws`, more than 65,535 of
            either, an unknown `mixing` or `coupling`, a missing log-probability, or options that
            exclude each other: `two_sided` and `different` or `control_variate`; "augmented" and
            `two_sided` or `control_variate`; `draws` and "maximal", which knows no factual tail
            under other luck.

    Source: Surio et al., arXiv 2610.31544, known to us from a summary only: reconstructed.
    """
    if coupling not in ("gumbel", "maximal"):
        raise unknown("coupling", coupling, ("gumbel", "maximal"))
    at_least_zero(draws=draws)
    at_most_forks(draws=draws)
    if draws and coupling == "maximal":
        raise ValueError(
            "`draws` excludes `coupling` 'maximal', which needs the factual's tail under the "
            f"same luck, got {draws} draws."
        )
    reading = Reading(
        mixing=mixing, two_sided=two_sided, control_variate=control_variate, different=different
    )
    form = TwinForm(luck=SHARED, action=reading.action, coupling=coupling)
    chosen = choose(group, twins, budget, form=form, memory=memory)
    return twin_credit(group, chosen, form, reading, draws=draws)
