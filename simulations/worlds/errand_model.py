"""The tables of an errand: dials, states, luck and policy.

Leaves out the rules of the house (`errand_rules`) and playing (`errand`).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simulations.worlds.errand_rules import ACTIONS, LOST, House, apply, is_done, starts
from simulations.worlds.tabular_model import TabularModel
from simulations.worlds.tabular_needs import Quality
from twinstats.noise import generator

_DISCOUNT = 0.9  # of the plan that the policy is drawn to


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrandSetting:
    """The dials of an errand.

    Attributes:
        name: What the setting is called in tables.
        horizon: Turns of an episode that does not finish early.
        items: Items to deliver, 1 or 2; each delivery pays its share of 1.
        is_locked: Whether the vault has to be opened first: at best 7 or 9 turns for item 0
            instead of 5.
        skill: What the policy's logit of a step of progress has more than others, and that of
            burning something less.
        sharpness: Standard deviation of the random rest of the logits.
        finding: Probability that a search with something to find succeeds.
        grasping: Probability that taking something that lies there succeeds.
        density: Share of turns that matter; at the others the house sleeps and every action is
            like waiting.
        critic: How good the need `value` is: 0 is noise, 1 exact.
        teacher: The same for `teacher_gap`.
        judge: The same for `segments`.
        tokens: Tokens that a turn counts.
        table_seed: Which of the policies and sleeping turns with these dials.

    Raises:
        ValueError: A dial outside its range.
    """

    name: str
    horizon: int = 16
    items: int = 1
    is_locked: bool = True
    skill: float = 3.0
    sharpness: float = 0.5
    finding: float = 0.6
    grasping: float = 0.8
    density: float = 1.0
    critic: float = 0.5
    teacher: float = 0.5
    judge: float = 0.5
    tokens: int = 1
    table_seed: int = 0

    def __post_init__(self) -> None:
        if min(self.horizon, self.tokens) < 1:
            raise ValueError(
                f"`horizon` and `tokens` must be at least 1, got {self.horizon} and {self.tokens}."
            )
        if self.items not in (1, 2):
            raise ValueError(f"`items` must be 1 or 2, got {self.items}.")
        if not (0 <= self.skill < np.inf and 0 <= self.sharpness < np.inf):
            raise ValueError(
                "`skill` and `sharpness` must be at least 0 and finite, "
                f"got {self.skill} and {self.sharpness}."
            )
        for name in ("finding", "grasping", "density"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must be in (0, 1], got {getattr(self, name)}.")
        Quality(critic=self.critic, teacher=self.teacher, judge=self.judge)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrandModel:
    """An errand with its states by number.

    Attributes:
        tables: The tables, with the states in the order of `houses`.
        houses: Every state that can be reached.
        matters: Whether the house is awake at a turn.
    """

    tables: TabularModel
    houses: tuple[House, ...]
    matters: np.ndarray


def build_model(setting: ErrandSetting) -> ErrandModel:
    """The errand that the dials and the table seed name."""
    houses = reachable(setting.items, setting.is_locked)
    begin = starts(setting.items, is_locked=setting.is_locked)
    number = {house: index for index, house in enumerate(houses)}
    after = np.array([[number[apply(house, a)] for a in ACTIONS] for house in houses])
    stay = np.broadcast_to(np.arange(len(houses))[:, None], after.shape)
    chance = _chance(setting, after != stay)
    delivered = np.array([house.items.count("delivered") for house in houses])
    rng = generator(setting.table_seed, "errand/tables")
    matters = np.zeros(setting.horizon, bool)
    awake = max(1, round(setting.density * setting.horizon))
    matters[rng.permutation(setting.horizon)[:awake]] = True
    logits = _logits(setting, houses, after, chance, rng)
    wakes = matters[:, None, None]
    move = np.stack(np.broadcast_arrays(stay, np.where(wakes, after, stay)), axis=-1)
    done = np.array([is_done(house) for house in houses])
    tables = TabularModel(
        logits=np.repeat(logits[None], setting.horizon, axis=0),
        chance=np.where(wakes, chance, 0.0),
        move=move,
        reward=(delivered[move] - delivered[:, None, None]) / setting.items,
        hazard=np.repeat(done[None].astype(np.float64), setting.horizon, axis=0),
        starts=np.array([number[house] for house in begin]),
        goal=1.0,
    )
    return ErrandModel(tables=tables, houses=houses, matters=matters)


@lru_cache
def reachable(num_items: int, is_locked: bool = True) -> tuple[House, ...]:
    """Every state that can be reached from a start, nearest first."""
    known = dict.fromkeys(starts(num_items, is_locked=is_locked))
    queue = list(known)
    for house in queue:
        new = [a for a in (apply(house, action) for action in ACTIONS) if a not in known]
        known |= dict.fromkeys(new)
        queue += dict.fromkeys(new)
    return tuple(known)


def _chance(setting: ErrandSetting, changes: np.ndarray) -> np.ndarray:
    """Probability that an action does what it says; 0 where it does nothing."""
    luck = {"search": setting.finding, "take": setting.grasping}
    return changes * np.array([luck.get(action, 1.0) for action in ACTIONS])


def _logits(
    setting: ErrandSetting,
    houses: tuple[House, ...],
    after: np.ndarray,
    chance: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Skill times (1 for a step of the best plan, -1 for losing an item), plus noise."""
    lost = np.array([house.items.count(LOST) for house in houses])
    preference = _plan(houses, after, chance) - (lost[after] > lost[:, None]).astype(np.float64)
    return setting.skill * preference + setting.sharpness * rng.normal(size=after.shape)


def _plan(houses: tuple[House, ...], after: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """1 for the actions of the best discounted plan where anything can still be won, else 0."""
    delivered = np.array([house.items.count("delivered") for house in houses], np.float64)
    gain = delivered[after] - delivered[:, None]
    value = np.zeros(len(houses))
    for _ in range(400):  # converged: 0.9 ** 400 is below 1e-18
        quality = chance * (gain + _DISCOUNT * value[after])
        quality += (1 - chance) * _DISCOUNT * value[:, None]
        value = quality.max(axis=1)
    best = value[:, None]
    return ((quality >= best - 1e-9) & (best > 1e-9)).astype(np.float64)
