"""The forks that `twice` and `independent` ask for, all fixed before any is played.

Leaves out how many twins a turn gets under a budget (`budget`) and what their outcomes say
(`_twin_credit`). One kind of fork waits for the first: replays under other luck (`replays`)
need the twins' decisions, and look at nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from twinstats.credit import _coins
from twinstats.credit._checks import at_most_forks
from twinstats.credit.budget import Budget, BudgetMemory, Planned
from twinstats.episodes import (
    DIFFERENT,
    FRESH,
    KEEP,
    RESAMPLE,
    SHARED,
    Action,
    Episode,
    Fork,
    Group,
    Luck,
    action_word,
)
from twinstats.rows import is_equal_decision

Coupling = Literal["gumbel", "maximal"]

_LEAST_OTHER = 1e-6  # a turn that does something else more rarely has credit 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinForm:
    """How twins are asked for.

    Attributes:
        luck: What drives their tails: SHARED or FRESH.
        action: RESAMPLE, or DIFFERENT from the factual's.
        coupling: How shared luck couples tails.
        dedup: With fresh luck, an equal decision takes the parent's tail.
    """

    luck: Luck = SHARED
    action: Action = RESAMPLE
    coupling: Coupling = "gumbel"
    dedup: bool = True

    def twin(self, episode: Episode, turn: int, alternative: int) -> Fork:
        """One twin."""
        return Fork(
            episode,
            turn,
            self.action,
            self.luck,
            alternative=alternative,
            coupling=self.coupling,
            skip_equal=self.dedup if self.luck is FRESH else None,
        )

    def weight(self, planned: Planned) -> float:
        """What a difference counts: 1, and for DIFFERENT 1 - pi(a|h), or 0 below 1e-6.

        Raises:
            ValueError: DIFFERENT, and the turn's log-probability is not known.
        """
        if self.action is not DIFFERENT:
            return 1.0
        logprob = planned.episode.turns[planned.turn].logprob
        if logprob is None or math.isnan(logprob):
            raise ValueError(
                "`different` needs `Turn.logprob` of the whole turn, which turn "
                f"{planned.turn} of episode {planned.episode.name} does not have."
            )
        other = -math.expm1(min(logprob, 0.0))
        return other if other >= _LEAST_OTHER else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a method asks for, fixed before anything is played.

    Attributes:
        plan: The turns, and how many twins each gets.
        twins: The twins of each, in the plan's order.
        measured: Forks that only measure: controls and null twins.
    """

    plan: list[Planned]
    twins: list[list[Fork]]
    measured: list[Fork]


def choose(
    group: Group,
    twins: int = 1,
    budget: Budget | None = None,
    *,
    form: TwinForm | None = None,
    memory: BudgetMemory | None = None,
) -> Choice:
    """The forks of a group: `twins` of every turn, or a random number of them under a budget.

    How many it asks for depends on histories and on earlier steps (`memory`) only, never on
    outcomes, actions or lengths; failed episodes are left out. Forced alternatives are not played
    where there is hardly any (`TwinForm.weight` 0), because their credit is 0 whatever they give.

    Raises:
        ValueError: `twins` below 1 or above 65,535 without a budget, or a missing log-probability.
    """
    if budget is not None:
        plan = (memory or BudgetMemory(budget)).plan(group)
    elif twins < 1:
        raise ValueError(f"`twins` must be at least 1 without a budget, got {twins}.")
    else:
        at_most_forks(twins=twins)
        plan = _every_turn(group, twins)
    asked, measured = planned_forks(group, plan, budget, form or TwinForm())
    return Choice(plan=plan, twins=asked, measured=measured)


def _every_turn(group: Group, twins: int) -> list[Planned]:
    return [
        Planned(
            episode=episode,
            turn=turn,
            expected=float(twins),
            count=twins,
            discordance=np.nan,
            tail_tokens=np.nan,
            price=np.nan,
        )
        for episode in group.episodes
        if episode.outcome is not None
        for turn in range(episode.num_turns)
    ]


def planned_forks(
    group: Group, plan: Sequence[Planned], budget: Budget | None, form: TwinForm
) -> tuple[list[list[Fork]], list[Fork]]:
    """The twins of each planned turn, and the forks that only measure: controls and nulls.

    Without a budget nothing is measured. Controls are asked for twins with shared luck only, and
    null twins only where there is a tail.
    """
    twins = [
        [form.twin(planned.episode, planned.turn, k) for k in range(planned.count)]
        if planned.count and form.weight(planned)
        else []
        for planned in plan
    ]
    if budget is None:
        return twins, []
    controls = _controls(group, twins, budget) if form.luck is SHARED else []
    return twins, controls + _nulls(group, twins, budget)


def _controls(group: Group, twins: Sequence[Sequence[Fork]], budget: Budget) -> list[Fork]:
    """The twins' decisions again with fresh luck, for a random share of them."""
    found = []
    for k in range(max((len(own) for own in twins), default=0)):
        kth = [own[k] for own in twins if len(own) > k]
        drawn = _coins.coins(group, [(twin.episode, twin.turn) for twin in kth], _coins.FRESH, k)
        found += [
            Fork(twin.episode, twin.turn, twin.action, FRESH, alternative=k)
            for twin, coin in zip(kth, drawn, strict=True)
            if coin < budget.fresh
        ]
    return found


def _nulls(group: Group, twins: Sequence[Sequence[Fork]], budget: Budget) -> list[Fork]:
    """Replays of kept decisions that have a tail, for a random share of the turns with twins."""
    first = [own[0] for own in twins if own and own[0].turn + 1 < own[0].episode.num_turns]
    drawn = _coins.coins(group, [(twin.episode, twin.turn) for twin in first], _coins.NULL)
    return [
        Fork(twin.episode, twin.turn, KEEP, SHARED, coupling=twin.coupling)
        for twin, coin in zip(first, drawn, strict=True)
        if coin < budget.null
    ]


def replays(planned: Planned, twins: Sequence[Episode], draws: int) -> list[list[Fork]]:
    """For each further luck 1..draws: the kept decision, and once each other one of the twins'.

    None where all twins decided as the factual did: whatever the luck, they end as it does.
    """
    episode, turn = planned.episode, planned.turn
    words = {decision(twin, turn): twin.turns[turn].action for twin in twins if is_scored(twin)}
    words.pop(decision(episode, turn), None)
    if not words:
        return []
    return [
        [Fork(episode, turn, action, luck) for action in (KEEP, *words.values())]
        for luck in range(1, draws + 1)
    ]


def decision(episode: Episode, turn: int) -> str:
    """A turn's action as a word, so that equal ids compare equal."""
    return action_word(episode.turns[turn].action)


def is_scored(episode: Episode) -> bool:
    """Whether the episode has an outcome."""
    return episode.outcome is not None


def saved_tokens(plan: Sequence[Planned], played: Sequence[Sequence[Episode]]) -> dict[str, Any]:
    """Tokens of twins' tails that were not sampled: the factual's taken over, or another twin's."""
    saved = {"saved_equal_tokens": 0, "saved_duplicate_tokens": 0}
    for planned, twins in zip(plan, played, strict=True):
        for twin in filter(is_scored, twins):
            whole = int(twin.column("num_tokens")[planned.turn :].sum())
            kind = "saved_equal_tokens" if is_equal_decision(twin) else "saved_duplicate_tokens"
            saved[kind] += max(0, whole - twin.sampled)
    return saved
