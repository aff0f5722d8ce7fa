"""Trains the tabular policy of a world by a credit method, with exact returns along the way.

Leaves out how curves of several seeds are read (`_learning_summary`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulations.measure import trained_gradient
from simulations.worlds.tabular import TabularWorld
from twinstats.credit import assign
from twinstats.credit.registry import Method, Ratios
from twinstats.episodes import Credit, Task, group_by_task

_PAST = 0.9
"""Weight of the past in the running mean square of the gradient's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a policy is trained.

    Attributes:
        total_tokens: Sampled tokens, forks included, after which no further update is paid for.
        num_tasks: Groups an update.
        rollouts: Episodes a group.
        shares_turns: Whether a state has one policy for all turns.
        num_marks: Evenly spaced numbers of tokens at which the curve can be read exactly.
    """

    total_tokens: int
    num_tasks: int = 4
    rollouts: int = 4
    shares_turns: bool = False
    num_marks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The policy after some updates.

    Attributes:
        update: How many.
        tokens: Tokens sampled for them.
        auxiliary_tokens: Those of forks among them.
        value: Its exact expected outcome.
    """

    update: int
    tokens: int
    auxiliary_tokens: int
    value: float


class Ascent:
    """Policy gradient ascent whose steps do not depend on the scale of credit.

    A step is step_size * g / sqrt(v), g the policy gradient in the logits and v the running mean
    of |g|^2 (weight .9 on the past, corrected for its start): the first step has length
    `step_size`, later ones have it in root mean square. No gradient, no step.
    """

    def __init__(self, step_size: float) -> None:
        self.step_size = step_size
        self._square, self._known = 0.0, 0.0

    def step(self, gradient: np.ndarray) -> np.ndarray:
        """What is added to the logits."""
        self._square = _PAST * self._square + (1 - _PAST) * float((gradient**2).sum())
        self._known = _PAST * self._known + (1 - _PAST)
        length = math.sqrt(self._square / self._known)
        return self.step_size * (gradient / length) if length else np.zeros_like(gradient)


def learn(world: TabularWorld, method: Method, plan: Plan, *, step_size: float) -> list[Point]:
    """The learning curve: its start, and the last update before each mark was passed.

    Step k of every method plays the same keyed noise.
    """
    tasks, ascent = world.tasks(plan.num_tasks), Ascent(step_size)
    update = tokens = auxiliary = 0
    points = [Point(update=0, tokens=0, auxiliary_tokens=0, value=expected_outcome(world, tasks))]
    while True:
        credits = _credits(world, method, plan, update)
        sampled, in_forks = _tokens(credits)
        if update and _passes_mark(tokens, tokens + sampled, plan):
            value = expected_outcome(world, tasks)
            points.append(
                Point(update=update, tokens=tokens, auxiliary_tokens=auxiliary, value=value)
            )
        if tokens + sampled > plan.total_tokens:
            return points
        gradient = trained_gradient(world, credits)
        if plan.shares_turns:
            gradient = np.broadcast_to(gradient.sum(axis=0), gradient.shape)
        after = world.with_logits(world.tables.logits + ascent.step(gradient))
        ratios = likelihood_ratios(world, after, credits) if method.observes_ratios else None
        method.observe(update, credits, ratios)
        world, update = after, update + 1
        tokens, auxiliary = tokens + sampled, auxiliary + in_forks


def likelihood_ratios(
    before: TabularWorld, after: TabularWorld, credits: Sequence[Credit]
) -> Ratios:
    """pi_after(a | s) / pi_before(a | s) of every turn, by credit and episode."""
    place = tuple(_places(before, credits))
    ratio = after.policy_table()[place] / before.policy_table()[place]
    lengths = [e.num_turns for credit in credits for e in credit.episodes]
    turns = iter(np.split(ratio, np.cumsum(lengths)[:-1]))
    return [[next(turns) for _ in credit.episodes] for credit in credits]


def expected_outcome(world: TabularWorld, tasks: Sequence[Task]) -> float:
    """Exact mean outcome of the tasks under the world's policy."""
    starts = [task.info["start"] for task in tasks]
    return float(world.values.value[0, starts].mean())


def best_outcome(world: TabularWorld, tasks: Sequence[Task]) -> float:
    """Exact mean outcome of the tasks under the best policy."""
    model = world.tables
    value = np.zeros(model.logits.shape[1])
    for turn in range(len(model.logits) - 1, -1, -1):
        gain = model.reward[turn] + ((1 - model.hazard[turn]) * value)[model.move[turn]]
        chance = model.chance[turn]
        value = ((1 - chance) * gain[..., 0] + chance * gain[..., 1]).max(axis=1)
    return float(value[[task.info["start"] for task in tasks]].mean())


def _credits(world: TabularWorld, method: Method, plan: Plan, step: int) -> list[Credit]:
    episodes = world.play(world.tasks(plan.num_tasks), plan.rollouts, step)
    return assign(world, group_by_task(episodes, seed=world.seed, step=step), method)


def _tokens(credits: Sequence[Credit]) -> tuple[int, int]:
    """Tokens of a step in all, and those of its forks."""
    factual = sum(e.sampled for c in credits for e in c.episodes if e.fork is None)
    auxiliary = sum(fork.sampled for credit in credits for fork in credit.info["forks"])
    return factual + auxiliary, auxiliary


def _passes_mark(before: int, after: int, plan: Plan) -> bool:
    """Whether before <= mark < after for one of the marks."""
    first = -(-before * plan.num_marks // plan.total_tokens)
    return first * plan.total_tokens < after * plan.num_marks


def _places(world: TabularWorld, credits: Sequence[Credit]) -> np.ndarray:
    return np.concatenate([world.places(e) for c in credits for e in c.episodes], axis=1)
