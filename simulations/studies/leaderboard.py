"""Every credit method against exact truth, at equal total tokens.

Methods without forks spend tokens on larger groups; methods with forks keep groups of four and
sweep their own knob (twins, rollouts, budget ratio). Each is read at each budget by interpolation
in log tokens, seed by seed, and never beyond its sweep. All methods play the same seeds and
steps; the budgeted one first learns its prices on earlier steps, which are not counted.

`independent_raw` plays a tail for equal decisions too. So raw to `independent` is what taking
equal decisions as 0 gives, and `independent` to `twice` is what shared luck gives.

Metrics: `bias` (mean error a turn), `variance` (of the errors), `mse`, `mse_scaled` (after one
least-squares scale fitted on the other seeds), all over the mean of A^2, its root for bias: an
mse of 1 is what credit 0 has. For methods whose scale does not estimate A, bias and variance are
null and mse is mse_scaled. `sign_accuracy` (over turns with A != 0; credit 0 counts half),
`kendall` (tau-b of credit and A over a step's turns that matter, at most 2,000), `cosine` (of the
step's policy gradient and the exact one), `auxiliary_share` (of all tokens).

Table `leaderboard_points` (one row a setting, seed, method, knob): setting, world, horizon,
density, seed, method, knob, estimates_advantage, reconstructed, tokens, auxiliary_tokens,
base_tokens (four rollouts a task), num_turns, error, credit_square, credit_truth, truth_square
(sums over turns), sign_accuracy, kendall, cosine.
Table `leaderboard` (one row a setting, method, budget, metric): setting, world, horizon, density,
method, budget (tokens over base_tokens), metric, value, low, high (95% t interval over seeds),
num_seeds, reconstructed, estimates_advantage, reason (why value is null).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit
from scipy.stats import kendalltau

from simulations.measure import Scored, gradient, score_step
from simulations.worlds import Bandit, Chain
from simulations.worlds.bandit import BanditSetting
from simulations.worlds.chain_model import ChainSetting
from twinstats.credit import Budget, make
from twinstats.credit.registry import Method

TABLE = "leaderboard_points"
BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
METRICS = (
    "bias",
    "variance",
    "mse",
    "mse_scaled",
    "sign_accuracy",
    "kendall",
    "cosine",
    "auxiliary_share",
)
_GROUP = 4
_MOST_RANKED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One world, and how much of it is played.

    Attributes:
        world: The bandit or the chain.
        num_tasks: Groups a step.
        num_steps: Steps a seed that are scored.
        num_burned: Steps before them on which the budgeted method learns its prices.
        doublings: How often each method's knob is doubled from its smallest value.
    """

    world: BanditSetting | ChainSetting
    num_tasks: int = 8
    num_steps: int = 4
    num_burned: int = 4
    doublings: int = 4

    @property
    def name(self) -> str:
        """The world's name."""
        return self.world.name


def _chain(horizon: int, density: float, **dials: Any) -> ChainSetting:
    name = f"chain {horizon}, density {density}"
    return ChainSetting(name=name, horizon=horizon, density=density, **dials)


_BANDIT = BanditSetting(name="bandit", effect=0.3, ratio=1.5)

SETTINGS = (
    Setting(world=_BANDIT, num_tasks=64),
    *(Setting(world=_chain(h, d)) for h in (5, 10, 30) for d in (0.1, 0.3, 1.0)),
    *(Setting(world=_chain(100, d), num_tasks=4, num_steps=2) for d in (0.1, 0.3)),
)
QUICK = (
    Setting(world=_BANDIT, num_tasks=8, num_steps=1, num_burned=1, doublings=1),
    Setting(world=_chain(5, 0.5), num_tasks=4, num_steps=1, num_burned=1, doublings=1),
)
DEMO = (
    Setting(world=_BANDIT, num_tasks=16, num_steps=2, num_burned=2, doublings=3),
    Setting(world=_chain(8, 0.3), num_tasks=6, num_steps=2, num_burned=2, doublings=3),
    Setting(world=_chain(16, 0.3), num_tasks=6, num_steps=1, num_burned=2, doublings=3),
)
SEEDS = {"full": 12, "quick": 2, "demo": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A method on the board.

    Attributes:
        build: The method at a value of its knob.
        first: The knob's smallest value; doubled from there.
        is_group: The knob is the size of the group.
        burns: Whether it learns from earlier steps.
    """

    build: Callable[[float], Method]
    first: float
    is_group: bool = False
    burns: bool = False


ENTRANTS: dict[str, Entrant] = {
    "grpo": Entrant(build=lambda _: make("grpo"), first=_GROUP, is_group=True),
    "rloo": Entrant(build=lambda _: make("rloo"), first=_GROUP, is_group=True),
    "twice": Entrant(build=lambda k: make("twice", twins=int(k)), first=1),
    "independent": Entrant(build=lambda k: make("independent", twins=int(k)), first=1),
    "independent_raw": Entrant(
        build=lambda k: make("independent", twins=int(k), dedup=False), first=1
    ),
    "vine": Entrant(build=lambda k: make("vine", rollouts=int(k)), first=1),
    "budget": Entrant(
        build=lambda ratio: make("twice", budget=Budget(ratio=ratio)), first=0.5, burns=True
    ),
}


def run(setting: Setting, seed: int) -> list[dict[str, Any]]:
    """Every method at every value of its knob, on one seed."""
    dials = setting.world
    world: Any = (
        Chain(dials, seed=seed) if isinstance(dials, ChainSetting) else Bandit(dials, seed=seed)
    )
    rows = []
    for name, entrant in ENTRANTS.items():
        extra = 2 if entrant.is_group else 1 if entrant.burns else 0
        for doubling in range(setting.doublings + 1 + extra):
            knob = entrant.first * 2.0**doubling
            rows.append(_known(setting, seed, name, knob) | _played(setting, world, entrant, knob))
    base = next(row["tokens"] for row in rows if row["method"] == "rloo")
    return [row | {"base_tokens": base} for row in rows]


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The table `leaderboard`: every metric at every budget, with intervals over seeds."""
    curves: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        curves[row["setting"], row["method"]].append(row)
    found = []
    for curve in curves.values():
        by_seed = _metrics_by_seed(curve)
        for budget in BUDGETS:
            read = [_read(points, budget) for points in by_seed.values()]
            found += [_board_row(curve[0], budget, metric, read) for metric in METRICS]
    return {"leaderboard": found}


def _known(setting: Setting, seed: int, name: str, knob: float) -> dict[str, Any]:
    method = ENTRANTS[name].build(knob)
    return {
        "setting": setting.name,
        "world": "chain" if isinstance(setting.world, ChainSetting) else "bandit",
        "horizon": getattr(setting.world, "horizon", 1),
        "density": getattr(setting.world, "density", 1.0),
        "seed": seed,
        "method": name,
        "knob": knob,
        "estimates_advantage": method.estimates_advantage,
        "reconstructed": method.reconstructed,
    }


def _played(setting: Setting, world: Any, entrant: Entrant, knob: float) -> dict[str, Any]:
    """Means over steps of what a method at a knob did."""
    method = entrant.build(knob)
    rollouts = int(knob) if entrant.is_group else _GROUP
    last = setting.num_burned + setting.num_steps
    steps = range(0 if entrant.burns else setting.num_burned, last)
    found = []
    for step in steps:
        scored = score_step(
            world, method, num_tasks=setting.num_tasks, rollouts=rollouts, step=step
        )
        if step >= setting.num_burned:
            found.append(_step_row(world, scored, setting.num_tasks))
    return {name: _mean([row[name] for row in found]) for name in found[0]}


def _step_row(world: Any, scored: Scored, num_tasks: int) -> dict[str, float]:
    value, truth = scored.value, scored.advantage
    matters = np.abs(truth) > 1e-12
    exact = world.policy_gradient(world.tasks(num_tasks)).reshape(-1)
    estimate = gradient(world, scored, value).reshape(-1)
    length = float(np.linalg.norm(estimate) * np.linalg.norm(exact))
    agrees = np.sign(value[matters]) == np.sign(truth[matters])
    ranked = slice(0, _MOST_RANKED)
    tau = _tau(value[matters][ranked], truth[matters][ranked])
    return {
        "tokens": float(scored.factual_tokens + scored.auxiliary_tokens),
        "auxiliary_tokens": float(scored.auxiliary_tokens),
        "num_turns": float(len(value)),
        "error": float(scored.error.sum()),
        "credit_square": float(value @ value),
        "credit_truth": float(value @ truth),
        "truth_square": float(truth @ truth),
        "sign_accuracy": float((agrees + 0.5 * (value[matters] == 0)).mean()),
        "kendall": tau,
        "cosine": float(estimate @ exact) / length if length else 0.0,
    }


def _tau(value: np.ndarray, truth: np.ndarray) -> float:
    """Kendall's tau-b; 0 where one of the two does not vary, as such credit ranks nothing."""
    if len(value) < 2 or np.ptp(value) == 0 or np.ptp(truth) == 0:
        return 0.0
    return float(kendalltau(value, truth).statistic)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _metrics_by_seed(curve: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, float]]]:
    """Each seed's points of a method, by rising tokens, as metrics."""
    scales = _scales(curve)
    by_seed: dict[int, list[dict[str, float]]] = defaultdict(list)
    for row in curve:
        size, count = row["truth_square"] / row["num_turns"], row["num_turns"]
        bias = row["error"] / count
        squares, cross = row["credit_square"] / count, row["credit_truth"] / count
        scale = scales[row["seed"], row["knob"]]
        mse = (squares - 2 * cross + size) / size
        scaled = (scale**2 * squares - 2 * scale * cross + size) / size
        own = row["estimates_advantage"]
        by_seed[row["seed"]].append(
            {
                "budget": row["tokens"] / row["base_tokens"],
                "bias": bias / size**0.5 if own else np.nan,
                "variance": mse - bias**2 / size if own else np.nan,
                "mse": mse if own else scaled,
                "mse_scaled": scaled,
                "sign_accuracy": row["sign_accuracy"],
                "kendall": row["kendall"],
                "cosine": row["cosine"],
                "auxiliary_share": row["auxiliary_tokens"] / row["tokens"],
            }
        )
    return {
        seed: sorted(points, key=lambda point: point["budget"]) for seed, points in by_seed.items()
    }


def _scales(curve: Sequence[dict[str, Any]]) -> dict[tuple[int, float], float]:
    """The least-squares scale of each (seed, knob), from the other seeds at the same knob."""
    found = {}
    for row in curve:
        others = [r for r in curve if r["knob"] == row["knob"] and r["seed"] != row["seed"]]
        squares = sum(other["credit_square"] for other in others)
        cross = sum(other["credit_truth"] for other in others)
        found[row["seed"], row["knob"]] = cross / squares if squares else np.nan
    return found


def _read(points: Sequence[dict[str, float]], budget: float) -> dict[str, float] | None:
    """A seed's metrics at a budget, linear in log tokens; null outside its sweep."""
    at = [point["budget"] for point in points]
    if not at[0] <= budget <= at[-1]:
        return None
    place = np.log(budget)
    return {
        metric: float(np.interp(place, np.log(at), [point[metric] for point in points]))
        for metric in METRICS
    }


def _board_row(
    first: dict[str, Any], budget: float, metric: str, read: Sequence[dict[str, float] | None]
) -> dict[str, Any]:
    values = np.array([seed[metric] for seed in read if seed is not None])
    values = values[~np.isnan(values)]
    names = (
        "setting",
        "world",
        "horizon",
        "density",
        "method",
        "reconstructed",
        "estimates_advantage",
    )
    row = {name: first[name] for name in names} | {"budget": budget, "metric": metric}
    reason = None
    low = high = value = None
    if len(values) < len(read):
        blank = metric in ("bias", "variance") and not first["estimates_advantage"]
        reason = "its scale does not estimate A" if blank else "outside its sweep in some seeds"
        reason = "one seed only" if metric == "mse_scaled" and len(read) == 1 else reason
    else:
        value = float(values.mean())
    if value is not None and len(values) > 1:
        half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
        low, high = value - float(half), value + float(half)
    return row | {
        "value": value,
        "low": low,
        "high": high,
        "num_seeds": len(values),
        "reason": reason,
    }
