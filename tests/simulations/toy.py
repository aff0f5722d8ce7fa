"""A tabular world of a few states that uses every table, and its enumeration."""

import itertools

import numpy as np

from simulations.worlds.tabular import TabularWorld
from simulations.worlds.tabular_model import TabularModel
from simulations.worlds.tabular_needs import Labels, Quality

TURNS, STATES, ACTIONS = 3, 3, 2


def random_model(seed=0, goal=1.0):
    """Every table is used: both branches differ, some states end the episode, surely or maybe."""
    rng = np.random.default_rng(seed)
    shape = (TURNS, STATES, ACTIONS)
    hazard = rng.uniform(0, 0.6, size=(TURNS, STATES))
    hazard[0, 0], hazard[1, 1] = 0.0, 1.0
    return TabularModel(
        logits=rng.normal(size=shape),
        chance=rng.uniform(size=shape),
        move=rng.integers(STATES, size=(*shape, 2)),
        reward=rng.integers(4, size=(*shape, 2)) / 4,
        hazard=hazard,
        starts=np.array([2, 0]),
        goal=goal,
    )


def labels(**kwargs):
    return Labels(
        world="toy",
        shown=lambda turn, state: f"{turn}:{state}",
        state_class=["a", "b", "c"],
        actions=["left", "right"],
        states={"features": np.eye(STATES), **kwargs},
    )


def toy(seed=0, *, model=None, quality=1.0, tokens=1, **kwargs):
    return TabularWorld(
        model or random_model(),
        seed=seed,
        labels=labels(**kwargs),
        quality=Quality(critic=quality, teacher=quality, judge=quality),
        tokens=tokens,
    )


def ways(model, turn, state):
    """Every (probability, places, rewards) from a state on: nothing but the tables."""
    if turn == TURNS:
        return [(1.0, (), ())]
    policy = np.exp(model.logits[turn, state])
    policy /= policy.sum()
    found = []
    for action, branch in itertools.product(range(ACTIONS), range(2)):
        chance = model.chance[turn, state, action]
        share = policy[action] * (chance if branch else 1 - chance)
        after = model.move[turn, state, action, branch]
        place, own = ((turn, state, action),), (model.reward[turn, state, action, branch],)
        hazard = model.hazard[turn, after]
        found.append((share * hazard, place, own))
        found += [
            (share * (1 - hazard) * p, place + places, own + rewards)
            for p, places, rewards in ways(model, turn + 1, after)
        ]
    return [way for way in found if way[0] > 0]
