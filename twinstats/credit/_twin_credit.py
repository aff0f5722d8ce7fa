"""What `twice` and `independent` make of their twins; they differ in how twins are asked for.

Each turn with twins has a table of outcomes (world, luck): world 0 is the factual, luck 0 the luck
of the first replay. Everything is read from that table and from the group's baseline.
"""

import dataclasses
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from twinstats.credit._twin_forks import (
    Choice,
    TwinForm,
    decision,
    is_scored,
    replays,
    saved_tokens,
)
from twinstats.credit.baseline import exact_mean, group_info, leave_one_out, outcomes
from twinstats.credit.budget import Planned
from twinstats.episodes import DIFFERENT, RESAMPLE, Action, Credit, Episode, Group
from twinstats.errors import unknown

Mixing = Literal["plain", "augmented"]

Place = tuple[int, int]  # index of an episode in its group, turn

_VARIATE = "variate"  # where a credit's info keeps what `finish` needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How outcomes become credit.

    Raises:
        ValueError: Options that exclude each other, or an unknown `mixing`.
    """

    mixing: Mixing
    two_sided: bool
    control_variate: bool
    different: bool

    def __post_init__(self) -> None:
        if self.mixing not in ("plain", "augmented"):
            raise unknown("mixing", self.mixing, ("plain", "augmented"))
        if self.two_sided and (self.different or self.control_variate):
            other = "different" if self.different else "control_variate"
            raise ValueError(
                f"`two_sided` excludes `{other}`: it compares decisions that are all drawn from "
                "the policy, each with all others, got both."
            )
        if self.mixing == "augmented" and (self.two_sided or self.control_variate):
            other = "two_sided" if self.two_sided else "control_variate"
            raise ValueError(
                f"`mixing` 'augmented' excludes `{other}`: it is for the factual's advantage "
                "itself, got both."
            )

    @property
    def action(self) -> Action:
        """What a twin does at its turn."""
        return DIFFERENT if self.different else RESAMPLE


def twin_credit(
    group: Group, chosen: Choice, form: TwinForm, reading: Reading, *, draws: int = 0
) -> Generator[Any, Any, Credit]:
    """Plays what was chosen, and its replays under other luck, and reads the credit."""
    plan = chosen.plan
    played, _ = yield [chosen.twins, chosen.measured]
    tables = [_table(p, twins) for p, twins in zip(plan, played, strict=True)]
    if draws:
        again = yield [replays(p, twins, draws) for p, twins in zip(plan, played, strict=True)]
        tables = [
            np.column_stack([table, *(_replayed(p, twins, one) for one in lucks)])
            for p, twins, table, lucks in zip(plan, played, tables, again, strict=True)
        ]
    values, pairs = _mixed(group, plan, tables, form, reading.mixing)
    failed = sum(math.isnan(difference) for difference, _ in pairs.values())
    info = group_info(group) | {"plan": plan, "twins": played, "failed_turns": failed}
    info |= saved_tokens(plan, played)
    if reading.control_variate:
        info[_VARIATE] = {p: pair for p, pair in pairs.items() if not any(map(math.isnan, pair))}
    credit = Credit(episodes=group.episodes, values=values, info=info)
    return _with_twins(credit, tables) if reading.two_sided else credit


def _mixed(
    group: Group,
    plan: Sequence[Planned],
    tables: Sequence[np.ndarray],
    form: TwinForm,
    mixing: Mixing,
) -> tuple[list[np.ndarray], dict[Place, tuple[float, float]]]:
    """The factuals' values, and difference and baseline of each turn that has twins."""
    baseline = leave_one_out(outcomes(group.episodes))
    row = {id(episode): index for index, episode in enumerate(group.episodes)}
    values = [np.full(episode.num_turns, np.nan) for episode in group.episodes]
    pairs = {}
    for planned, table in zip(plan, tables, strict=True):
        index = row[id(planned.episode)]
        value = base = float(baseline[index])
        if planned.count:
            value = _difference(planned, table, form)
            pairs[index, planned.turn] = value, base
            if mixing == "augmented" and planned.probability < 1:
                value = base + (value - base) / planned.probability
        values[index][planned.turn] = value
    return values, pairs


def _table(planned: Planned, twins: Sequence[Episode]) -> np.ndarray:
    """Outcomes of the factual and its twins, one column."""
    return outcomes([planned.episode, *twins])[:, None]


def _replayed(
    planned: Planned, twins: Sequence[Episode], replayed: Sequence[Episode]
) -> np.ndarray:
    """Outcomes of the factual's decision and of its twins' under another luck.

    Equal decisions have one outcome; a twin that failed at first has none.
    """
    turn = planned.turn
    known = {
        decision(one, turn): result
        for one, result in zip(replayed, outcomes(replayed), strict=True)
        if is_scored(one)
    }
    worlds = [planned.episode, *twins]
    return np.array(
        [known.get(decision(one, turn), np.nan) if is_scored(one) else np.nan for one in worlds]
    )


def _difference(planned: Planned, table: np.ndarray, form: TwinForm) -> float:
    """The factual's credit from its twins; 0 where hardly any other decision is possible."""
    weight = form.weight(planned)
    return weight * _against_others(table, 0) if weight else 0.0


def _against_others(table: np.ndarray, world: int) -> float:
    """Mean over lucks of a world's outcome minus the mean of the others under the same luck."""
    own, others = table[world], np.delete(table, world, axis=0)
    gaps = [value - exact_mean(rest) for value, rest in zip(own, others.T, strict=True)]
    return exact_mean(np.array(gaps))


def _with_twins(credit: Credit, tables: Sequence[np.ndarray]) -> Credit:
    """Adds the twins: each of n worlds is trained at the fork's turn with share 1/n."""
    episodes, values = list(credit.episodes), list(credit.values)
    share = [np.ones(len(own)) for own in values]
    row = {id(episode): index for index, episode in enumerate(episodes)}
    for planned, twins, table in zip(
        credit.info["plan"], credit.info["twins"], tables, strict=True
    ):
        part = 1 / max(1, int((~np.isnan(table[:, 0])).sum()))
        share[row[id(planned.episode)]][planned.turn] = part
        for world, twin in enumerate(twins, start=1):
            if is_scored(twin):
                episodes.append(twin)
                values.append(_at(planned.turn, twin, _against_others(table, world), np.nan))
                share.append(_at(planned.turn, twin, part, 1.0))
    return dataclasses.replace(credit, episodes=episodes, values=values, share=share)


def _at(turn: int, episode: Episode, value: float, elsewhere: float) -> np.ndarray:
    array = np.full(episode.num_turns, elsewhere)
    array[turn] = value
    return array


def finish(credits: list[Credit], memory: object = None) -> list[Credit]:
    """With a control variate: B + beta * (D - B) in place of D, beta from the other groups.

    beta = sum B (B - D) / sum (B - D)^2 over the turns of the step's other groups that have both,
    within [0, 1]; 1 where they say nothing. Since B = F - b and B - D = mean twin - b, this is
    (Cov(F, T) + tau^2) / (Var T + tau^2), tau^2 = E(V - b)^2, and the credit is
    (F - b) - beta * (mean twin - b).
    """
    if not any(_VARIATE in credit.info for credit in credits):
        return credits
    sums = np.array([_moments(credit) for credit in credits])
    before = np.cumsum(np.vstack([np.zeros(2), sums[:-1]]), axis=0)
    after = np.cumsum(np.vstack([np.zeros(2), sums[:0:-1]]), axis=0)[::-1]
    return [
        _combined(credit, float(np.clip(cross / square, 0, 1)) if square else 1.0)
        for credit, (cross, square) in zip(credits, before + after, strict=True)
    ]


def _moments(credit: Credit) -> tuple[float, float]:
    pairs = credit.info[_VARIATE].values()
    cross = math.fsum(base * (base - difference) for difference, base in pairs)
    return cross, math.fsum((base - difference) ** 2 for difference, base in pairs)


def _combined(credit: Credit, beta: float) -> Credit:
    values = [own.copy() for own in credit.values]
    for (index, turn), (difference, base) in credit.info[_VARIATE].items():
        values[index][turn] = beta * difference + (1 - beta) * base
    return dataclasses.replace(credit, values=values, info=credit.info | {"beta": beta})
