import dataclasses
import math

import numpy as np
import pytest

from simulations.measure import score_step
from simulations.worlds.chain import Chain
from simulations.worlds.chain_model import ChainSetting
from simulations.worlds.errand import Errand
from simulations.worlds.errand_model import ErrandSetting, build_model, reachable
from simulations.worlds.errand_rules import (
    ACTIONS,
    DELIVERED,
    HAND,
    LOST,
    OPEN,
    House,
    apply,
    found,
    is_done,
    predicates,
    starts,
)
from twinstats.credit import make, names
from twinstats.episodes import DIFFERENT, FRESH, KEEP, SHARED, Fork
from twinstats.errors import UsageError
from twinstats.rows import null_disagreements

TINY = ErrandSetting(name="tiny", horizon=5, is_locked=False, density=1.0)
TWO = ErrandSetting(name="two", horizon=20, items=2, tokens=2)
NEEDS = {
    "value": 1,
    "teacher_gap": 0,
    "gold_logprob": 1,
    "hindsight_logprob": 0,
    "first_entropy": 0,
    "features": 1,
    "predicates": 1,
    "entities": 1,
    "tool": 0,
    "turn_reward": 0,
    "state_score": 1,
    "signature": 0,
}


def walk(house, *actions):
    for action in actions:
        house = apply(house, action)
    return house


def test_an_errand_by_hand():
    start = House("hall", "hidden in kitchen", ("hidden in vault",))
    assert start in starts(1)
    held = walk(start, "go kitchen", "search")
    assert held == House("kitchen", HAND, ("hidden in vault",))
    inside = walk(held, "go hall", "use key", "go vault")
    assert inside == House("vault", OPEN, ("hidden in vault",))
    carried = walk(inside, "search", "take", "go hall")
    assert carried == House("hall", OPEN, (HAND,))
    done = walk(carried, "deliver")
    assert done.items == (DELIVERED,) and is_done(done) and not is_done(carried)
    assert str(start) == "in hall; key hidden in kitchen; item 0 hidden in vault"


def test_redundant_and_destructive_actions():
    start = House("hall", "hidden in hall", ("hidden in vault", "hidden in hall"))
    redundant = ("wait", "go hall", "go vault", "take", "deliver", "drop", "use key", "burn")
    assert all(apply(start, action) == start for action in redundant)
    assert walk(start, "search").key == HAND  # the key is found before the item
    carried = walk(start, "search", "search", "take")
    assert carried.items == ("hidden in vault", HAND)
    assert apply(carried, "wait") == apply(carried, "take") == carried
    assert walk(carried, "go kitchen", "drop").items[1] == "kitchen"
    burnt = apply(carried, "burn")
    assert burnt.items[1] == LOST
    assert all(walk(burnt, action).items[1] == LOST for action in ACTIONS)
    assert walk(carried, "go kitchen", "deliver").items[1] == HAND  # only in the hall
    assert walk(carried, "go kitchen", "use key").key == HAND
    both = House("hall", OPEN, ("hall", HAND))
    assert apply(both, "take") == both  # one at a time


def test_every_state_is_met_once():
    for items, locked, size in ((1, True, 27), (1, False, 21), (2, True, 207), (2, False, 165)):
        houses = reachable(items, locked)
        assert len(set(houses)) == len(houses) == size
        assert all(apply(house, action) in houses for house in houses for action in ACTIONS)
        assert not any(house.items.count(HAND) > 1 for house in houses)


def by_rules(setting, policy, turn, house):
    """Expected reward to come by the rules of the house alone, over every action and coin."""
    if turn == setting.horizon or is_done(house):
        return 0.0
    total = 0.0
    for action, share in zip(ACTIONS, policy[house], strict=True):
        after = apply(house, action)
        chance = {"search": setting.finding, "take": setting.grasping}.get(action, 1.0)
        for way, p in ((after, chance), (house, 1 - chance)):
            if p > 0:
                paid = (way.items.count(DELIVERED) - house.items.count(DELIVERED)) / setting.items
                total += share * p * (paid + by_rules(setting, policy, turn + 1, way))
    return total


def shares(world):
    logits = world.tables.logits[0]
    policy = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    return dict(zip(world.model.houses, policy.tolist(), strict=True))


def test_values_equal_enumeration_of_whole_episodes_by_the_rules():
    world = Errand(TINY, seed=0)
    (start,) = world.tables.starts
    expected = by_rules(TINY, shares(world), 0, starts(1, is_locked=False)[0])
    assert expected > 0.01
    assert world.values.value[0, start] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("items", [1, 2])
def test_values_equal_enumeration_of_the_last_turns_from_every_state(items):
    setting = dataclasses.replace(TWO, items=items, horizon=6)
    world = Errand(setting, seed=0)
    policy = shares(world)
    for number, house in enumerate(world.model.houses):
        for turn in (4, 5):
            expected = by_rules(setting, policy, turn, house)
            if not is_done(house):
                assert world.values.value[turn, number] == pytest.approx(expected, abs=1e-14)


def test_sleeping_turns_change_nothing_and_show_it():
    setting = dataclasses.replace(TWO, items=1, horizon=40, density=0.4)
    world = Errand(setting, seed=0)
    assert world.model.matters.sum() == 16
    np.testing.assert_allclose(world.values.advantage[~world.model.matters], 0, atol=1e-15)
    assert np.abs(world.values.advantage[world.model.matters]).max() > 0.1
    for episode in world.play(world.tasks(2), 5, step=0):
        for index, turn in enumerate(episode.turns):
            assert turn.state.startswith("asleep; ") == (not world.model.matters[index])
        assert not episode.final_state.startswith("asleep")


def test_policy_gradient_equals_finite_differences():
    world = Errand(TINY, seed=0)
    tasks = world.tasks(2)
    exact = world.policy_gradient(tasks)
    start = world.tables.starts[0]
    largest = np.argsort(-np.abs(exact).reshape(-1))[:20]
    for place in [np.unravel_index(index, exact.shape) for index in largest]:
        ends = []
        for nudge in (1e-6, -1e-6):
            logits = world.tables.logits.copy()
            logits[place] += nudge
            ends.append(world.with_logits(logits).values.value[0, start])
        assert exact[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)


def test_skill_prefers_progress_and_shuns_burning():
    calm = Errand(dataclasses.replace(TINY, sharpness=0.0), seed=0)
    carried = calm.model.houses.index(House("vault", OPEN, (HAND,)))
    assert calm.tables.logits[0, carried].tolist() == [3, 0, 0, 0, 0, 0, 0, 0, 0, -3]
    lost = calm.model.houses.index(House("vault", OPEN, (LOST,)))
    assert not calm.tables.logits[:, lost].any()


def scripted(setting, *actions, seed=0):
    """The world of a policy that follows a script."""
    world = Errand(setting, seed=seed)
    logits = np.zeros(world.tables.logits.shape)
    for turn, action in enumerate(actions):
        logits[turn, :, ACTIONS.index(action)] = 200.0
    return world.with_logits(logits)


SCRIPT = ("go vault", "search", "take", "go hall", "deliver")


def test_needs_of_a_scripted_walk_by_hand():
    luck = {"finding": 0.5, "grasping": 0.25, "critic": 1.0, "teacher": 1.0, "judge": 1.0}
    world = scripted(dataclasses.replace(TINY, **luck), *SCRIPT)
    episodes = world.play(world.tasks(1), 60, step=0)
    for need in [*NEEDS, "segments"]:
        world.provide(need, episodes)
    wins = [episode for episode in episodes if episode.success]
    losses = [episode for episode in episodes if not episode.success]
    assert 0 < len(wins) < 30
    for episode in wins:
        info = episode.info
        np.testing.assert_allclose(info["value"], [1 / 8, 1 / 8, 1 / 4, 1, 1, 1])
        np.testing.assert_allclose(np.exp(info["gold_logprob"]), [1 / 8, 1 / 8, 1 / 4, 1, 1, 1])
        assert info["tool"] == list(SCRIPT)
        stages = [{f"item 0 {s}" for s in ("found", "taken", "delivered")[:n]} for n in range(4)]
        base = {"key found", "vault open"}
        held = [base | stages[n] for n in (0, 0, 1, 2, 2, 3)]
        assert info["predicates"] == held
        assert info["entities"] == [set(), set(), *[{"item 0"}] * 4]
        np.testing.assert_allclose(info["state_score"], np.array([2, 2, 3, 4, 4, 5]) / 5)
        np.testing.assert_allclose(info["turn_reward"], np.array([0, 1, 1, 0, 1]) / 5)
        np.testing.assert_array_equal(info["features"][:, :3].argmax(axis=1), [0, 2, 2, 2, 0, 0])
        np.testing.assert_allclose(info["features"][:, -1], np.arange(6) / 5)
        assert info["features"][:, 5:9].argmax(axis=1).tolist() == [0, 0, 0, 1, 1, 2]
        assert episode.column("reward").tolist() == [0, 0, 0, 0, 1]
        assert info["signature"][1] == ("in vault; key open; item 0 hidden in vault", "search")
        assert episode.final_state == "in hall; key open; item 0 delivered"
    for episode in [*wins, *losses]:
        np.testing.assert_allclose(episode.info["hindsight_logprob"], 0, atol=1e-12)
        np.testing.assert_allclose(episode.info["first_entropy"], 0, atol=1e-12)
        assert episode.info["segments"] == []
    assert {tuple(e.info["value"][2:3]) for e in losses} == {(0.0,), (0.25,)}


@pytest.mark.parametrize("setting", [TWO, dataclasses.replace(TWO, items=1, density=0.5)])
def test_every_need_has_its_shape_on_episodes_and_forks(setting):
    world = Errand(setting, seed=1)
    episodes = world.play(world.tasks(4), 4, step=0)
    episodes += world.fork([Fork(e, e.num_turns // 2, DIFFERENT) for e in episodes])
    assert len({episode.num_turns for episode in episodes}) > 2
    for need in [*NEEDS, "segments"]:
        world.provide(need, episodes)
    items = {f"item {n}" for n in range(setting.items)}
    for episode in episodes:
        for need, more in NEEDS.items():
            assert len(episode.info[need]) == episode.num_turns + more
        assert all(gap.shape == (2,) for gap in episode.info["teacher_gap"])
        for need in ("value", "gold_logprob", "hindsight_logprob", "first_entropy", "features"):
            assert np.isfinite(episode.info[need]).all()
        assert episode.info["features"].shape[1] == 6 + 4 * setting.items
        assert all(own <= items for own in episode.info["entities"])
        for begin, end, sign in episode.info["segments"]:
            assert 0 <= begin <= end < episode.num_turns and sign in (-1, 1)
        score = episode.info["state_score"]
        np.testing.assert_allclose(episode.info["turn_reward"], score[1:] - score[:-1])


def test_task_names_graph_goal_and_entities():
    (task,) = Errand(TWO, seed=0).tasks(1)
    graph, goal = task.info["predicate_graph"], task.info["goal"]
    assert goal == ["item 0 delivered", "item 1 delivered"]
    assert ("vault open", "item 0 found") in graph and ("item 1 found", "item 1 taken") in graph
    assert ("vault open", "item 1 found") not in graph
    assert task.info["entities"] == {"item 0", "item 1"}
    everything = {predicate for pair in graph for predicate in pair}
    done = House("hall", OPEN, (DELIVERED, DELIVERED))
    assert predicates(done) == everything and found(done) == task.info["entities"]
    burnt = House("hall", OPEN, (LOST, "hidden in hall"))
    assert predicates(burnt) == {"key found", "vault open"} and found(burnt) == {"item 0"}


def test_hindsight_averages_to_the_policy_over_outcomes():
    """Sum over outcomes of P(outcome | s) * P(a | s, outcome) = pi(a | s): the law of Bayes."""
    world = Errand(dataclasses.replace(TWO, horizon=24), seed=0)
    episodes = world.play(world.tasks(1), 3000, step=0)
    world.provide("hindsight_logprob", episodes)
    first = np.array([e.turns[0].action for e in episodes])
    outcome = np.array([e.outcome for e in episodes])
    told = np.exp([e.info["hindsight_logprob"][0] for e in episodes])
    for end in (0.0, 0.5, 1.0):
        own = outcome == end
        for action in np.unique(first[own]):
            p = told[own & (first == action)][0]
            spread = 4.5 * np.sqrt(p * (1 - p) / own.sum())
            assert abs((first[own] == action).mean() - p) < spread


def test_simulated_means_match_the_exact_ones():
    world = Errand(dataclasses.replace(TWO, horizon=18), seed=3)
    episodes = world.play(world.tasks(4), 1000, step=0)
    world.provide("gold_logprob", episodes)
    outcome = np.array([e.outcome for e in episodes])
    chance = np.array([np.exp(e.info["gold_logprob"][0]) for e in episodes])
    solved = np.array([e.success for e in episodes]) - chance
    for turn in (0, 5, 12):
        own = [e for e in episodes if e.num_turns > turn]
        quality = np.array([world.truth(e)[0][turn] for e in own])
        advantage = np.array([world.truth(e)[2][turn] for e in own])
        for errors in (np.array([e.outcome for e in own]) - quality, advantage, solved):
            assert abs(errors.mean()) < 4.5 * errors.std() / np.sqrt(len(errors))
    assert 0.1 < solved.std() and set(outcome) == {0.0, 0.5, 1.0}


def test_twins_measure_the_advantage_of_the_first_decision():
    world = Errand(dataclasses.replace(TWO, horizon=18), seed=3)
    episodes = world.play(world.tasks(1), 3000, step=0)
    exact = world.values.advantage[0, world.tables.starts[0]]
    first = np.array([e.turns[0].action for e in episodes])
    for luck in (SHARED, FRESH):
        twins = world.fork([Fork(e, 0, luck=luck) for e in episodes])
        errors = np.array([t.fork.episode.outcome - t.outcome for t in twins]) - exact[first]
        for action in np.flatnonzero(np.bincount(first) > 200):
            own = errors[first == action]
            assert abs(own.mean()) < 4.5 * own.std() / np.sqrt(len(own))


def test_null_twins_never_disagree_and_controls_share_decisions():
    world = Errand(TWO, seed=4)
    episodes = world.play(world.tasks(4), 5, step=0)
    nulls = world.fork([Fork(e, t, KEEP) for e in episodes for t in range(e.num_turns)])
    assert null_disagreements(nulls) == (len(nulls), 0, 0)
    twins = world.fork([Fork(e, 3, alternative=2) for e in episodes])
    controls = world.fork([Fork(e, 3, luck=FRESH, alternative=2) for e in episodes])
    assert [t.turns[3].action for t in twins] == [c.turns[3].action for c in controls]
    assert [t.outcome for t in twins] != [c.outcome for c in controls]


def test_length_depends_on_luck_and_states_come_again():
    world = Errand(dataclasses.replace(TINY, horizon=40), seed=0)
    episodes = world.play(world.tasks(1), 50, step=0)
    lengths = {episode.num_turns for episode in episodes}
    assert len(lengths) > 10 and all(episode.terminated for episode in episodes)
    assert all(e.num_turns == 40 or e.success for e in episodes)
    states = [[turn.state for turn in episode.turns] for episode in episodes]
    assert sum(len(set(own)) < len(own) for own in states) > 25
    assert len(set.intersection(*map(set, states))) >= 1


LACKING = {"spader": "entities", "dars": "predicates"}


@pytest.mark.parametrize("name", names())
def test_every_method_runs(name):
    world = Errand(TWO, seed=0)
    scored = score_step(world, make(name), num_tasks=2, rollouts=4, step=0)
    assert len(scored.value) and np.isfinite(scored.value).all()
    chain = Chain(ChainSetting(name="x", horizon=6, reward="end"), seed=0)
    if name in LACKING:
        with pytest.raises(UsageError, match=f"chain world '{LACKING[name]}'.*Known: .*value"):
            score_step(chain, make(name), num_tasks=2, rollouts=4, step=0)
    else:
        assert len(score_step(chain, make(name), num_tasks=2, rollouts=4, step=0).value)


REFUSED = [
    ("horizon", 0, "`horizon` and `tokens` must be at least 1, got 0 and 1"),
    ("tokens", 0, "`horizon` and `tokens` must be at least 1, got 16 and 0"),
    ("items", 3, "`items` must be 1 or 2, got 3"),
    ("skill", -1.0, "`skill` and `sharpness` must be at least 0 and finite, got -1.0"),
    ("sharpness", math.inf, "must be at least 0 and finite, got 3.0 and inf"),
    ("finding", 0.0, r"`finding` must be in \(0, 1\], got 0.0"),
    ("grasping", 1.5, r"`grasping` must be in \(0, 1\], got 1.5"),
    ("density", 0.0, r"`density` must be in \(0, 1\], got 0.0"),
    ("critic", 1.1, r"`critic` must be in \[0, 1\], got 1.1"),
    ("teacher", -0.1, r"`teacher` must be in \[0, 1\], got -0.1"),
    ("judge", math.nan, r"`judge` must be in \[0, 1\], got nan"),
]


@pytest.mark.parametrize(("dial", "value", "message"), REFUSED)
def test_dials_are_refused_outside_their_range(dial, value, message):
    with pytest.raises(ValueError, match=message):
        ErrandSetting(name="x", **{dial: value})


def test_table_seed_names_another_policy_of_the_same_house():
    one, other = (build_model(dataclasses.replace(TINY, table_seed=n)) for n in (0, 1))
    assert one.houses == other.houses
    np.testing.assert_array_equal(one.tables.move, other.tables.move)
    assert (one.tables.logits != other.tables.logits).any()
    again = build_model(TINY)
    np.testing.assert_array_equal(one.tables.logits, again.tables.logits)
