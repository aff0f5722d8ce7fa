"""When do twins pay? Coupling gain against what independent worlds show of it.

The gain is E[D^2] of a deduplicated independent branch over that of a twin, summed over an
episode's turns as reached, exactly (`simulations.worlds.tabular_twins`). Raw to deduplicated is
what equal decisions give; deduplicated to shared is what shared luck gives.

The untouched share, of D^2 of two independent worlds whose decisions differ, is what arises once
they are in the same state at the same turn, or from luck that is the same in every state:
untouched = 1 - E[(D until they meet)^2] / E[D^2]. It needs no shared luck: from a log of
independent branches (for the first turn: of two rollouts of a task) take the rewards up to the
first turn that shows both the same, rewards whose law no decision changes replaced by their mean.
`untouched_logged` is that estimate. If nothing is shared before they meet and everything after,
the gain is 1 / (1 - untouched).

The rules are fitted on the cells of one half of the settings and tested on the other half: cells
are turn 0 ("opening"), the rest of the first third of the turns ("early"), the middle and the
last third. Worlds: `chain`, `errand` and `bets`, where
shared luck pays the one side what it takes from the other. The seed chooses the tables.

Table `gain_cells` (one row a setting, seed and part): setting, seed, world, dial (which was
turned), part (of the turns: all, opening, early, middle, late), the dials horizon, density,
sharpness, luck, ends, skill, finding, contrary (null where a world has none), fresh, deduplicated,
shared, touched, effect (sums over turns of E[D^2]; effect: without luck), equal_share, tail (mean
number of turns after the decision), raw_gain (fresh / shared), deduplication_gain (fresh /
deduplicated), gain (deduplicated / shared), untouched, decision_share (effect / deduplicated),
untouched_logged, num_logged (branches whose decision and outcome differ; the estimate is null
below 30), reason (why gain is null: nothing differs, or twins never differ and it has no bound).
Table `gain` (those rows with what the rules say): the same columns, half (fit or test; null where
gain is), predicted (1 / (1 - untouched)), predicted_logged, predicted_fitted (the rule
"untouched, fitted"), predicted_all (the rule "all three").
Table `gain_rule` (one row a rule, half and world, "every" for all): rule, target ("coupling" or
"deduplication"), half, world, num_cells, num_settings, r2 (of the logarithm), median_factor,
p90_factor and worst_factor (how many times the larger of rule and truth is the smaller),
bias_factor (geometric mean of rule over truth), intercept and slope_untouched, slope_tail,
slope_equal (null where not used), reason (why errors are null).
Table `gain_threshold` (one row a predictor and half): predictor, pays_at (the gain that counts as
paying), threshold (chosen on the fit half), half, num_pays, num_not, sensitivity, specificity.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulations.studies._gain_rule import rule_tables
from simulations.studies._gain_worlds import BetSetting, Setting, build, crossed, sweep
from simulations.worlds.chain_model import ChainSetting
from simulations.worlds.errand_model import ErrandSetting
from simulations.worlds.tabular import TabularWorld
from simulations.worlds.tabular_twins import TwinMoments, touchable, twin_moments
from twinstats.episodes import FRESH, Episode, Fork

TABLE = "gain_cells"
PARTS = ("all", "opening", "early", "middle", "late")
_FEWEST_LOGGED = 30
_SUMS = ("fresh", "deduplicated", "shared", "touched", "effect")

_CHAIN = ChainSetting(name="chain", horizon=20)
_ERRAND = ErrandSetting(name="errand")
_BETS = BetSetting(name="bets")


def _few(settings: Sequence[Setting], num_logged: int) -> tuple[Setting, ...]:
    return tuple(dataclasses.replace(setting, num_logged=num_logged) for setting in settings)


SETTINGS = (
    *sweep(
        _CHAIN,
        horizon=(5, 10, 40, 100),
        density=(0.1, 0.25, 1.0),
        sharpness=(0.25, 2.0, 4.0),
        luck=(0.0, 0.25, 1.0),
        ends=(0.1, 0.3),
        reward=("end",),
    ),
    *crossed(
        _CHAIN,
        horizon=(6, 20, 60),
        density=(0.2, 0.5, 1.0),
        sharpness=(1.0, 3.0),
        luck=(0.0, 0.5),
        ends=(0.0, 0.2),
    ),
    *sweep(
        _ERRAND,
        horizon=(8, 12, 24, 40),
        density=(0.3, 0.6),
        skill=(1.0, 2.0, 4.0, 6.0),
        finding=(0.2, 0.9),
        sharpness=(0.0, 2.0),
        is_locked=(False,),
    ),
    *crossed(_ERRAND, horizon=(10, 16, 30), density=(0.5, 1.0), skill=(1.5, 3.0, 5.0)),
    *sweep(_BETS, horizon=(6, 24), density=(0.25, 0.5), contrary=(0.0, 0.25, 0.5, 1.0)),
    *crossed(_BETS, density=(0.0, 0.2, 0.4), contrary=(0.25, 0.5, 0.75, 1.0)),
)
QUICK = _few(
    (
        *sweep(_CHAIN, horizon=(6,), density=(0.2,), sharpness=(3.0,)),
        *sweep(_ERRAND, horizon=(8,)),
        *sweep(_BETS, contrary=(0.0, 0.25, 1.0)),
    ),
    300,
)
DEMO = _few(
    (
        *sweep(_CHAIN, horizon=(5, 10, 40), density=(0.1, 0.25, 1.0), sharpness=(0.25, 2.0, 4.0)),
        *sweep(_ERRAND, horizon=(8, 12, 24), skill=(1.0, 5.0)),
        *sweep(_BETS, contrary=(0.25, 0.5, 1.0)),
    ),
    400,
)
SEEDS = {"full": 6, "quick": 2, "demo": 2}


def run(setting: Setting, seed: int) -> list[dict[str, Any]]:
    """The exact gains of one world by part, and what a log of independent branches says of them."""
    world = build(setting.dials, seed)
    moments = twin_moments(world.tables, range(len(world.tables.starts)))
    logged = _logged_squares(world, setting.num_logged)
    part_of = 2 + 3 * np.arange(len(moments.shared)) // len(moments.shared)
    part_of[0] = 1
    known = {"setting": setting.name, "seed": seed, "world": setting.world, "dial": setting.dial}
    rows = []
    for number, part in enumerate(PARTS):
        turns = np.flatnonzero((part_of == number) | (number == 0))
        rows.append(
            known | {"part": part} | setting.levels() | _exact(moments, turns) | _log(logged, turns)
        )
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The tables `gain`, `gain_rule` and `gain_threshold`."""
    return rule_tables(rows)


def _exact(moments: TwinMoments, turns: np.ndarray) -> dict[str, Any]:
    weight = moments.reached[turns]
    sums = {name: float(weight @ getattr(moments, name)[turns]) for name in _SUMS}
    fresh, deduplicated, shared = sums["fresh"], sums["deduplicated"], sums["shared"]
    least = 1e-12 * max(fresh, 1.0)
    is_null = min(deduplicated, shared) < least
    reason = "nothing differs" if deduplicated < least else "twins never differ"
    return sums | {
        "equal_share": float(weight @ moments.equal[turns] / weight.sum()),
        "tail": float(weight @ moments.tail[turns] / weight.sum()),
        "raw_gain": None if is_null else fresh / shared,
        "deduplication_gain": None if is_null else fresh / deduplicated,
        "gain": None if is_null else deduplicated / shared,
        "untouched": None if is_null else 1 - sums["touched"] / deduplicated,
        "decision_share": None if is_null else sums["effect"] / deduplicated,
        "reason": reason if is_null else None,
    }


def _logged_squares(world: TabularWorld, num_logged: int) -> np.ndarray:
    """D^2, and D^2 until the worlds meet, of branches whose decision differs; with their turn.

    Episode i is forked at turn i modulo the horizon, where it got there: a choice that looks at
    nothing.
    """
    episodes = world.play(world.tasks(len(world.tables.starts)), _each(world, num_logged), step=0)
    horizon = len(world.tables.logits)
    forks = [
        Fork(episode, number % horizon, luck=FRESH)
        for number, episode in enumerate(episodes)
        if episode.num_turns > number % horizon
    ]
    rewards = touchable(world.tables).reward.reshape(-1)
    found = []
    for fork, branch in zip(forks, world.fork(forks), strict=True):
        parent, turn = fork.episode, fork.turn
        if branch.turns[turn].action != parent.turns[turn].action:
            assert branch.outcome is not None and parent.outcome is not None
            met = until_met(parent, branch, turn)
            apart = sum(rewards[parent.info["index"][turn:met]])
            apart -= sum(rewards[branch.info["index"][turn:met]])
            found.append((turn, (parent.outcome - branch.outcome) ** 2, apart**2))
    return np.array(found).reshape(-1, 3)


def _each(world: TabularWorld, num_logged: int) -> int:
    return -(-num_logged // len(world.tables.starts))


def until_met(one: Episode, other: Episode, turn: int) -> int | None:
    """The first turn after `turn` that shows both episodes the same; null if they never meet.

    An episode's end shows its final state.
    """
    shown = [
        [*(later.state for later in episode.turns[turn + 1 :]), episode.final_state]
        for episode in (one, other)
    ]
    meetings = [place for place, pair in enumerate(zip(*shown, strict=False)) if len(set(pair)) < 2]
    return turn + 1 + meetings[0] if meetings else None


def _log(logged: np.ndarray, turns: np.ndarray) -> dict[str, Any]:
    own = logged[np.isin(logged[:, 0], turns)]
    num_logged = np.count_nonzero(own[:, 1])
    share = 1 - float(own[:, 2].sum() / own[:, 1].sum()) if num_logged >= _FEWEST_LOGGED else None
    return {"untouched_logged": share, "num_logged": num_logged}
