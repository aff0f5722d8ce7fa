"""Who is on the leaderboard: every method of the registry, and named variants of some.

Leaves out how entrants are played (`leaderboard`) and read (`twinstats.board`).
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from twinstats.credit import METHODS, Budget
from twinstats.credit._twin_forks import choose  # the forks that `twice` asks for
from twinstats.credit.baseline import exact_mean, outcomes
from twinstats.credit.registry import Entry, Method
from twinstats.episodes import Credit, Episode, Fork, Group
from twinstats.errors import UsageError

GROUP = 4
"""Rollouts of a task in a base group; methods with forks keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """How far knobs are turned.

    Attributes:
        groups: Rollouts of a task, for methods without forks; the first is a base group.
        knobs: Values of a knob, in its units.
        ratios: Budgets: expected auxiliary tokens over factual tokens.
    """

    groups: tuple[int, ...]
    knobs: tuple[int, ...]
    ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A method on the board.

    Attributes:
        method: Its name in the registry, or in `OWN`.
        knob: The option that is swept; null sweeps the size of the group.
        options: Its other options.
        explore: Of its budget, where the knob is one.
        claims_unbiased: Whether it claims to be unbiased for the advantage.
    """

    method: str
    knob: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    explore: float = 0.1
    claims_unbiased: bool = False

    @property
    def entry(self) -> Entry:
        """The method in the registry, or in `OWN`."""
        return OWN.get(self.method) or METHODS[self.method]

    def values(self, sweep: Sweep) -> Sequence[float]:
        """What the knob is set to."""
        if self.knob is None:
            return sweep.groups
        if self.knob == "budget":
            return sweep.ratios
        return [value * self.entry.knob_unit for value in sweep.knobs]

    def build(self, value: float) -> Method:
        """The method at a value of its knob."""
        options: dict[str, Any] = dict(self.options)
        if self.knob == "budget":
            options["budget"] = Budget(ratio=float(value), explore=self.explore)
        elif self.knob is not None:
            options[self.knob] = int(value)
        return Method(self.method, self.entry, options)

    def refusal(self, world: Any) -> str | None:
        """Why the world cannot play it; null where it can."""
        method = self.build(1)
        episodes = world.play(world.tasks(1), 1, 0)
        try:
            for need in method.needs:
                world.provide(need.name, episodes)
        except UsageError as error:
            return str(error)
        return _coupling_refusal(world, episodes[0]) if "coupling" in self.options else None


def _coupling_refusal(world: Any, episode: Episode) -> str | None:
    try:
        world.fork([Fork(episode, 0, coupling="maximal")])
    except ValueError as error:
        return str(error)
    return None


def entrants() -> dict[str, Entrant]:
    """All entrants by name: the registry's, as it is now, and the variants."""
    known = {
        name: Entrant(method=name, knob=entry.knob, claims_unbiased=entry.unbiased)
        for name, entry in METHODS.items()
    }
    return known | VARIANTS


def twice_shared(
    group: Group, *, twins: int = 1, share: float = 0.5
) -> Generator[Any, Any, Credit]:
    """Credit A_t = G_{t+1} - T_t: twins shared across turns.

    T_t is the mean outcome of the twins of turn t, an estimate of V(s_t), and so is
    G_t = share * T_t + (1 - share) * G_{t+1}, G the factual's outcome after the last turn: later
    turns' twins stand for the factual. Both follow the factual's luck. Unbiased for the advantage
    at every share; 0 is `twice`. No further token.
    """
    chosen = choose(group, twins)
    played, _ = yield [chosen.twins, chosen.measured]
    means = {
        (id(planned.episode), planned.turn): exact_mean(outcomes(own))
        for planned, own in zip(chosen.plan, played, strict=True)
    }
    values = []
    for episode, outcome in zip(group.episodes, outcomes(group.episodes), strict=True):
        value, after = np.full(episode.num_turns, np.nan), float(outcome)
        for turn in range(episode.num_turns - 1, -1, -1):
            mean = means[id(episode), turn]
            value[turn] = after - mean
            after = share * mean + (1 - share) * after
        values.append(value)
    return Credit(episodes=group.episodes, values=values)


OWN: dict[str, Entry] = {
    "twice_shared": Entry(function=twice_shared, reconstructed=True, knob="twins")
}
"""Methods that only the board has."""


def _variant(method: str, knob: str = "twins", *, claims: bool = True, **options: Any) -> Entrant:
    explore = options.pop("explore", 0.1)
    return Entrant(
        method=method, knob=knob, options=options, explore=explore, claims_unbiased=claims
    )


VARIANTS: dict[str, Entrant] = {
    "twice_two_sided": _variant("twice", two_sided=True),
    "twice_different": _variant("twice", different=True),
    "twice_draws": _variant("twice", "draws"),
    "twice_draws_different": _variant("twice", "draws", different=True),
    "twice_maximal": _variant("twice", coupling="maximal"),
    "twice_variate": _variant("twice", claims=False, control_variate=True),
    "twice_shared": _variant("twice_shared"),
    "twice_shared_all": _variant("twice_shared", share=1.0),
    "twice_budget": _variant("twice", "budget", claims=False),
    "twice_augmented": _variant("twice", "budget", mixing="augmented", explore=0.5),
    "twice_budget_variate": _variant("twice", "budget", claims=False, control_variate=True),
    "independent_raw": _variant("independent", dedup=False),
    "independent_two_sided": _variant("independent", two_sided=True),
    "independent_different": _variant("independent", different=True),
    "independent_variate": _variant("independent", claims=False, control_variate=True),
    "independent_budget": _variant("independent", "budget", claims=False),
    "independent_raw_budget": _variant("independent", "budget", claims=False, dedup=False),
}
"""Forms of twins besides the registry's defaults. `independent_raw` plays equal decisions too."""
