"""A finite-horizon decision process with deterministic moves, a softmax policy and known truth.

The environment's coin pays a prize; another may end the episode. Leaves out the tables and the
exact solution (`chain_model`), and how they are played (`tabular`).
"""

import numpy as np

from simulations.worlds.chain_model import ChainModel, ChainSetting, build_model, tables
from simulations.worlds.tabular import TabularWorld
from simulations.worlds.tabular_needs import Labels, Quality


class Chain(TabularWorld):
    """The world of a `ChainSetting`.

    It has no predicates and no entities; `gold_logprob` where one reward at the end is the task.
    """

    def __init__(self, setting: ChainSetting, *, seed: int) -> None:
        self.setting = setting
        self.model: ChainModel = build_model(setting)
        super().__init__(
            tables(self.model),
            seed=seed,
            labels=Labels(
                world="chain",
                shown=lambda turn, state: (turn, state),
                state_class=[str(state) for state in range(setting.states)],
                actions=[f"action {action}" for action in range(setting.actions)],
                states={"features": np.eye(setting.states)},
            ),
            quality=Quality(critic=setting.critic, teacher=setting.teacher, judge=setting.judge),
            tokens=setting.tokens,
        )
