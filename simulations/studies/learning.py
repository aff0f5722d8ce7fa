"""Policy-gradient training by every credit method: exact return against sampled tokens.

The policy is a table of logits: for each state in the errand, for each state and turn in the
chain. An update plays two groups of four, and moves the logits by the policy gradient with the
method's credit, at a length that does not depend on the credit's scale (`_learner.Ascent`).
A fixed length would still favour methods with many noisy updates over those with few good ones,
or the reverse, so each method is trained with every step size of one grid; each seed is read at
the one with the largest mean return (evenly over the tokens) on the *other* seeds. Returns are
exact: dynamic programming, no evaluation noise. Forks that a method trains are trained, with
their share; null credit is not.

A curve is read at fixed totals of tokens, factual and auxiliary. Reading "end" is the policy after
the last update they pay for (a method whose first update costs more still has its start), "mean"
the mean of that over evenly spaced totals up to there: how soon, not only how far. All methods
share seeds, and step k of each plays the same noise. Every registered method enters with its
published defaults if the world has what it needs (t2spo with a context of 1,000 turns, for
speed), and some variants besides: `twice_budget` and `independent_budget` (ratio 1),
`twice_two_sided`, `independent_two_sided`, `vine_1` (one rollout). `helpers` are needs that the
world computes from the truth and blurs half-way, or that know the law of the outcome: other
methods have no such help.

Table `learning_points` (one row a setting, seed, method, step_size and update, of which only the
start and the last before each of 48 marks is kept): setting, world, seed, method, step_size,
update (how many so far), tokens, auxiliary_tokens (so far), return, best_return (of any policy),
total_tokens (where training ends), estimates_advantage, reconstructed, helpers (null: none).
Table `learning` (one row a setting, method, reading and budget): setting, world, method, reading
(end, mean), budget (tokens), return, low, high (95% t interval over seeds), num_seeds, updates
(mean), auxiliary_share (of the tokens), step_size (most often chosen), is_edge (whether that is an
end of the grid), best_return, estimates_advantage, reconstructed, helpers, reason (why return is
null).
Table `learning_differences` (one row a setting, reading, budget, against and method): setting,
world, method, reading, budget, against (rloo; or the same method without shared luck), difference
(of returns, paired by seeds), low, high (95% t), pvalue, pvalue_holm (corrected for the methods
compared in this setting, reading and budget, against rloo and against controls apart), num_seeds,
reason (why one is null).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulations.measure import can_play
from simulations.studies._learner import Plan, best_outcome, learn
from simulations.studies._learning_summary import NUM_MARKS, differences, readings, returns
from simulations.worlds import Chain
from simulations.worlds.chain_model import ChainSetting
from simulations.worlds.errand import Errand
from simulations.worlds.errand_model import ErrandSetting
from twinstats.credit import METHODS, Budget, Method, make

TABLE = "learning_points"

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "twice_budget": ("twice", {"budget": Budget(ratio=1.0)}),
    "twice_two_sided": ("twice", {"two_sided": True}),
    "independent_budget": ("independent", {"budget": Budget(ratio=1.0)}),
    "independent_two_sided": ("independent", {"two_sided": True}),
    "vine_1": ("vine", {"rollouts": 1}),
}
"""Entrants besides the registered methods with their defaults."""

HELPERS = ("value", "teacher_gap", "segments", "gold_logprob", "hindsight_logprob")
"""Needs that the world computes from its exact solution."""

_OPTIONS: dict[str, dict[str, Any]] = {"t2spo": {"context": 1000}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One world, and how much of it is learned from.

    Attributes:
        world: The errand or the chain.
        total_tokens: Where training ends.
        step_sizes: The grid, smallest first.
        methods: Which entrants; null means all.
    """

    world: ErrandSetting | ChainSetting
    total_tokens: int = 40_000
    step_sizes: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    methods: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """The world's name."""
        return self.world.name


_ERRAND = ErrandSetting(name="errand, one item", horizon=16, skill=2.0)
_LARGE = ErrandSetting(name="errand, two items", horizon=24, items=2, is_locked=False, skill=2.0)
_CHAIN = ChainSetting(name="chain, little luck", horizon=20, density=0.3)
_LUCKY = ChainSetting(name="chain, much luck", horizon=20, density=0.3, luck=2.0)

SETTINGS = tuple(Setting(world=world) for world in (_ERRAND, _LARGE, _CHAIN, _LUCKY))
QUICK = tuple(
    Setting(world=world, total_tokens=6000, step_sizes=(2.0, 8.0, 32.0))
    for world in (_ERRAND, _LUCKY)
)
DEMO = (
    Setting(
        world=_LUCKY,
        total_tokens=4000,
        step_sizes=(2.0, 8.0),
        methods=("rloo", "grpo", "twice", "twice_budget", "independent", "vine_1"),
    ),
)
SEEDS = {"full": 10, "quick": 4, "demo": 3}


def entrants() -> dict[str, tuple[str, dict[str, Any]]]:
    """All entrants: a registered method and its options."""
    return {name: (name, _OPTIONS.get(name, {})) for name in METHODS} | VARIANTS


def run(setting: Setting, seed: int) -> list[dict[str, Any]]:
    """The learning curves of all methods that the world has everything for, on one seed."""
    world = _world(setting, seed)
    plan = _plan(setting)
    best = best_outcome(world, world.tasks(plan.num_tasks))
    rows = []
    for name, (registered, options) in entrants().items():
        method = make(registered, **options)
        if setting.methods and name not in setting.methods or not can_play(world, method):
            continue
        known = _known(setting, seed, name, method) | {"best_return": best}
        for step_size in setting.step_sizes:
            fresh = make(registered, **options)  # what a memory learned is a run's own
            for point in learn(world, fresh, plan, step_size=step_size):
                rows.append(
                    known
                    | {
                        "step_size": step_size,
                        "update": point.update,
                        "tokens": point.tokens,
                        "auxiliary_tokens": point.auxiliary_tokens,
                        "return": point.value,
                    }
                )
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The tables `learning` and `learning_differences`."""
    read = readings(rows)
    return {"learning": returns(read), "learning_differences": differences(read)}


def _plan(setting: Setting) -> Plan:
    return Plan(
        total_tokens=setting.total_tokens,
        num_tasks=2,
        num_marks=NUM_MARKS,
        shares_turns=isinstance(setting.world, ErrandSetting),
    )


def _world(setting: Setting, seed: int) -> Chain | Errand:
    if isinstance(setting.world, ChainSetting):
        return Chain(setting.world, seed=seed)
    return Errand(setting.world, seed=seed)


def _known(setting: Setting, seed: int, name: str, method: Method) -> dict[str, Any]:
    helpers = [need.name for need in method.needs if need.name in HELPERS]
    return {
        "setting": setting.name,
        "world": "chain" if isinstance(setting.world, ChainSetting) else "errand",
        "seed": seed,
        "method": name,
        "total_tokens": setting.total_tokens,
        "estimates_advantage": method.estimates_advantage,
        "reconstructed": method.reconstructed,
        "helpers": ", ".join(helpers) or None,
    }
