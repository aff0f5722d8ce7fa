import json
from dataclasses import replace

import numpy as np
import pytest

from twinstats.credit import Budget, assign, choose, make
from twinstats.credit._twin_forks import TwinForm, planned_forks
from twinstats.credit.budget import BudgetMemory, allocation_rows, history_features
from twinstats.episodes import (
    DIFFERENT,
    FRESH,
    KEEP,
    RESAMPLE,
    SHARED,
    Credit,
    Episode,
    Fork,
    Group,
    Task,
    Turn,
)
from twinstats.noise import NoiseKey, uniform


def run_step(world, method, step, *, tasks=4, rollouts=4):
    episodes = world.play([Task(f"t{i}") for i in range(tasks)], rollouts, step)
    groups = [
        Group(episodes[i].task, episodes[i : i + rollouts], 3, step)
        for i in range(0, len(episodes), rollouts)
    ]
    credits = assign(world, groups, method)
    factual = sum(episode.sampled for episode in episodes)
    spent = sum(fork.sampled for credit in credits for fork in credit.info["forks"])
    return credits, factual, spent


@pytest.mark.parametrize(
    "fields",
    [
        {"ratio": -0.1},
        {"ratio": np.inf},
        {"ratio": np.nan},
        {"ratio": 1e300},
        {"ratio": 1.0, "explore": 1.1},
        {"ratio": 1.0, "null": -0.1},
        {"ratio": 1.0, "fresh": 2.0},
    ],
)
def test_a_budget_that_means_nothing_is_refused(fields):
    with pytest.raises(ValueError, match="must be"):
        Budget(**fields)


def test_the_first_step_spreads_evenly_on_a_stated_guess(scripted):
    group = Group(Task("t"), [scripted(1.0, (0,) * 50, row=row) for row in range(20)], 7, 2)
    plan = BudgetMemory(Budget(ratio=2.0)).plan(group)
    assert [(p.episode.row, p.turn) for p in plan] == [(r, t) for r in range(20) for t in range(50)]
    assert {p.expected for p in plan} == {0.4}
    assert {p.discordance for p in plan} == {0.5}
    counts = np.array([p.count for p in plan])
    assert set(counts) == {0, 1}
    assert abs(counts.mean() - 0.4) < 4.9 * np.sqrt(0.24 / 1000)


def test_the_count_is_the_whole_part_and_a_keyed_coin(scripted):
    """The coin: purpose choose, position 0, keyed by the group's seed and step, row and slot."""
    group = Group(Task("t"), [scripted(1.0, (0,) * 9, row=row) for row in range(4)], 7, 2)
    for ratio, whole in ((3.0, 0), (13.0, 2)):
        for planned in BudgetMemory(Budget(ratio=ratio)).plan(group):
            key = NoiseKey(7, 2, planned.episode.row, planned.turn, purpose="choose")
            assert planned.count == whole + int(float(uniform(key, 0)) < 0.6)
            assert planned.probability == min(1.0, ratio / 5)


def test_the_coin_follows_the_slot(scripted):
    one = scripted(1.0, (0,) * 6)
    slots = [40, 3, 7, 0, 9, 11]
    moved = replace(one, turns=[replace(t, slot=s) for t, s in zip(one.turns, slots, strict=True)])
    for planned in BudgetMemory(Budget(ratio=2.5)).plan(Group(Task("t"), [moved], 7, 0)):
        key = NoiseKey(7, 0, 0, slots[planned.turn], purpose="choose")
        assert planned.count == int(float(uniform(key, 0)) < 0.5)


def learned(tiny, ratio=1.5):
    """A memory after three steps of a real world."""
    world, method = tiny.World(tiny.RealNoise(), limit=4), make("twice", budget=Budget(ratio=ratio))
    for step in range(3):
        method.observe(step, run_step(world, method, step)[0])
    memory = BudgetMemory(Budget(ratio=ratio))
    memory.load(method.state())
    return memory


def numbers(plan, episode, turns):
    return [
        (p.turn, p.expected, p.count, p.discordance, p.tail_tokens, p.price)
        for p in plan
        if p.episode is episode and p.turn < turns
    ]


def test_a_plan_uses_nothing_but_history(tiny, unchecked):
    """What a turn is given does not move with anything that was decided at it or after it."""
    memory = learned(tiny)
    world = tiny.World(tiny.RealNoise(), limit=4)
    long = [e for e in world.play([Task("t")], 60, 9) if e.num_turns == 4]
    changed = 0
    for episode in long:
        for turn in range(4):
            before = numbers(memory.plan(Group(Task("t"), [episode], 3, 9)), episode, turn + 1)
            kept = list(episode.turns[: turn + 1])
            other = replace(
                kept[turn],
                action=1 - kept[turn].action,
                logprob=-9.0,
                entropy=5.0,
                num_tokens=77,
                reward=3.0,
            )
            for turns in ([*kept[:turn], other], [*kept[:turn], other] + [kept[0]] * 3):
                spoilt = replace(
                    episode,
                    turns=turns,
                    outcome=-100.0,
                    terminated=False,
                    truncated=True,
                    success=None,
                    final_state="x",
                    sampled=1000,
                )
                plan = memory.plan(Group(Task("t"), [spoilt, scripted_mate(episode)], 3, 9))
                assert numbers(plan, spoilt, turn + 1) == before
                changed += 1
    assert changed > 50


def scripted_mate(episode):
    """Another member of the group, which must not matter either."""
    return Episode(episode.task, 9, 999, [Turn(1, None, None, 50, "z")], 7.0, True, False)


def test_features_are_task_type_slot_and_state_class():
    turns = [Turn(0, -1.0, 2.0, 3, "s"), Turn(0, None, None, 3, "s", 64, info={"state_class": "c"})]
    episode = Episode(Task("t", {"type": "hop"}), 0, 0, turns, 1.0, True, False)
    assert history_features(episode, 0) == ("hop", 0, "")
    assert history_features(episode, 1) == ("hop", 64, "c")


def test_state_survives_json_with_identical_plans(tiny):
    memory = learned(tiny)
    memory._tails[("hop", 3, ("nested", ("state", 1)))] = (12.0, 4)
    text = json.dumps(memory.state(), allow_nan=False)
    other = BudgetMemory(memory.budget)
    other.load(json.loads(text))
    assert json.dumps(other.state(), allow_nan=False) == text
    episodes = tiny.World(tiny.RealNoise(), limit=4).play([Task("t")], 8, 5)
    group = Group(Task("t"), episodes, 3, 5)
    for one, two in zip(memory.plan(group), other.plan(group), strict=True):
        assert (one.expected, one.count, one.price) == (two.expected, two.count, two.price)


def test_a_resumed_method_goes_on_as_if_it_never_stopped(tiny, unchecked):
    world = tiny.World(tiny.RealNoise(), limit=4)
    straight, halves = (make("twice", budget=Budget(ratio=1.0)) for _ in range(2))
    for step in range(6):
        if step == 3:
            state = json.loads(json.dumps(halves.state()))
            halves = make("twice", budget=Budget(ratio=1.0))
            halves.load(state)
        results = [run_step(world, method, step)[0] for method in (straight, halves)]
        for one, two in zip(*results, strict=True):
            assert [v.tobytes() for v in one.values] == [v.tobytes() for v in two.values]
        for method, credits in zip((straight, halves), results, strict=True):
            method.observe(step, credits)
    assert straight.state() == halves.state()


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("twice", 0.5),
        pytest.param("twice", 2.0, marks=pytest.mark.slow),
        pytest.param("independent", 1.5, marks=pytest.mark.slow),
    ],
)
def test_the_mean_spend_is_the_ratio(tiny, unchecked, name, ratio):
    world = tiny.World(tiny.RealNoise(), limit=5)
    method = make(name, budget=Budget(ratio=ratio))
    tokens = np.zeros(2)
    for step in range(200):
        credits, factual, spent = run_step(world, method, step, tasks=1, rollouts=4)
        method.observe(step, credits)
        tokens += factual, spent
    assert tokens[1] / tokens[0] == pytest.approx(ratio, rel=0.05)


def observed(memory, group, counts, twin_outcomes):
    """A step in which the plan's turns got `counts` twins that ended as given."""
    plan = [replace(p, count=c) for p, c in zip(memory.plan(group), counts, strict=True)]
    twins = [
        [
            replace(p.episode, outcome=outcome, fork=Fork(p.episode, p.turn), sampled=1)
            for outcome in outcomes
        ]
        for p, outcomes in zip(plan, twin_outcomes, strict=True)
    ]
    forks = [one for some in twins for one in some]
    values = [np.zeros(e.num_turns) for e in group.episodes]
    info = {"plan": plan, "twins": twins, "forks": forks}
    return Credit(episodes=group.episodes, values=values, info=info)


def test_the_second_plan_by_hand(scripted):
    """Two turns of 1 token: tails 2 and 1; discordances after one pair each .75 and .25."""
    episode = scripted(1.0, (0, 1))
    group = Group(Task("t"), [episode], 0, 0)
    memory = BudgetMemory(Budget(ratio=1.5, explore=0.2))
    memory.observe([observed(memory, group, [1, 1], [[0.0], [1.0]])])
    # tail ratio (2 + 1) / 2 = 1.5; spent 2 of a planned .3 * 3 = .9, running mean from 1;
    # debt 2 - 1.5 * 2 = -1 on 2 factual tokens.
    inflation, owed = 0.8 + 0.2 * 2 / 0.9, -0.5
    uniform_ = 0.2 * (1.5 / 1.5) * 3 / 2
    per_price = 0.8 * (np.sqrt(0.75 * 2) + np.sqrt(0.25 * 1)) / 2
    price = ((1.5 - owed) / inflation - uniform_) / per_price
    assert price > 0.5
    plan = memory.plan(group)
    expected = [0.2 * 1.0 + 0.8 * price * np.sqrt(v / c) for v, c in ((0.75, 2), (0.25, 1))]
    np.testing.assert_allclose([p.expected for p in plan], expected)
    assert [p.discordance for p in plan] == [0.75, 0.25]
    assert [p.tail_tokens for p in plan] == [2.0, 1.0]


def test_more_is_spent_where_twins_differ(scripted):
    """Ratio of the adaptive parts: sqrt(v / c), turn by turn."""
    group = Group(Task("t"), [scripted(1.0, (0, 1))], 0, 0)
    memory = BudgetMemory(Budget(ratio=3.0, explore=0.0))
    for _ in range(20):
        memory.observe([observed(memory, group, [1, 1], [[0.0], [1.0]])])
    first, second = memory.plan(group)
    expected = np.sqrt((first.discordance / 2) / (second.discordance / 1))
    assert first.expected / second.expected == pytest.approx(expected)
    assert first.discordance == pytest.approx(20.5 / 21)


def test_failed_forks_teach_nothing_about_discordance(scripted):
    group = Group(Task("t"), [scripted(1.0, (0, 1))], 0, 0)
    memory = BudgetMemory(Budget(ratio=1.0))
    memory.observe([observed(memory, group, [1, 1], [[None], [None]])])
    assert [p.discordance for p in memory.plan(group)] == [0.5, 0.5]


def test_a_step_without_tokens_changes_nothing(scripted):
    memory = BudgetMemory(Budget(ratio=1.0))
    before = memory.state()
    memory.observe([])
    assert memory.state() == before
    assert memory.plan(Group(Task("t"), [], 0, 0)) == []


def test_forks_follow_the_plan(scripted):
    episode = scripted(1.0, (0, 1, 1))
    group = Group(Task("t"), [episode], 0, 0)
    plan = BudgetMemory(Budget(ratio=10.0)).plan(group)
    assert [p.count for p in plan] == [2, 2, 2]
    budget = Budget(ratio=10.0, fresh=1.0, null=1.0)
    for luck, skip in ((SHARED, None), (FRESH, True)):
        twins, measured = planned_forks(group, plan, budget, TwinForm(luck=luck))
        for turn, forks in enumerate(twins):
            assert [(f.turn, f.action, f.luck, f.alternative, f.skip_equal) for f in forks] == [
                (turn, RESAMPLE, luck, k, skip) for k in (0, 1)
            ]
        nulls = [f.turn for f in measured if f.action is KEEP]
        controls = sorted((f.turn, f.alternative) for f in measured if f.action is RESAMPLE)
        assert nulls == [0, 1]
        assert controls == ([(t, k) for t in range(3) for k in (0, 1)] if luck is SHARED else [])
    assert planned_forks(group, plan, None, TwinForm())[1] == []
    unmeasured = Budget(ratio=1.0, fresh=0.0, null=0.0)
    assert planned_forks(group, plan, unmeasured, TwinForm())[1] == []


def test_controls_and_nulls_are_of_their_twins_kind(scripted):
    """A control repeats a forced alternative with fresh luck; a null replays by the coupling."""
    turns = [replace(turn, logprob=-1.0) for turn in scripted(1.0, (0, 1)).turns]
    group = Group(Task("t"), [replace(scripted(1.0), turns=turns)], 0, 0)
    budget = Budget(ratio=5.0, fresh=1.0, null=1.0)
    chosen = choose(group, budget=budget, form=TwinForm(action=DIFFERENT, coupling="maximal"))
    kinds = [(f.turn, f.action, f.luck, f.coupling) for f in chosen.measured]
    assert kinds == [
        (0, DIFFERENT, FRESH, "gumbel"),
        (1, DIFFERENT, FRESH, "gumbel"),
        (0, KEEP, SHARED, "maximal"),
    ]
    assert {(f.action, f.coupling) for own in chosen.twins for f in own} == {(DIFFERENT, "maximal")}


def test_a_branch_with_fresh_luck_also_skips_equal_decisions(scripted):
    episode = scripted(1.0, (0, 1))
    assert TwinForm(luck=FRESH).twin(episode, 0, 1).takes_equal_tail(exact_replay=False)
    assert TwinForm().twin(episode, 0, 1).takes_equal_tail()
    assert not TwinForm().twin(episode, 0, 1).takes_equal_tail(exact_replay=False)
    assert not TwinForm(luck=FRESH, dedup=False).twin(episode, 0, 1).takes_equal_tail()


def test_allocation_rows_are_the_plan(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1)), scripted(0.0, (1,), row=1)], 0, 0)
    method = make("twice", budget=Budget(ratio=2.5))
    credits = assign(scripted_world(lambda fork: 0.0), [group], method)
    rows = allocation_rows(credits)
    assert [(row["factual"], row["turn"], row["slot"]) for row in rows] == [
        ("0/0", 0, 0),
        ("0/0", 1, 1),
        ("0/1", 0, 0),
    ]
    assert {(row["expected"], row["predicted_discordance"]) for row in rows} == {(0.5, 0.5)}
    assert all(np.isnan(row["price"]) for row in rows)  # none is in force in the first step
    assert allocation_rows(assign(scripted_world(), [group], make("rloo"))) == []
