"""Is credit unbiased for the advantage, under every coupling, and how is unbiasedness lost?

Bias is E[sum of (credit - A)] over the turns of an episode that are in a place: all of them
("sum"), or those with one (turn, state, action). Never an average over an episode's turns: their
number depends on luck. For the quantity "gradient" each turn's error is multiplied by (one-hot of
the action - policy), which is what a policy gradient sees. Groups are the independent units.

Table `unbiased_cells` (one row a seed, method, quantity, place): setting, seed, method, quantity,
place, turn, state, action, num_groups, total and square (sums over groups of the group's error an
episode, and of its square).
Table `unbiased` (pooled over seeds): setting, method, quantity, place, turn, state, action, bias,
stderr, low, high (simultaneous 95% over the places of a method and quantity), margin, equivalent
(the interval is inside the margin), claimed (the method claims no bias), excludes_zero,
num_groups.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulations.measure import Scored, score_step
from simulations.studies._equivalence import simultaneous
from simulations.worlds.chain import Chain
from simulations.worlds.chain_model import ChainSetting
from twinstats.credit import Budget, make
from twinstats.credit.baseline import outcomes
from twinstats.credit.registry import Entry, Method
from twinstats.episodes import KEEP, Credit, Fork, Group
from twinstats.noise import KeyColumns, uniforms

TABLE = "unbiased_cells"
_ROUNDING = 1e-12
BOTH, GRADIENT, NEITHER = ("advantage", "gradient"), ("gradient",), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One chain, and how much of it is played.

    Attributes:
        name: What the setting is called.
        chain: The world.
        margin: Half width of the equivalence band, in units of the outcome an episode.
        num_tasks: Groups a step.
        rollouts: Episodes a group.
        num_steps: Steps a seed.
    """

    name: str
    chain: ChainSetting
    margin: float = 0.1
    num_tasks: int = 250
    rollouts: int = 4
    num_steps: int = 4


def _setting(name: str, num_tasks: int, num_steps: int, margin: float, **dials: Any) -> Setting:
    chain = ChainSetting(name=name, horizon=4, states=3, actions=2, density=1.0, **dials)
    return Setting(name=name, chain=chain, num_tasks=num_tasks, num_steps=num_steps, margin=margin)


SETTINGS = (
    _setting("points", 500, 5, 0.03),
    _setting("points, luck ends episodes", 500, 5, 0.03, ends=0.5),
    _setting("one reward at the end", 500, 5, 0.03, reward="end", ends=0.2),
)
QUICK = (_setting("points, luck ends episodes", 40, 2, 0.3, ends=0.5),)
DEMO = (_setting("points, luck ends episodes", 250, 3, 0.1, ends=0.5),)
SEEDS = {"full": 12, "quick": 2, "demo": 4}


def run(setting: Setting, seed: int) -> list[dict[str, Any]]:
    """Sums of errors by place, for every method, of one seed."""
    rows = []
    world = Chain(setting.chain, seed=seed)
    for name, (build, _) in METHODS.items():
        method = build()
        errors: dict[str, list[np.ndarray]] = {"advantage": [], "gradient": []}
        shape = world.policy_table().shape
        reached = np.zeros(shape, bool)
        for step in range(setting.num_steps):
            scored = score_step(
                world,
                method,
                num_tasks=setting.num_tasks,
                rollouts=setting.rollouts,
                step=step,
            )
            reached[tuple(scored.place)] = True
            for quantity, error in _group_errors(scored, world.policy_table()).items():
                errors[quantity].append(error)
        for quantity, parts in errors.items():
            error = np.concatenate(parts)
            rows += _rows(setting, seed, (name, quantity), error, reached)
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The table `unbiased`: biases with simultaneous intervals, pooled over seeds."""
    pooled: dict[tuple, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        pooled[row["setting"], row["method"], row["quantity"], row["place"]].append(row)
    num_places: dict[tuple, int] = defaultdict(int)
    for setting, method, quantity, _ in pooled:
        num_places[setting, method, quantity] += 1
    return {"unbiased": [_pooled(parts, num_places[key[:3]]) for key, parts in pooled.items()]}


def _group_errors(scored: Scored, policy: np.ndarray) -> dict[str, np.ndarray]:
    """Errors an episode of each group (group, place): the last place of "advantage" is the sum."""
    turn, state, action = scored.place
    exact = np.abs(scored.error) < _ROUNDING
    per_episode = np.where(exact, 0.0, scored.error) * scored.num_groups / scored.num_episodes
    cells = np.zeros((scored.num_groups, *policy.shape))
    np.add.at(cells, (scored.group, turn, state, action), per_episode)
    gradient = cells - cells.sum(axis=-1, keepdims=True) * policy
    flat = cells.reshape(scored.num_groups, -1)
    return {
        "advantage": np.column_stack([flat, flat.sum(axis=1)]),
        "gradient": gradient.reshape(scored.num_groups, -1),
    }


def _rows(
    setting: Setting,
    seed: int,
    family: tuple[str, str],
    errors: np.ndarray,
    reached: np.ndarray,
) -> list[dict[str, Any]]:
    rows = []
    for index, error in enumerate(errors.T):
        inside = index < reached.size
        place = np.unravel_index(index, reached.shape) if inside else ()
        if inside and not reached[place]:
            continue
        turn, state, action = (int(axis) for axis in place) if inside else (None, None, None)
        rows.append(
            {
                "setting": setting.name,
                "seed": seed,
                "method": family[0],
                "quantity": family[1],
                "place": f"{turn}/{state}/{action}" if inside else "sum",
                "turn": turn,
                "state": state,
                "action": action,
                "margin": setting.margin,
                "num_groups": len(error),
                "total": float(error.sum()),
                "square": float((error**2).sum()),
            }
        )
    return rows


def _pooled(parts: Sequence[dict[str, Any]], num_places: int) -> dict[str, Any]:
    first = parts[0]
    margin = first["margin"]
    count = sum(part["num_groups"] for part in parts)
    total, square = (sum(part[name] for part in parts) for name in ("total", "square"))
    bias, stderr, half = simultaneous(total, square, count, num_places)
    names = ("setting", "method", "quantity", "place", "turn", "state", "action")
    return {name: first[name] for name in names} | {
        "bias": bias,
        "stderr": stderr,
        "low": bias - half,
        "high": bias + half,
        "margin": margin,
        "equivalent": bool(abs(bias) + half < margin),
        "claimed": first["quantity"] in METHODS[first["method"]][1],
        "excludes_zero": bool(abs(bias) > half),
        "num_groups": count,
    }


def by_outcome(group: Group) -> Generator[Any, Any, Credit]:
    """Wrong: twins only for episodes whose outcome is below their group's mean."""
    scores = outcomes(group.episodes)
    chosen = scores < scores.mean()
    forks = [
        [Fork(episode, turn) for turn in range(episode.num_turns)] if low else []
        for episode, low in zip(group.episodes, chosen, strict=True)
    ]
    return (yield from _differences(group, forks))


def by_length(group: Group) -> Generator[Any, Any, Credit]:
    """Wrong: one turn of each episode, drawn from all its turns, whose number depends on luck."""
    rows = np.array([episode.row for episode in group.episodes])
    coins = uniforms(KeyColumns.grid(group.seed, group.step, "choose", row=rows, turn=0), 0)
    forks = [
        [Fork(episode, int(coin * episode.num_turns))]
        for episode, coin in zip(group.episodes, coins, strict=True)
    ]
    return (yield from _differences(group, forks, times_length=True))


def same_noise(group: Group) -> Generator[Any, Any, Credit]:
    """Wrong: the decision turn draws its own noise again, so that every difference is 0."""
    forks = [
        [Fork(episode, turn, KEEP) for turn in range(episode.num_turns)]
        for episode in group.episodes
    ]
    return (yield from _differences(group, forks))


def _differences(
    group: Group, forks: Sequence[Sequence[Fork]], *, times_length: bool = False
) -> Generator[Any, Any, Credit]:
    """Outcome minus twin's outcome where there is a twin, null elsewhere."""
    played = yield forks
    values = [np.full(episode.num_turns, np.nan) for episode in group.episodes]
    for value, twins in zip(values, played, strict=True):
        for twin in twins:
            factor = len(value) if times_length else 1
            value[twin.fork.turn] = factor * (twin.fork.episode.outcome - twin.outcome)
    return Credit(episodes=group.episodes, values=values)


def _wrong(name: str, function: Callable[[Group], Any]) -> Callable[[], Method]:
    return lambda: Method(name, Entry(function=function), {})


METHODS: dict[str, tuple[Callable[[], Method], tuple[str, ...]]] = {
    "twice": (lambda: make("twice"), BOTH),
    "independent": (lambda: make("independent"), BOTH),
    "vine": (lambda: make("vine", rollouts=2), BOTH),
    "budget_plain": (lambda: make("twice", budget=Budget(ratio=1.0)), GRADIENT),
    "budget_augmented": (
        lambda: make("twice", budget=Budget(ratio=1.0, explore=0.5), mixing="augmented"),
        BOTH,
    ),
    "rloo": (lambda: make("rloo"), GRADIENT),
    "wrong_by_outcome": (_wrong("wrong_by_outcome", by_outcome), NEITHER),
    "wrong_by_length": (_wrong("wrong_by_length", by_length), NEITHER),
    "wrong_same_noise": (_wrong("wrong_same_noise", same_noise), NEITHER),
}
"""How each method is built, and for which quantities it claims no bias."""
