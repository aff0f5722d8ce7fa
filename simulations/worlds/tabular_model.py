"""A finite-horizon decision process as tables, and what follows from them exactly.

Leaves out playing (`tabular`).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TabularModel:
    """The tables of a world. Axes: turn, state, action, branch.

    An action tosses a coin with two branches; the state moved to says whether the episode ends.

    Attributes:
        logits: The policy's (turn, state, action).
        chance: Probability of branch 1 (turn, state, action).
        move: State moved to (turn, state, action, branch).
        reward: Reward of the turn (turn, state, action, branch).
        hazard: Probability that the episode ends after a turn, by the state moved to
            (turn, state); where it is 1 the state is terminal.
        starts: The states in which episodes may start.
        goal: The outcome that counts as success; null where none does.
    """

    logits: np.ndarray
    chance: np.ndarray
    move: np.ndarray
    reward: np.ndarray
    hazard: np.ndarray
    starts: np.ndarray
    goal: float | None = None


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities over the last axis."""
    top = logits.max(axis=-1, keepdims=True)
    shifted: np.ndarray = logits - top
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class TabularValues:
    """What dynamic programming says about a model under its policy; each part when first read.

    Q_t(s, a) = E over the branches of [reward + (1 - hazard(s')) * V_{t+1}(s')], V = sum_a pi * Q.
    The mean of two branches is taken as x0 + chance * (x1 - x0): exact where they are equal.
    """

    def __init__(self, model: TabularModel) -> None:
        self._model = model

    @cached_property
    def policy(self) -> np.ndarray:
        """Probability of each action (turn, state, action)."""
        return np.exp(log_softmax(self._model.logits))

    @property
    def value(self) -> np.ndarray:
        """Expected reward still to come (turn + 1, state)."""
        return self._induction[0]

    @property
    def action_value(self) -> np.ndarray:
        """The same after an action (turn, state, action)."""
        return self._induction[1]

    @cached_property
    def advantage(self) -> np.ndarray:
        """action_value - value."""
        return self.action_value - self.value[:-1, :, None]

    @cached_property
    def occupancy(self) -> np.ndarray:
        """Probability that an episode reaches the turn in the state (start, turn, state).

        The start is its number among the model's.
        """
        model = self._model
        turns, states, _ = self.policy.shape
        occupancy = np.zeros((len(model.starts), turns, states))
        occupancy[np.arange(len(model.starts)), 0, model.starts] = 1.0
        merged = model.move[..., 0] == model.move[..., 1]
        second = np.where(merged, 0.0, model.chance)
        share = self.policy[..., None] * np.stack((1 - second, second), axis=-1)
        origin = np.broadcast_to(np.arange(states)[:, None, None], model.move.shape[1:])
        for turn in range(turns - 1):
            going = np.zeros((states, states))
            np.add.at(going, (origin, model.move[turn]), share[turn])
            occupancy[:, turn + 1] = occupancy[:, turn] @ (going * (1 - model.hazard[turn]))
        return occupancy

    @cached_property
    def _induction(self) -> tuple[np.ndarray, np.ndarray]:
        """V and Q, from the last turn to the first."""
        model = self._model
        turns, states, _ = model.logits.shape
        value = np.zeros((turns + 1, states))
        action_value = np.zeros(model.logits.shape)
        for turn in range(turns - 1, -1, -1):
            rest = ((1 - model.hazard[turn]) * value[turn + 1])[model.move[turn]]
            reward, chance = model.reward[turn], model.chance[turn]
            gain = (reward[..., 1] - reward[..., 0]) * chance
            mean_rest = rest[..., 0] + chance * (rest[..., 1] - rest[..., 0])
            action_value[turn] = reward[..., 0] + (gain + mean_rest)
            value[turn] = (self.policy[turn] * action_value[turn]).sum(axis=1)
        return value, action_value


class ReturnLaw:
    """The exact law of the reward still to come, counted in steps of a dyadic unit.

    Raises:
        ValueError: Rewards below 0, or that are no multiples of 1/1024.
    """

    def __init__(self, model: TabularModel, policy: np.ndarray) -> None:
        self.unit = _unit(model.reward)
        self._model = model
        self._steps = np.rint(model.reward / self.unit).astype(np.int64)
        turns, states, actions = policy.shape
        size = int(_most_steps(model, self._steps).max()) + 1
        self._law = np.zeros((turns + 1, states, size))
        self._law[-1, :, 0] = 1.0
        state, action, steps = np.ogrid[:states, :actions, :size]
        for turn in range(turns - 1, -1, -1):
            after = self._after(np.array(turn), state, action, steps)
            self._law[turn] = (policy[turn][..., None] * after).sum(axis=1)

    def before(self, turn: np.ndarray, state: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """Probability that exactly `reward` is still to come in a state, before its action."""
        return self._read(turn, state, self._count(reward))

    def after(
        self, turn: np.ndarray, state: np.ndarray, action: np.ndarray, reward: np.ndarray
    ) -> np.ndarray:
        """Probability that exactly `reward` comes from an action on, its own included."""
        return self._after(turn, state, action, self._count(reward))

    def _count(self, reward: np.ndarray) -> np.ndarray:
        return np.rint(np.asarray(reward) / self.unit).astype(np.int64)

    def _read(self, turn: np.ndarray, state: np.ndarray, steps: np.ndarray) -> np.ndarray:
        last = self._law.shape[-1] - 1
        inside = (steps >= 0) & (steps <= last)
        return np.where(inside, self._law[turn, state, np.clip(steps, 0, last)], 0.0)

    def _after(
        self, turn: np.ndarray, state: np.ndarray, action: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        model, total = self._model, np.zeros(())
        chance = model.chance[turn, state, action]
        for branch, share in enumerate((1 - chance, chance)):
            moved = model.move[turn, state, action, branch]
            left = steps - self._steps[turn, state, action, branch]
            hazard = model.hazard[turn, moved]
            going = self._read(turn + 1, moved, left)
            total = total + share * (hazard * (left == 0) + (1 - hazard) * going)
        return total


def _unit(reward: np.ndarray) -> float:
    """The largest power of two, at most 1, that divides every reward."""
    for power in range(11):
        if (reward >= 0).all() and not ((reward * 2**power) % 1).any():
            return 0.5**power
    raise ValueError("Rewards must be at least 0 and multiples of 1/1024 for their law.")


def _most_steps(model: TabularModel, steps: np.ndarray) -> np.ndarray:
    """The largest return still to come (turn + 1, state), in steps."""
    turns, states, _ = model.logits.shape
    most = np.zeros((turns + 1, states), np.int64)
    for turn in range(turns - 1, -1, -1):
        rest = most[turn + 1] * (model.hazard[turn] < 1)
        most[turn] = (steps[turn] + rest[model.move[turn]]).max(axis=(1, 2))
    return most
