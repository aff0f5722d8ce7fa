"""The tables of a chain: moves, rewards, policy; and what follows from them exactly.

Leaves out playing (`chain`).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from twinstats.noise import generator


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSetting:
    """The dials of a chain.

    Attributes:
        name: What the setting is called in tables.
        horizon: Turns of an episode that nothing ends early.
        states: States at each turn.
        actions: Actions in each state.
        density: Share of turns that matter; at the others every action does the same.
        sharpness: Standard deviation of the policy's logits; the larger, the more equal decisions.
        luck: Reward of a fair coin at every turn, which no decision touches; a multiple of 1/8,
            so that sums of rewards are exact.
        ends: Largest probability, over states, that the environment ends the episode after a
            turn; 0 gives every episode the same length.
        reward: "turns" pays points for actions at turns that matter; "end" pays 1 or 0 once, with
            a probability that the last state sets.
        tokens: Tokens that a turn counts.
        table_seed: Which of the chains with these dials.

    Raises:
        ValueError: A dial outside its range.
    """

    name: str
    horizon: int = 10
    states: int = 4
    actions: int = 3
    density: float = 0.5
    sharpness: float = 1.0
    luck: float = 0.5
    ends: float = 0.0
    reward: Literal["turns", "end"] = "turns"
    tokens: int = 1
    table_seed: int = 0

    def __post_init__(self) -> None:
        if min(self.horizon, self.states, self.actions - 1, self.tokens) < 1:
            raise ValueError(
                "`horizon`, `states` and `tokens` must be at least 1, `actions` at least 2."
            )
        if not 0 < self.density <= 1 or not 0 <= self.ends < 1:
            raise ValueError(
                f"`density` must be in (0, 1] and `ends` in [0, 1), got {self.density} "
                f"and {self.ends}."
            )
        if self.luck < 0 or (self.luck * 8) % 1:
            raise ValueError(f"`luck` must be a multiple of 1/8, got {self.luck}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainModel:
    """The tables of one chain. Axes: turn, state, action.

    Attributes:
        setting: The dials.
        matters: Whether a turn's actions do different things.
        logits: The policy's.
        move: State after an action.
        points: Reward of an action.
        prize: Reward of the environment's coin at a turn.
        chance: Probability of that coin, by turn and the state moved to.
        hazard: Probability that the episode ends after a turn, by turn and the state moved to.
    """

    setting: ChainSetting
    matters: np.ndarray
    logits: np.ndarray
    move: np.ndarray
    points: np.ndarray
    prize: np.ndarray
    chance: np.ndarray
    hazard: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainValues:
    """What dynamic programming says about a chain under its policy.

    Attributes:
        policy: Probability of each action (turn, state, action).
        value: Expected reward still to come (turn + 1, state).
        action_value: The same after an action (turn, state, action).
        advantage: action_value - value.
        occupancy: Probability that an episode reaches the turn in the state, by the state that
            the episode started in (start, turn, state).
    """

    policy: np.ndarray
    value: np.ndarray
    action_value: np.ndarray
    advantage: np.ndarray
    occupancy: np.ndarray


def build_model(setting: ChainSetting) -> ChainModel:
    """The chain that the dials and the table seed name."""
    rng = generator(setting.table_seed, "chain/tables")
    turns, states, actions = setting.horizon, setting.states, setting.actions
    shape = (turns, states, actions)
    matters = np.zeros(turns, bool)
    matters[rng.permutation(turns)[: max(1, round(setting.density * turns))]] = True
    stays = np.broadcast_to(np.arange(states)[:, None], shape)
    move = np.where(matters[:, None, None], rng.integers(states, size=shape), stays)
    logits = rng.normal(size=shape) * setting.sharpness
    points: np.ndarray = rng.integers(2, size=shape) * matters[:, None, None].astype(np.float64)
    prize = np.full(turns, setting.luck)
    chance = np.full((turns, states), 0.5)
    if setting.reward == "end":
        points, prize = np.zeros(shape), np.zeros(turns)
        prize[-1] = 1.0
        chance[-1] = np.linspace(0.1, 0.9, states) if states > 1 else 0.5
    hazard = setting.ends * rng.uniform(size=(turns, states))
    hazard[-1] = 0.0
    return ChainModel(
        setting=setting,
        matters=matters,
        logits=logits,
        move=move,
        points=points,
        prize=prize,
        chance=chance,
        hazard=hazard,
    )


def solve(model: ChainModel) -> ChainValues:
    """Values, advantages and occupancies by dynamic programming.

    Q_t(s, a) = points + prize * chance(s') + (1 - hazard(s')) * V_{t+1}(s'), V = sum_a pi * Q.
    """
    turns, states, _ = model.logits.shape
    policy = np.exp(log_policy(model))
    value = np.zeros((turns + 1, states))
    action_value = np.zeros(model.logits.shape)
    for turn in range(turns - 1, -1, -1):
        after = model.prize[turn] * model.chance[turn]
        after = after + (1 - model.hazard[turn]) * value[turn + 1]
        action_value[turn] = model.points[turn] + after[model.move[turn]]
        value[turn] = (policy[turn] * action_value[turn]).sum(axis=1)
    return ChainValues(
        policy=policy,
        value=value,
        action_value=action_value,
        advantage=action_value - value[:-1, :, None],
        occupancy=_occupancy(model, policy),
    )


def log_policy(model: ChainModel) -> np.ndarray:
    """Log-probability of each action (turn, state, action)."""
    top = model.logits.max(axis=-1, keepdims=True)
    shifted = model.logits - top
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _occupancy(model: ChainModel, policy: np.ndarray) -> np.ndarray:
    turns, states, _ = policy.shape
    occupancy = np.zeros((states, turns, states))
    occupancy[:, 0] = np.eye(states)
    for turn in range(turns - 1):
        going = np.zeros((states, states))
        for state in range(states):
            np.add.at(going[state], model.move[turn, state], policy[turn, state])
        occupancy[:, turn + 1] = occupancy[:, turn] @ (going * (1 - model.hazard[turn]))
    return occupancy
