"""What shared luck saves: Var(paired) / Var(independent), against its exact value.

In the bandit the two arms are played with shared and with fresh luck; the exact ratio is
1 - rho_eff. In the chain one turn of every episode is resampled, and the same decision is played
with shared and with fresh luck; the exact ratio is E[D^2] shared over fresh, by dynamic
programming (the two worlds share their prefix, so pooled rho_eff says more than coupling gives).

Table `variance` (one row a setting, turn and seed): setting, seed, world, regime, horizon,
density, turn, matters (whether that turn's actions do different things), num_pairs, ratio with
ratio_low and ratio_high, predicted, rho_eff, coupling_gain, deduplicated_gain (each with _low and
_high), predicted_deduplicated, equal_share, discordance, effect, variance_paired,
variance_independent. Intervals are those of `variance_account`, 95%.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulations.worlds.bandit import REGIMES, BanditSetting, pair_law, pairs
from simulations.worlds.chain import Chain
from simulations.worlds.chain_model import ChainSetting
from simulations.worlds.chain_twins import twin_moments
from twinstats.episodes import FRESH, Fork
from twinstats.variance import VarianceAccount, variance_account

TABLE = "variance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One world, and how much of it is played.

    Attributes:
        world: The bandit or the chain.
        num_pairs: Pairs a turn (chain: episodes that are played; some end before the turn).
        num_turns: Chain only: at how many turns, spread evenly, decisions are resampled.
    """

    world: BanditSetting | ChainSetting
    num_pairs: int = 4000
    num_turns: int = 6

    @property
    def name(self) -> str:
        """The world's name."""
        return self.world.name


def _bandits(num_pairs: int) -> tuple[Setting, ...]:
    worlds = [
        BanditSetting(name=f"{regime}, effect {effect}", regime=regime, effect=effect)
        for regime in REGIMES
        for effect in (0.02, 0.1)
    ]
    worlds += [
        BanditSetting(name=f"continuous, effect {effect}", effect=effect, spread=0.5)
        for effect in (0.02, 0.1)
    ]
    return tuple(Setting(world=world, num_pairs=num_pairs) for world in worlds)


def _chains(num_pairs: int, horizons: tuple[int, ...], num_turns: int) -> tuple[Setting, ...]:
    worlds = [
        ChainSetting(name=f"chain {horizon}, density {density}", horizon=horizon, density=density)
        for horizon in horizons
        for density in (0.2, 1.0)
    ]
    return tuple(Setting(world=w, num_pairs=num_pairs, num_turns=num_turns) for w in worlds)


SETTINGS = _bandits(20_000) + _chains(4000, (10, 30, 100), 10)
QUICK = _bandits(1000)[:4] + _chains(300, (6,), 3)
DEMO = _bandits(4000) + _chains(1500, (20,), 6)
SEEDS = {"full": 8, "quick": 1, "demo": 1}


def run(setting: Setting, seed: int) -> list[dict[str, Any]]:
    """Measured and exact ratios of one setting and seed."""
    if isinstance(setting.world, BanditSetting):
        return _bandit_rows(setting.world, setting.num_pairs, seed)
    return _chain_rows(setting, setting.world, seed)


def _bandit_rows(world: BanditSetting, num_pairs: int, seed: int) -> list[dict[str, Any]]:
    factual, twin = pairs(world, num_pairs, seed=seed)
    _, control = pairs(world, num_pairs, seed=seed, luck="fresh")
    account = variance_account(factual, twin, control=control)
    law = pair_law(world)
    known = {
        "setting": world.name,
        "seed": seed,
        "world": "bandit",
        "regime": "continuous" if world.spread else world.regime,
        "predicted": 1 - law.rho_eff,
    }
    return [_row(account) | known]


def _chain_rows(setting: Setting, dials: ChainSetting, seed: int) -> list[dict[str, Any]]:
    world = Chain(dials, seed=seed)
    moments = twin_moments(world.model)
    episodes = world.play(world.tasks(1), setting.num_pairs, step=0)
    rows = []
    last = dials.horizon - 1
    for turn in np.unique(np.linspace(0, last, setting.num_turns).round().astype(int)).tolist():
        reached = [episode for episode in episodes if episode.num_turns > turn]
        twins = world.fork([Fork(episode, turn) for episode in reached])
        controls = world.fork([Fork(episode, turn, luck=FRESH) for episode in reached])
        account = variance_account(
            [episode.outcome for episode in reached],
            [twin.outcome for twin in twins],
            control=[control.outcome for control in controls],
            equal=[
                twin.turns[turn].action == episode.turns[turn].action
                for twin, episode in zip(twins, reached, strict=True)
            ],
        )
        known = {
            "setting": setting.name,
            "seed": seed,
            "world": "chain",
            "horizon": dials.horizon,
            "density": dials.density,
            "turn": turn,
            "matters": bool(world.model.matters[turn]),
            "predicted": _quotient(moments.shared[turn], moments.fresh[turn]),
            "predicted_deduplicated": _quotient(moments.shared[turn], moments.deduplicated[turn]),
        }
        rows.append(_row(account) | known)
    return rows


def _row(account: VarianceAccount) -> dict[str, Any]:
    row: dict[str, Any] = {
        "regime": None,
        "horizon": None,
        "density": None,
        "turn": None,
        "matters": None,
        "predicted_deduplicated": None,
        "num_pairs": account.num_pairs,
        "equal_share": account.equal_share,
        "discordance": account.discordance,
        "effect": account.effect,
        "variance_paired": account.variance_paired,
        "variance_independent": account.variance_independent,
    }
    columns = {
        "rho_eff": "rho_eff",
        "coupling_gain": "coupling_gain",
        "deduplicated_gain": "coupling_gain_deduplicated",
    }
    for column, statistic in columns.items():
        low, high = account.intervals.get(statistic) or (None, None)
        row |= {column: getattr(account, statistic), f"{column}_low": low, f"{column}_high": high}
    row["ratio"] = _inverse(row["coupling_gain"])
    row["ratio_low"] = _inverse(row["coupling_gain_high"])
    row["ratio_high"] = _inverse(row["coupling_gain_low"])
    return row


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None


def _quotient(value: float, other: float) -> float | None:
    return float(value / other) if other > 0 else None
