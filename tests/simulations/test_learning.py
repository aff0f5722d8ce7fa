import itertools
import math

import numpy as np
import pytest
from scipy import stats

from simulations.measure import can_play, trained_gradient
from simulations.studies import learning
from simulations.studies._learner import (
    Ascent,
    Plan,
    best_outcome,
    expected_outcome,
    learn,
    likelihood_ratios,
)
from simulations.studies._learning_summary import BUDGETS, NUM_MARKS, chosen, read_curve
from simulations.worlds import Chain
from simulations.worlds.errand import Errand
from simulations.worlds.errand_model import ErrandSetting
from tests.simulations.curves import CHAIN, small_curves, small_setting
from tests.simulations.toy import ACTIONS, STATES, TURNS, toy, ways
from twinstats.credit import METHODS, assign, make
from twinstats.credit.registry import Entry, Method, Need, remembers
from twinstats.episodes import Credit, group_by_task

ERRAND = ErrandSetting(name="errand", horizon=8, is_locked=False, skill=2.0)


def played(world, tasks=2, rollouts=3):
    episodes = world.play(world.tasks(tasks), rollouts, 0)
    return group_by_task(episodes, seed=world.seed, step=0)


def by_hand(world, credits):
    """Turn by turn: share * credit * (one-hot - policy), the shares and nulls as they stand."""
    policy, found = world.policy_table(), np.zeros(world.tables.logits.shape)
    for credit in credits:
        for number, episode in enumerate(credit.episodes):
            for turn, state, action in world.places(episode).T:
                value = credit.values[number][turn]
                share = 1.0 if credit.share is None else credit.share[number][turn]
                if not math.isnan(value):
                    found[turn, state] -= share * value * policy[turn, state]
                    found[turn, state, action] += share * value
    return found


def test_the_gradient_trains_forks_with_their_share_and_leaves_out_nulls():
    world = Chain(CHAIN, seed=3)
    for method in (make("twice", two_sided=True), make("tree_grpo"), make("treerl")):
        credits = assign(world, played(world), method)
        assert any(e.fork for credit in credits for e in credit.episodes)
        np.testing.assert_allclose(
            trained_gradient(world, credits), by_hand(world, credits), atol=1e-12
        )
    (group,) = played(world, tasks=1)
    values = [np.full(e.num_turns, np.nan) for e in group.episodes]
    assert not trained_gradient(world, [Credit(episodes=group.episodes, values=values)]).any()
    values[1][2] = 0.5
    found = trained_gradient(world, [Credit(episodes=group.episodes, values=values)])
    assert {turn for turn, *_ in zip(*np.nonzero(found), strict=True)} == {2}


def test_the_gradient_of_exact_credit_is_the_policy_gradient_by_enumeration():
    world = toy()
    start = int(world.tables.starts[0])
    policy, total = world.policy_table(), np.zeros(world.tables.logits.shape)
    for probability, places, _ in ways(world.tables, 0, start):
        for turn, state, action in places:
            advantage = world.values.advantage[turn, state, action]
            total[turn, state] -= probability * advantage * policy[turn, state]
            total[turn, state, action] += probability * advantage
    np.testing.assert_allclose(total, world.policy_gradient(world.tasks(1)), atol=1e-12)
    credits = [
        Credit(episodes=g.episodes, values=[world.truth(e)[2] for e in g.episodes])
        for g in played(world, tasks=1, rollouts=4000)
    ]
    np.testing.assert_allclose(trained_gradient(world, credits) / 4000, total, atol=0.02)


def test_returns_are_those_of_enumeration():
    world = toy(1)
    tasks = world.tasks(2)
    starts = [task.info["start"] for task in tasks]
    whole = [sum(p * sum(r) for p, _, r in ways(world.tables, 0, start)) for start in starts]
    assert expected_outcome(world, tasks) == pytest.approx(np.mean(whole))
    best = -np.inf
    for actions in itertools.product(range(ACTIONS), repeat=TURNS * STATES):
        logits = np.where(np.arange(ACTIONS) == np.array(actions)[:, None], 200.0, 0.0)
        sure = world.with_logits(logits.reshape(TURNS, STATES, ACTIONS))
        best = max(best, expected_outcome(sure, tasks))
    # one policy is the best from every start
    assert best_outcome(world, tasks) == pytest.approx(best)


def test_steps_do_not_depend_on_scale_and_nothing_moves_nothing():
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(6, 2, 3))
    gradients[2] = 0.0
    one, other = Ascent(0.5), Ascent(0.5)
    steps = [one.step(gradient) for gradient in gradients]
    again = [other.step(1024 * gradient) for gradient in gradients]
    np.testing.assert_array_equal(steps, again)
    assert np.linalg.norm(steps[0]) == pytest.approx(0.5) and not steps[2].any()
    assert not Ascent(0.5).step(np.zeros(3)).any()


def test_a_scaled_method_learns_the_same():
    plan = Plan(total_tokens=1000, num_tasks=2)
    plain = learn(Chain(CHAIN, seed=1), make("rloo"), plan, step_size=1.0)

    def scaled(group):
        credit = METHODS["rloo"].function(group)
        return Credit(episodes=credit.episodes, values=[64 * own for own in credit.values])

    again = learn(
        Chain(CHAIN, seed=1), Method("scaled", Entry(function=scaled), {}), plan, step_size=1.0
    )
    assert plain == again and plain[-1].value > plain[0].value


def test_points_are_what_every_mark_pays_for():
    world, method = Errand(ERRAND, seed=2), make("twice")
    every, few = (
        learn(world, method, Plan(total_tokens=3000, num_tasks=1, num_marks=n), step_size=2.0)
        for n in (3000, 6)
    )
    assert [point.update for point in every] == list(range(len(every)))
    assert every[-1] == few[-1] and every[-1].tokens <= 3000 and len(few) <= 7 < len(every)
    for mark in range(0, 3001, 500):
        paid = [p for p in every if p.tokens <= mark][-1]
        assert [p for p in few if p.tokens <= mark][-1] == paid
    steps = np.diff([point.tokens for point in every])
    forks = np.diff([point.auxiliary_tokens for point in every])
    assert (forks > 0).all() and (steps - forks <= 4 * ERRAND.horizon).all()
    assert (steps - forks >= 4).all()


def test_shared_turns_keep_one_policy_a_state():
    world, tables = Errand(ERRAND, seed=0), []
    monitored = Method("rloo", METHODS["rloo"], {})
    real = type(world).with_logits

    class Watched(Errand):
        def with_logits(self, logits):
            tables.append(logits)
            return real(self, logits)

    plan = Plan(total_tokens=300, num_tasks=2, shares_turns=True)
    learn(Watched(ERRAND, seed=0), monitored, plan, step_size=1.0)
    assert np.ptp(tables[0], axis=0).max() < 1e-12 and np.ptp(tables[0] - world.tables.logits) > 0


def test_memories_get_the_ratios_of_each_update():
    seen = []

    class Diary:
        def observe(self, credits, ratios):
            seen.append((credits, ratios))

        def state(self):
            return {}

        def load(self, state):
            pass

    entry = Entry(
        function=lambda g, memory: METHODS["rloo"].function(g),
        memory=remembers(Diary),
        observes_ratios=True,
    )
    world = Chain(CHAIN, seed=4)
    learn(world, Method("diary", entry, {}), Plan(total_tokens=100, num_tasks=2), step_size=1.0)
    assert [credits[0].episodes[0].step for credits, _ in seen] == [0, 1]
    credits, ratios = seen[0]
    step = Ascent(1.0).step(trained_gradient(world, credits))
    after = world.with_logits(world.tables.logits + step)
    for credit, own in zip(credits, ratios, strict=True):
        for episode, ratio in zip(credit.episodes, own, strict=True):
            new = [after.policy_table()[tuple(place)] for place in world.places(episode).T]
            np.testing.assert_allclose(ratio, new / np.exp(episode.column("logprob")))
    assert all(np.ptp(np.concatenate(own)) > 0 for own in ratios)
    forks = assign(world, played(world), make("tree_grpo"))
    assert [len(own) for own in likelihood_ratios(world, after, forks)] == [
        len(credit.episodes) for credit in forks
    ]


def test_a_new_method_appears_by_itself_where_the_world_has_what_it_needs(monkeypatch):
    def truthful(group):
        return Credit(episodes=group.episodes, values=[e.info["tool"] for e in group.episodes])

    def toy_method(group):
        return METHODS["rloo"].function(group)

    monkeypatch.setitem(METHODS, "toy", Entry(function=toy_method))
    monkeypatch.setitem(METHODS, "picky", Entry(function=truthful, needs=(Need("predicates"),)))
    found = {row["method"] for row in learning.run(small_setting(step_sizes=(1.0,)), 0)}
    lacking = {name for name in METHODS if not can_play(Chain(CHAIN, seed=0), make(name))}
    assert "toy" in found and {"picky", "dars", "spader"} <= lacking
    assert found == (set(METHODS) | set(learning.VARIANTS)) - lacking
    assert all(can_play(Errand(ERRAND, seed=0), make(name)) for name in METHODS)


def test_rows_are_a_function_of_setting_and_seed_and_no_memory_outlives_its_run():
    names = ("twice_budget", "budget_gate", "phgpo", "t2spo")
    setting = small_setting(ERRAND, methods=names)
    rows = learning.run(setting, 5)
    assert rows == learning.run(setting, 5) != learning.run(setting, 6)
    alone = learning.run(small_setting(ERRAND, methods=names, step_sizes=(4.0,)), 5)
    assert [row for row in rows if row["step_size"] == 4.0] == alone
    assert max(row["update"] for row in rows) > 3


def test_the_same_credit_by_another_scale_differs_by_nothing_and_says_so():
    rows = small_curves(methods=("rloo", "dr_grpo"))
    found = learning.summarise(rows)["learning_differences"]
    assert {(row["difference"], row["pvalue"]) for row in found} == {(0.0, None)}
    assert all("does not vary" in row["reason"] for row in found)


def test_each_seed_is_read_at_the_step_size_that_the_others_chose():
    scores = np.array([[9.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    # without seed 0: 1 against 2; without seed 1: 10 against 1; without seed 2: 9 against 1
    assert chosen(scores).tolist() == [1, 0, 0]
    assert chosen(np.ones((3, 2))).tolist() == [0, 0]


def curve(method, seed, step_size, points, helpers=None):
    known = {"setting": "s", "world": "chain", "seed": seed, "method": method}
    known |= {"step_size": step_size, "best_return": 2.0, "total_tokens": 480, "helpers": helpers}
    known |= {"estimates_advantage": True, "reconstructed": False}
    return [
        known | {"update": n, "tokens": tokens, "auxiliary_tokens": tokens // 4, "return": value}
        for n, (tokens, value) in enumerate(points)
    ]


def test_curves_are_read_at_the_last_update_paid_for():
    points = curve("rloo", 0, 1.0, [(0, 0.0), (100, 1.0), (200, 2.0)])
    read = read_curve(points[::-1], np.array([99.0, 100.0, 199.9, 480.0]))
    assert read[-1].tolist() == [0.0, 1.0, 1.0, 2.0] and read[0].tolist() == [0, 1, 1, 2]


def test_tables_by_hand():
    """Ends of 1, 1.2 and 1.1 for rloo; better and worse by given differences for two others."""
    ends = (1.0, 1.2, 1.1)
    gains = {"rloo": (0, 0, 0), "twice": (0.3, 0.2, 0.4), "independent": (-0.1, 0.1, 0.0)}
    rows = []
    for method, own in gains.items():
        for seed, (end, gain) in enumerate(zip(ends, own, strict=True)):
            rows += curve(method, seed, 2.0, [(0, 0.5), (240, end + gain)])
            rows += curve(method, seed, 8.0, [(0, 0.5), (240, 0.0)])
    tables = learning.summarise(rows)
    ends_only = [r for r in tables["learning"] if r["reading"] == "end"]
    last = {r["method"]: r for r in ends_only if r["budget"] == 480}
    low, high = stats.t.interval(0.95, 2, np.mean(ends), stats.sem(ends))
    row = last["rloo"]
    assert (row["return"], row["low"], row["high"]) == pytest.approx((1.1, low, high))
    assert (row["step_size"], row["is_edge"], row["updates"]) == (2.0, True, 1.0)
    assert row["auxiliary_share"] == pytest.approx(0.25) and row["num_seeds"] == 3
    early = [r for r in ends_only if r["budget"] < 240]
    assert {(r["return"], r["low"], r["updates"]) for r in early} == {(0.5, None, 0.0)}
    assert {r["budget"] for r in tables["learning"]} == {480 * mark / NUM_MARKS for mark in BUDGETS}
    # the first 23 marks at .5, the others at the end
    means = {
        r["budget"]: r["return"]
        for r in tables["learning"]
        if (r["method"], r["reading"]) == ("rloo", "mean")
    }
    assert means[480] == pytest.approx((23 * 0.5 + 25 * 1.1) / 48)
    assert means[360] == pytest.approx((23 * 0.5 + 13 * 1.1) / 36)
    found = {
        (r["method"], r["against"]): r
        for r in tables["learning_differences"]
        if (r["reading"], r["budget"]) == ("end", 480)
    }
    assert set(found) == {("twice", "rloo"), ("independent", "rloo"), ("twice", "independent")}
    raw = [stats.ttest_1samp(gains[name], 0).pvalue for name in ("twice", "independent")]
    assert found["twice", "rloo"]["difference"] == pytest.approx(0.3)
    assert found["twice", "rloo"]["pvalue"] == pytest.approx(raw[0])
    assert found["twice", "rloo"]["pvalue_holm"] == pytest.approx(2 * raw[0])
    assert found["independent", "rloo"]["pvalue_holm"] == pytest.approx(raw[1])
    against = found["twice", "independent"]
    assert against["difference"] == pytest.approx(0.3)
    assert against["pvalue_holm"] == against["pvalue"]


def test_one_seed_has_no_return_and_a_reason():
    tables = learning.summarise(curve("rloo", 0, 1.0, [(0, 0.0), (100, 1.0)]))
    assert {r["return"] for r in tables["learning"]} == {None}
    assert all("one seed" in r["reason"] for r in tables["learning"])
    assert tables["learning_differences"] == []
