"""A small household errand: search, unlock, take, carry and deliver; every truth known.

It supplies every input that a credit method asks for: states come again, within and across
episodes; some actions are redundant and one destroys. Only search and take depend on luck. An
episode ends when everything is delivered, so that its length depends on luck and on decisions.
Nothing is hidden from the policy but luck. Leaves out rules (`errand_rules`), tables
(`errand_model`), how they are played (`tabular`) and helpers' noise (`tabular_needs`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulations.worlds.errand_model import ErrandModel, ErrandSetting, build_model
from simulations.worlds.errand_rules import (
    ACTIONS,
    DELIVERED,
    HAND,
    LOST,
    OPEN,
    ROOMS,
    House,
    found,
    goal,
    is_done,
    predicate_graph,
    predicates,
)
from simulations.worlds.tabular import TabularWorld
from simulations.worlds.tabular_needs import Labels, Quality


class Errand(TabularWorld):
    """The world of an `ErrandSetting`.

    `state_score` is the share of the task's predicates that hold, `turn_reward` a turn's change of
    it; the outcome is the share of items delivered.
    """

    def __init__(self, setting: ErrandSetting, *, seed: int) -> None:
        self.setting = setting
        self.model: ErrandModel = build_model(setting)
        super().__init__(
            self.model.tables,
            seed=seed,
            labels=_labels(setting, self.model),
            quality=Quality(critic=setting.critic, teacher=setting.teacher, judge=setting.judge),
            tokens=setting.tokens,
        )


def _labels(setting: ErrandSetting, model: ErrandModel) -> Labels:
    texts = [str(house) for house in model.houses]
    held = [predicates(house) for house in model.houses]
    graph = predicate_graph(setting.items)
    num_predicates = len({predicate for pair in graph for predicate in pair})
    asleep = {turn for turn, awake in enumerate(model.matters.tolist()) if not awake}

    def shown(turn: int, state: int) -> str:
        sleeps = turn in asleep and not is_done(model.houses[state])
        return f"asleep; {texts[state]}" if sleeps else texts[state]

    return Labels(
        world="errand",
        shown=shown,
        state_class=[
            f"{house.room}, {len(own)} of {num_predicates}"
            for house, own in zip(model.houses, held, strict=True)
        ],
        actions=ACTIONS,
        states={
            "features": np.array([_features(house) for house in model.houses]),
            "predicates": held,
            "entities": [found(house) for house in model.houses],
            "state_score": np.array([len(own) / num_predicates for own in held]),
        },
        task_info=_task_info(setting.items, graph),
    )


def _task_info(num_items: int, graph: Sequence[tuple[str, str]]) -> dict[str, Any]:
    items = frozenset(f"item {number}" for number in range(num_items))
    return {"predicate_graph": graph, "goal": goal(num_items), "entities": items}


def _features(house: House) -> list[float]:
    """One-hot room; key held, vault open; of each item hidden, in hand, delivered, lost."""
    items = [
        is_so
        for place in house.items
        for is_so in (place.startswith("hidden"), place == HAND, place == DELIVERED, place == LOST)
    ]
    rooms = [house.room == room for room in ROOMS]
    return [float(is_so) for is_so in (*rooms, house.key == HAND, house.key == OPEN, *items)]
