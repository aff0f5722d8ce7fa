"""Every credit method against exact truth, at equal total tokens.

On the board are all methods of the registry, and variants of twins. A method whose `Entry.knob` is
null spends tokens on larger groups; the others keep groups of four and sweep their knob. Each is
read at each budget between the points of its sweep, seed by seed, and never beyond it. All play
the same seeds and steps; methods with a memory first learn on earlier steps, whose tokens are not
counted. A method whose need a world lacks has rows that say so.

Metrics: `bias` (mean error a turn), `variance` (of the errors), `mse`, `mse_scaled` (after one
least-squares scale fitted on the other seeds), all over the mean of A^2, its root for bias: an
mse of 1 is what credit 0 has. For methods whose scale does not estimate A, bias and variance are
null and mse is mse_scaled. `sign_accuracy` (over turns with A != 0; credit 0 counts half),
`kendall` (tau-b of credit and A over a step's turns that matter, at most 2,000), `cosine` (of the
gradient of all that is trained, forks and shares included, and the exact policy gradient),
`auxiliary_share` (of all tokens).

Table `leaderboard_points` (one row a setting, seed, method, knob): setting, world, horizon,
density, seed, method, knob, estimates_advantage, reconstructed, claims_unbiased, reason (why it
was not played; then all that follows is null), tokens, auxiliary_tokens, base_tokens (what four
rollouts a task took), num_turns, num_groups, error, credit_square, credit_truth, truth_square
(sums over turns), sign_accuracy, kendall, cosine: means over steps. place_error, place_square,
place_turns: sums by place (each action, all turns) of a group's error, of its square, and of turns.
Table `leaderboard` (one row a setting, method, budget, metric): setting, world, horizon, density,
method, budget (tokens over base_tokens), metric, value, low, high (95% t interval over seeds),
num_seeds, reconstructed, estimates_advantage, reason (why value is null).
Table `leaderboard_differences` (one row a setting, reference, method, budget): also reference
(twice or vine), ratio (of mse, method over reference: differences of its logarithm are paired over
seeds), low, high (95% t), pvalue, pvalue_holm (corrected over all comparisons of the setting).
Table `leaderboard_tokens` (one row a setting, metric, method): metric (mse for methods that
estimate A, mse_scaled for all), target (that of vine with 9 rollouts), reference_tokens (what vine
spends on forks for it), auxiliary_tokens (what the method needs beyond the base group to reach it:
curves of seed means, straight in log tokens and log error), ratio with low and high (95%, Bayesian
bootstrap over seeds), is_bound (already its cheapest point reaches it: at most that), floor (the
error that no number of tokens undercuts: least squares on 1 / tokens), reason (not reached, and
why; or how many of the draws did not reach it).
Table `leaderboard_split` (one row a setting, form, quantity, budget): form (twins or budget),
quantity (mse at a budget, or tokens to equal error), deduplication (raw branches over branches
whose equal decisions are free), coupling (those over twins), both; each with _low and _high;
is_bound (a factor of tokens is at least, or at most, that: see above), reason.
Table `leaderboard_bias` (one row a setting, method, place; at the last value of the knob): place
(all, or an action), bias (of an occurrence, over the root of the mean of A^2), stderr, low, high
(simultaneous 95% over places; groups are the units), margin, equivalent (low and high are within
the margin), excludes_zero, claimed (the method claims no bias for A), num_groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from simulations.measure import credit_groups, play_groups, score, trained_gradient
from simulations.studies._leaderboard_bias import biases, place_sums
from simulations.studies._leaderboard_entrants import GROUP, Entrant, Sweep, entrants
from simulations.worlds import Bandit, Chain
from simulations.worlds.bandit import BanditSetting
from simulations.worlds.chain_model import ChainSetting
from simulations.worlds.errand import Errand
from simulations.worlds.errand_model import ErrandSetting
from simulations.worlds.tokens import Tokens
from simulations.worlds.tokens_model import TokensSetting
from twinstats.board import METRICS, board, curves, differences, equal_error, split
from twinstats.credit.registry import Method
from twinstats.episodes import Credit, Group

TABLE = "leaderboard_points"
BUDGETS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 32.0, 50.0, 80.0)
_MOST_RANKED = 2000
_LISTS = ("place_error", "place_square", "place_turns")
_NUMBERS = (
    "tokens",
    "auxiliary_tokens",
    "base_tokens",
    "num_turns",
    "num_groups",
    "error",
    "credit_square",
    "credit_truth",
    "truth_square",
    "sign_accuracy",
    "kendall",
    "cosine",
)

_FULL = Sweep(
    groups=(4, 6, 8, 12, 20, 32, 48, 80),
    knobs=(1, 2, 4, 9, 18),
    ratios=(0, 0.25, 0.5, 1, 2, 4, 8, 16, 32),
)
_LONG = Sweep(groups=(4, 6, 8, 12, 20), knobs=(1, 2, 4, 9), ratios=_FULL.ratios)
_SHORT = Sweep(groups=(4, 6, 8, 12, 20), knobs=(1, 3, 9), ratios=(0, 0.5, 1, 2, 4, 8))

_BRIEF = Sweep(groups=(4, 8, 20), knobs=(1, 3, 9), ratios=(0, 1, 4))

WorldSetting = BanditSetting | ChainSetting | ErrandSetting | TokensSetting

WORLDS: dict[type, tuple[str, Callable[..., Any]]] = {
    BanditSetting: ("bandit", Bandit),
    ChainSetting: ("chain", Chain),
    ErrandSetting: ("errand", Errand),
    TokensSetting: ("tokens", Tokens),
}
"""What each kind of setting is called, and what plays it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One world, and how much of it is played.

    Attributes:
        world: Its dials.
        sweep: How far knobs are turned.
        num_tasks: Groups a step.
        num_steps: Steps a seed that are scored.
        num_burned: Steps before them on which methods with a memory learn.
    """

    world: WorldSetting
    sweep: Sweep = _FULL
    num_tasks: int = 8
    num_steps: int = 2
    num_burned: int = 4

    @property
    def name(self) -> str:
        """The world's name."""
        return self.world.name


def _chain(horizon: int, density: float, **dials: Any) -> ChainSetting:
    name = f"chain {horizon}, density {density}"
    return ChainSetting(name=name, horizon=horizon, density=density, **dials)


_BANDIT = BanditSetting(name="bandit", effect=0.3, ratio=1.5)
_ENDING = ChainSetting(name="chain 10, one reward", horizon=10, density=0.3, reward="end", ends=0.1)
_ERRANDS = (
    ErrandSetting(name="errand"),
    ErrandSetting(name="errand, density 0.5", horizon=24, density=0.5),
    ErrandSetting(name="errand, two items", horizon=24, items=2),
    ErrandSetting(name="errand, unlocked", horizon=10, is_locked=False),
)
_TOKENS = (
    TokensSetting(name="tokens"),
    TokensSetting(name="tokens, one reward", reward="end", ends=0.1),
)

SETTINGS = (
    Setting(world=_BANDIT, num_tasks=32),
    *(Setting(world=_chain(h, d)) for h in (5, 10) for d in (0.1, 0.3, 1.0)),
    *(Setting(world=_chain(30, d), num_tasks=4) for d in (0.1, 0.3, 1.0)),
    *(Setting(world=_chain(100, d), sweep=_LONG, num_tasks=2, num_steps=1) for d in (0.1, 0.3)),
    Setting(world=_ENDING),
    *(Setting(world=world, num_tasks=6) for world in _ERRANDS),
    *(Setting(world=world, num_tasks=4, num_steps=1) for world in _TOKENS),
)
_FEW = TokensSetting(name="tokens 6", horizon=6, vocabulary=40, limit=4)
QUICK = (
    Setting(world=_BANDIT, sweep=_SHORT, num_tasks=16, num_steps=1, num_burned=2),
    *(
        Setting(world=world, sweep=_SHORT, num_tasks=4, num_steps=1, num_burned=2)
        for world in (_chain(10, 0.3), _ENDING, _ERRANDS[0], _FEW)
    ),
)
DEMO = (
    Setting(world=_BANDIT, sweep=_BRIEF, num_tasks=8, num_steps=1, num_burned=1),
    Setting(world=_chain(8, 0.3), sweep=_BRIEF, num_tasks=4, num_steps=1, num_burned=1),
)
SEEDS = {"full": 20, "quick": 5, "demo": 3}


class _Stage:
    """The world of a setting and seed; its groups are played once for all methods."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.world = WORLDS[type(setting.world)][1](setting.world, seed=seed)
        self.exact = self.world.policy_gradient(self.world.tasks(setting.num_tasks)).reshape(-1)
        self._played: dict[tuple[int, int], list[Group]] = {}

    def groups(self, rollouts: int, step: int) -> list[Group]:
        if (rollouts, step) not in self._played:
            self._played[rollouts, step] = play_groups(
                self.world, num_tasks=self.setting.num_tasks, rollouts=rollouts, step=step
            )
        return self._played[rollouts, step]


def run(setting: Setting, seed: int) -> list[dict[str, Any]]:
    """Every method at every value of its knob, on one seed."""
    stage = _Stage(setting, seed)
    rows = []
    for name, entrant in entrants().items():
        reason = entrant.refusal(stage.world)
        for knob in entrant.values(setting.sweep) if reason is None else (None,):
            known = _known(setting, seed, name, entrant) | {"knob": knob, "reason": reason}
            found = _nothing() if knob is None else _played(stage, entrant, knob)
            rows.append(known | found)
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The tables `leaderboard` and leaderboard_differences, _tokens, _split and _bias."""
    own = curves(rows)
    return {
        "leaderboard": board(own, BUDGETS),
        "leaderboard_differences": differences(own, BUDGETS),
        "leaderboard_tokens": equal_error(own),
        "leaderboard_split": split(own, BUDGETS),
        "leaderboard_bias": biases(rows),
    }


def _known(setting: Setting, seed: int, name: str, entrant: Entrant) -> dict[str, Any]:
    method = entrant.build(entrant.values(setting.sweep)[0])
    return {
        "setting": setting.name,
        "world": WORLDS[type(setting.world)][0],
        "horizon": getattr(setting.world, "horizon", 1),
        "density": getattr(setting.world, "density", 1.0),
        "seed": seed,
        "method": name,
        "estimates_advantage": method.estimates_advantage,
        "reconstructed": method.reconstructed,
        "claims_unbiased": entrant.claims_unbiased,
    }


def _nothing() -> dict[str, Any]:
    return dict.fromkeys((*_NUMBERS, *_LISTS))


def _played(stage: _Stage, entrant: Entrant, knob: float) -> dict[str, Any]:
    """What a method at a knob did: numbers as means over steps, lists summed."""
    method, setting = entrant.build(knob), stage.setting
    rollouts = int(knob) if entrant.knob is None else GROUP
    found = []
    for step in range(_first_step(method, setting), setting.num_burned + setting.num_steps):
        groups = stage.groups(rollouts, step)
        credits = credit_groups(stage.world, method, groups, step=step)
        if step >= setting.num_burned:
            found.append(_step_row(stage, credits, rollouts))
    means = {name: float(np.mean([row[name] for row in found])) for name in _NUMBERS}
    return means | {name: np.sum([row[name] for row in found], axis=0).tolist() for name in _LISTS}


def _first_step(method: Method, setting: Setting) -> int:
    """Methods with a memory play the steps before those that are scored."""
    return 0 if method.state() else setting.num_burned


def _step_row(stage: _Stage, credits: Sequence[Credit], rollouts: int) -> dict[str, Any]:
    scored = score(stage.world, credits)
    value, truth = scored.value, scored.advantage
    matters = np.abs(truth) > 1e-12
    estimate = trained_gradient(stage.world, credits).reshape(-1)
    length = float(np.linalg.norm(estimate) * np.linalg.norm(stage.exact))
    agrees = np.sign(value[matters]) == np.sign(truth[matters])
    ranked = slice(0, _MOST_RANKED)
    row = {
        "tokens": float(scored.factual_tokens + scored.auxiliary_tokens),
        "auxiliary_tokens": float(scored.auxiliary_tokens),
        "base_tokens": scored.factual_tokens * GROUP / rollouts,
        "num_turns": float(len(value)),
        "num_groups": float(scored.num_groups),
        "error": float(scored.error.sum()),
        "credit_square": float(value @ value),
        "credit_truth": float(value @ truth),
        "truth_square": float(truth @ truth),
        "sign_accuracy": float((agrees + 0.5 * (value[matters] == 0)).mean()),
        "kendall": _tau(value[matters][ranked], truth[matters][ranked]),
        "cosine": float(estimate @ stage.exact) / length if length else 0.0,
    }
    return row | place_sums(scored, stage.world.policy_table().shape[-1])


def _tau(value: np.ndarray, truth: np.ndarray) -> float:
    """Kendall's tau-b; 0 where one of the two does not vary, as such credit ranks nothing."""
    if len(value) < 2 or np.ptp(value) == 0 or np.ptp(truth) == 0:
        return 0.0
    return float(kendalltau(value, truth).statistic)


__all__ = ["BUDGETS", "METRICS", "Setting", "run", "summarise"]
