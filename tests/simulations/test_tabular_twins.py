import itertools

import numpy as np
import pytest

from simulations.studies import gain
from simulations.studies._gain_worlds import BetSetting, Setting, build
from simulations.worlds.chain_model import ChainSetting, build_model, tables
from simulations.worlds.errand_model import ErrandSetting
from simulations.worlds.tabular_model import TabularModel, TabularValues
from simulations.worlds.tabular_twins import touchable, twin_moments
from twinstats.coupling import joint

STATES, ACTIONS, TURNS = 3, 2, 3


def random_model(seed):
    """Coins that move, hazards, and one turn whose coin is the same everywhere."""
    rng = np.random.default_rng(seed)
    shape = (TURNS, STATES, ACTIONS)
    chance = rng.uniform(size=shape)
    move = rng.integers(STATES, size=(*shape, 2))
    reward = rng.integers(3, size=(*shape, 2)).astype(float)
    chance[1], move[1, ..., 1] = 0.3, move[1, ..., 0]
    reward[1, ..., 1] = reward[1, ..., 0] + 2.0
    hazard = rng.uniform(size=(TURNS, STATES)) * 0.6
    hazard[:, 2] = 1.0
    return TabularModel(
        logits=rng.normal(size=shape),
        chance=chance,
        move=move,
        reward=reward,
        hazard=hazard,
        starts=np.array([0, 1]),
    )


def pieces(*cuts):
    return list(itertools.pairwise(sorted({0.0, 1.0, *map(float, cuts)})))


def coins(model, turn, places, is_shared):
    """Pairs of branches with their probability; places are (state, action)."""
    chances = [model.chance[turn, s, a] for s, a in places]
    if is_shared:
        for low, high in pieces(*chances):
            yield high - low, [int((low + high) / 2 < chance) for chance in chances]
    else:
        for pair in itertools.product((0, 1), repeat=2):
            share = np.prod([c if b else 1 - c for c, b in zip(chances, pair, strict=True)])
            yield share, pair


def goings(hazards, is_shared):
    if is_shared:
        for low, high in pieces(*hazards):
            yield high - low, [(low + high) / 2 >= hazard for hazard in hazards]
    else:
        for pair in itertools.product((False, True), repeat=2):
            yield np.prod([1 - h if g else h for h, g in zip(hazards, pair, strict=True)]), pair


def apart(model, turn, states, gap, is_shared):
    """E[D^2] by following all luck of two worlds; null: ended."""
    if turn == TURNS or states == (None, None):
        return gap**2
    policies = [None if s is None else TabularValues(model).policy[turn, s] for s in states]
    if None in states:
        alive = next(s for s in states if s is not None)
        sign = -1 if states[0] is None else 1
        return sum(
            policies[states.index(alive)][a]
            * (c if b else 1 - c)
            * share
            * apart(
                model,
                turn + 1,
                tuple(moved if s is not None and goes else None for s in states),
                gap + sign * model.reward[turn, alive, a, b],
                is_shared,
            )
            for a, b in itertools.product(range(ACTIONS), (0, 1))
            for c in [model.chance[turn, alive, a]]
            for moved in [model.move[turn, alive, a, b]]
            for h in [model.hazard[turn, moved]]
            for share, goes in ((h, False), (1 - h, True))
        )
    if is_shared:
        one, other = policies
        law = np.diag(one) if states[0] == states[1] else joint(one, other, "gumbel")
    else:
        law = np.outer(*policies)
    return sum(
        law[a, b] * after(model, turn, states, (a, b), gap, is_shared)
        for a, b in np.ndindex(law.shape)
        if law[a, b]
    )


def after(model, turn, states, actions, gap, is_shared):
    places = list(zip(states, actions, strict=True))
    total = 0.0
    for share, branches in coins(model, turn, places, is_shared):
        cells = [(turn, *place, b) for place, b in zip(places, branches, strict=True)]
        own = gap + model.reward[cells[0]] - model.reward[cells[1]]
        moved = [int(model.move[cell]) for cell in cells]
        if not is_shared and moved[0] == moved[1]:
            total += share * own**2
            continue
        for part, goes in goings([model.hazard[turn, m] for m in moved], is_shared):
            going = tuple(m if g else None for m, g in zip(moved, goes, strict=True))
            if share * part:
                total += share * part * apart(model, turn + 1, going, own, is_shared)
    return total


@pytest.mark.parametrize("seed", [0, 1])
def test_moments_equal_enumeration(seed):
    model = random_model(seed)
    values, found = TabularValues(model), twin_moments(model, [0, 1])
    occupancy = values.occupancy.mean(axis=0)
    np.testing.assert_allclose(found.reached, occupancy.sum(axis=1))
    for turn in range(TURNS):
        weight = occupancy[turn] / occupancy[turn].sum()
        shared = touched = 0.0
        for s, a, b in itertools.product(range(STATES), range(ACTIONS), range(ACTIONS)):
            if a != b and weight[s]:
                share = weight[s] * values.policy[turn, s, a] * values.policy[turn, s, b]
                shared += share * after(model, turn, (s, s), (a, b), 0.0, True)
                own = touchable(model)
                touched += share * after(own, turn, (s, s), (a, b), 0.0, False)
        assert found.shared[turn] == pytest.approx(shared, rel=1e-10)
        assert found.touched[turn] == pytest.approx(touched, rel=1e-10)


def test_tails_are_the_turns_still_reached():
    found = twin_moments(random_model(2), [0, 1])
    later = np.append(np.cumsum(found.reached[::-1])[::-1][1:], 0.0)
    np.testing.assert_allclose(found.tail * found.reached, later, rtol=1e-12)


def test_decisions_alone_are_no_more_than_independent_worlds_show():
    for seed in range(5):
        found = twin_moments(random_model(seed), [0])
        assert (found.effect <= found.touched + 1e-12).all()
        assert (found.effect <= found.shared + 1e-12).all()
        assert (found.deduplicated <= found.fresh + 1e-12).all()


def test_only_luck_that_is_the_same_everywhere_is_replaced_by_its_mean():
    model = random_model(0)
    own = touchable(model)
    np.testing.assert_array_equal(own.reward[[0, 2]], model.reward[[0, 2]])
    np.testing.assert_allclose(own.reward[1], model.reward[1, ..., :1] + 0.3 * 2.0 + [0.0, 0.0])
    np.testing.assert_allclose(TabularValues(own).value, TabularValues(model).value, rtol=1e-12)
    chain = tables(build_model(ChainSetting(name="x", luck=0.5)))
    assert (np.ptp(touchable(chain).reward, axis=-1) == 0).all()
    end = tables(build_model(ChainSetting(name="x", reward="end")))
    np.testing.assert_array_equal(touchable(end).reward, end.reward)


@pytest.mark.parametrize(
    "dials",
    [
        ChainSetting(name="x", horizon=6, ends=0.2),
        ErrandSetting(name="x", horizon=10, is_locked=False),
        BetSetting(name="x", horizon=6, density=0.5),
    ],
)
def test_logs_of_independent_branches_agree_with_the_moments(dials):
    world = build(dials, 3)
    found = twin_moments(world.tables, range(len(world.tables.starts)))
    logged = gain._logged_squares(world, 2000)
    number = 2000 / len(found.reached)
    for column, exact in ((1, found.deduplicated), (2, found.touched)):
        expected = number * found.reached @ exact
        spread = np.sqrt((logged[:, column] ** 2).sum())
        assert abs(logged[:, column].sum() - expected) < 5 * spread < 0.6 * expected


def test_changing_the_start_changes_what_is_pooled():
    world = build(ErrandSetting(name="x", horizon=8), 0)
    one, other, both = (twin_moments(world.tables, starts) for starts in ([0], [1], [0, 1]))
    np.testing.assert_allclose(2 * both.reached, one.reached + other.reached)
    pooled = one.reached * one.shared + other.reached * other.shared
    np.testing.assert_allclose(2 * both.reached * both.shared, pooled)


def test_settings_name_themselves():
    setting = Setting(dials=BetSetting(name="bets"))
    assert (setting.name, setting.world) == ("bets", "bets")
    assert setting.levels()["skill"] is None and setting.levels()["contrary"] == 0.75
