"""The tables of a chain: moves, rewards, policy.

Leaves out playing (`chain`) and what follows from tables exactly (`tabular_model`).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulations.worlds.tabular_model import TabularModel, log_softmax
from simulations.worlds.tabular_needs import Quality
from twinstats.errors import unknown
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
        critic: How good the need `value` is: 0 is noise, 1 exact.
        teacher: The same for `teacher_gap`.
        judge: The same for `segments`.

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
    critic: float = 1.0
    teacher: float = 0.5
    judge: float = 0.5

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
        if self.reward not in ("turns", "end"):
            raise unknown("reward", self.reward, ("turns", "end"))
        if not 0 <= self.sharpness < np.inf:
            raise ValueError(f"`sharpness` must be at least 0 and finite, got {self.sharpness}.")
        Quality(critic=self.critic, teacher=self.teacher, judge=self.judge)


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


def tables(model: ChainModel) -> TabularModel:
    """The chain as a tabular model: the prize's coin is the branch, every state a start."""
    turns, states, _ = model.logits.shape
    prize = model.prize[:, None, None]
    chance = model.chance[np.arange(turns)[:, None, None], model.move]
    return TabularModel(
        logits=model.logits,
        chance=np.where(prize > 0, chance, 0.0),
        move=np.stack((model.move, model.move), axis=-1),
        reward=model.points[..., None] + prize[..., None] * np.array([0.0, 1.0]),
        hazard=model.hazard,
        starts=np.arange(states),
        goal=1.0 if model.setting.reward == "end" else None,
    )


def log_policy(model: ChainModel) -> np.ndarray:
    """Log-probability of each action (turn, state, action)."""
    return log_softmax(model.logits)
