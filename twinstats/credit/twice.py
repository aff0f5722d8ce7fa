"""TWICE: replay the episode with one decision changed and the same luck after it."""

from collections.abc import Generator, Sequence
from typing import Any, Literal

import numpy as np

from twinstats.credit.baseline import group_info, leave_one_out, outcomes
from twinstats.credit.budget import Budget, BudgetMemory, Choice, Planned, choose
from twinstats.episodes import SHARED, Credit, Episode, Group, Luck
from twinstats.errors import unknown

Mixing = Literal["plain", "augmented"]


def twice(
    group: Group,
    *,
    twins: int = 1,
    budget: Budget | None = None,
    mixing: Mixing = "plain",
    two_sided: bool = False,
    different: bool = False,
    draws: int = 0,
    coupling: Literal["gumbel", "maximal"] = "gumbel",
    control_variate: bool = False,
    memory: BudgetMemory | None = None,
) -> Generator[Any, Any, Credit]:
    """Credit A_t = R - mean outcome of twins whose turn t was resampled, luck after t shared.

    Unbiased for the advantage whatever the coupling; Var = (1 - rho_eff) of independent branches.
    With a budget only some turns get twins (S = 1); the others get B = R - mean of the group's
    others, and the two are mixed: plain S*D + (1-S)*B (unbiased for the policy gradient), or
    augmented B + (S/q)*(D - B) with q = P(S = 1) (unbiased for the advantage as well, noisier).

    Inputs: branching with keyed noise. Cost: one tail a twin; an equal decision costs its turn.
    Failed twins are left out; a turn with none left is null and counted under "failed_turns".
    A group of one has no B: its turns without twins are null.

    Args:
        group: The rollouts of a task.
        twins: Twins of every turn; without a budget only.
        budget: The random budget instead.
        mixing: How turns with and without twins are put together.
        two_sided: Train the twins as well.
        different: Force alternatives that differ from the factual's action.
        draws: Extra luck draws for each pair.
        coupling: "gumbel" or "maximal".
        control_variate: Use a fitted coefficient on the twin's outcome.
        memory: What a budget carries over steps; `make` supplies it.

    Raises:
        ValueError: `twins` below 1 without a budget, an unknown `mixing` or `coupling`.
        NotImplementedError: An option that this version does not have yet.

    Source: Surio et al., arXiv 2610.31544, known to us from a summary only: reconstructed.
    """
    if coupling not in ("gumbel", "maximal"):
        raise unknown("coupling", coupling, ("gumbel", "maximal"))
    missing = {
        "two_sided": two_sided,
        "different": different,
        "draws": draws,
        "coupling='maximal'": coupling == "maximal",
        "control_variate": control_variate,
    }
    refuse_missing("twice", missing)
    return twin_credit(group, SHARED, twins=twins, budget=budget, mixing=mixing, memory=memory)


def refuse_missing(method: str, wanted: dict[str, Any]) -> None:
    """Raises for the first option that is wanted but not there yet."""
    for option, value in wanted.items():
        if value:
            raise NotImplementedError(f"Method {method!r} does not have `{option}` yet.")


def twin_credit(
    group: Group,
    luck: Luck,
    *,
    twins: int,
    budget: Budget | None,
    mixing: Mixing,
    memory: BudgetMemory | None,
    dedup: bool = True,
) -> Generator[Any, Any, Credit]:
    """What `twice` and `independent` share: they differ in the luck of the tail alone."""
    if mixing not in ("plain", "augmented"):
        raise unknown("mixing", mixing, ("plain", "augmented"))
    chosen = choose(group, twins, budget, luck=luck, memory=memory, dedup=dedup)
    return _twin_credit(group, chosen, mixing)


def _twin_credit(group: Group, chosen: Choice, mixing: Mixing) -> Generator[Any, Any, Credit]:
    played, _ = yield [chosen.twins, chosen.measured]
    baseline = leave_one_out(outcomes(group.episodes))
    values, failed = _mixed(group, chosen.plan, played, baseline, mixing)
    info = group_info(group) | {"plan": chosen.plan, "twins": played, "failed_turns": failed}
    return Credit(episodes=group.episodes, values=values, info=info)


def _mixed(
    group: Group,
    plan: Sequence[Planned],
    played: Sequence[Sequence[Episode]],
    baseline: np.ndarray,
    mixing: Mixing,
) -> tuple[list[np.ndarray], int]:
    row = {id(episode): index for index, episode in enumerate(group.episodes)}
    values = [np.full(episode.num_turns, np.nan) for episode in group.episodes]
    failed = 0
    for planned, twins in zip(plan, played, strict=True):
        index = row[id(planned.episode)]
        value = baseline[index]
        if planned.count:
            difference = _difference(planned.episode, twins)
            failed += int(np.isnan(difference))
            value = difference
            if mixing == "augmented" and planned.probability < 1:
                value = baseline[index] + (difference - baseline[index]) / planned.probability
        values[index][planned.turn] = value
    return values, failed


def _difference(episode: Episode, twins: Sequence[Episode]) -> float:
    scored = outcomes(twins)
    scored = scored[~np.isnan(scored)]
    if episode.outcome is None or not len(scored):
        return float("nan")
    return float(episode.outcome - scored.mean())
