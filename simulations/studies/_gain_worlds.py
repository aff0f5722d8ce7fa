"""The worlds of the `gain` study: chains, errands, and bets that shared luck makes worse.

Leaves out what is measured in them (`gain`).
"""

import dataclasses
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from simulations.worlds.chain import Chain
from simulations.worlds.chain_model import ChainSetting
from simulations.worlds.errand import Errand
from simulations.worlds.errand_model import ErrandSetting
from simulations.worlds.tabular import TabularWorld
from simulations.worlds.tabular_model import TabularModel
from simulations.worlds.tabular_needs import Labels, Quality
from twinstats.noise import generator

DIALS = ("horizon", "density", "sharpness", "luck", "ends", "skill", "finding", "contrary")
"""The dials that are swept; a world has some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BetSetting:
    """The dials of bets: a decision takes one of two sides, and a coin is tossed every turn.

    Attributes:
        name: What the setting is called in tables.
        horizon: Turns.
        density: Share of turns at which a side is taken; the first always is one of them.
        sharpness: Standard deviation of the policy's logits.
        contrary: Share of turns whose coin pays 1 to the one side or to the other; at the rest it
            pays both sides alike. What pays the one side is lost to the other, so that the same
            luck drives two worlds apart.
        table_seed: Which of the bets with these dials.
    """

    name: str
    horizon: int = 12
    density: float = 0.0
    sharpness: float = 1.0
    contrary: float = 0.75
    table_seed: int = 0


Dials = ChainSetting | ErrandSetting | BetSetting
WORLDS = {ChainSetting: "chain", ErrandSetting: "errand", BetSetting: "bets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One world, and how much of it is logged.

    Attributes:
        dials: The world; the seed chooses its tables.
        dial: The dial that was turned from the world's base; "base" for the base itself and
            "several" where more than one was.
        num_logged: Episodes that are played, each with one independent branch.
    """

    dials: Dials
    dial: str = "base"
    num_logged: int = 1500

    @property
    def name(self) -> str:
        """The world's name."""
        return self.dials.name

    @property
    def world(self) -> str:
        """The kind of world."""
        return WORLDS[type(self.dials)]

    def levels(self) -> dict[str, float | None]:
        """Where its dials stand; null for those it does not have."""
        return {dial: getattr(self.dials, dial, None) for dial in DIALS}


def build(dials: Dials, seed: int) -> TabularWorld:
    """The world with the tables and the noise of a seed."""
    own = dataclasses.replace(dials, table_seed=seed)
    if isinstance(own, ChainSetting):
        return Chain(own, seed=seed)
    return Errand(own, seed=seed) if isinstance(own, ErrandSetting) else _bets(own, seed)


def sweep(base: Dials, **levels: tuple[Any, ...]) -> tuple[Setting, ...]:
    """The base, and each dial turned alone to each of its levels."""
    found = [Setting(dials=base)]
    for dial, own in levels.items():
        found += [
            Setting(dials=_turned(base, {dial: level}), dial=dial)
            for level in own
            if level != getattr(base, dial)
        ]
    return tuple(found)


def crossed(base: Dials, **levels: tuple[Any, ...]) -> tuple[Setting, ...]:
    """All combinations of levels that turn at least two dials from the base."""
    found = []
    for chosen in product(*levels.values()):
        turned = {d: x for d, x in zip(levels, chosen, strict=True) if x != getattr(base, d)}
        if len(turned) > 1:
            found.append(Setting(dials=_turned(base, turned), dial="several"))
    return tuple(found)


def _turned(base: Dials, levels: dict[str, Any]) -> Dials:
    name = ", ".join([base.name, *(f"{dial} {level}" for dial, level in levels.items())])
    return dataclasses.replace(base, name=name, **levels)


def _bets(setting: BetSetting, seed: int) -> TabularWorld:
    labels = Labels(
        world="bets",
        shown=lambda turn, state: (turn, state),
        state_class=["heads", "tails"],
        actions=["heads", "tails"],
        states={"features": np.eye(2)},
    )
    return TabularWorld(
        bet_tables(setting),
        seed=seed,
        labels=labels,
        quality=Quality(critic=1.0, teacher=0.5, judge=0.5),
    )


def bet_tables(setting: BetSetting) -> TabularModel:
    """The tables of bets: the state is the side taken."""
    rng = generator(setting.table_seed, "gain/bets")
    turns = setting.horizon
    decides, contrary = np.zeros(turns, bool), np.zeros(turns, bool)
    decides[rng.permutation(turns)[: round(setting.density * turns)]] = True
    decides[0] = True
    contrary[rng.permutation(turns)[: round(setting.contrary * turns)]] = True
    side = np.broadcast_to(np.arange(2), (turns, 2, 2))
    move = np.where(decides[:, None, None], side, side.transpose(0, 2, 1))
    branch = np.arange(2)
    wins = np.where(contrary[:, None, None, None], move[..., None] == branch, branch == 1)
    return TabularModel(
        logits=setting.sharpness * rng.normal(size=(turns, 2, 2)),
        chance=np.full((turns, 2, 2), 0.5),
        move=np.stack((move, move), axis=-1),
        reward=wins.astype(np.float64),
        hazard=np.zeros((turns, 2)),
        starts=np.arange(2),
    )
