import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

from simulations.worlds.chain import Chain
from simulations.worlds.chain_model import ChainSetting
from simulations.worlds.tabular_model import ReturnLaw, TabularValues
from tests.simulations.toy import ACTIONS, STATES, TURNS, random_model, toy, ways
from twinstats.coupling import joint
from twinstats.episodes import DIFFERENT, FRESH, KEEP, SHARED, Fork, Task
from twinstats.keys import Stream
from twinstats.noise import KeyColumns, LogitsError, NoiseKey, gumbel, gumbels, sample, uniform
from twinstats.rows import null_disagreements


def test_values_equal_brute_force_enumeration():
    model = random_model()
    values = TabularValues(model)
    for turn, state in itertools.product(range(TURNS), range(STATES)):
        found = ways(model, turn, state)
        mean = sum(p * sum(rewards) for p, _, rewards in found)
        assert values.value[turn, state] == pytest.approx(mean, abs=1e-14)
        for action in range(ACTIONS):
            own = [way for way in found if way[1][0][2] == action]
            mass = sum(p for p, _, _ in own)
            quality = sum(p * sum(rewards) for p, _, rewards in own) / mass
            assert values.action_value[turn, state, action] == pytest.approx(quality, abs=1e-14)
            assert values.policy[turn, state, action] == pytest.approx(mass, abs=1e-14)


def test_occupancy_equals_brute_force_enumeration():
    model = random_model()
    occupancy = TabularValues(model).occupancy
    for number, start in enumerate(model.starts):
        expected = np.zeros((TURNS, STATES))
        for p, places, _ in ways(model, 0, int(start)):
            for turn, state, _ in places:
                expected[turn, state] += p
        np.testing.assert_allclose(occupancy[number], expected, atol=1e-14)


def test_law_of_returns_equals_brute_force_enumeration():
    model = random_model()
    law = ReturnLaw(model, TabularValues(model).policy)
    assert law.unit == 0.25
    for turn, state in itertools.product(range(TURNS), range(STATES)):
        found = ways(model, turn, state)
        for total in np.arange(-1, 14) / 4:
            hits = [way for way in found if sum(way[2]) == total]
            mass = sum(p for p, _, _ in hits)
            assert law.before(turn, state, total) == pytest.approx(mass, abs=1e-14)
            for action in range(ACTIONS):
                joint = sum(p for p, places, _ in hits if places[0][2] == action)
                chosen = sum(p for p, places, _ in found if places[0][2] == action)
                after = law.after(turn, state, action, total)
                assert after == pytest.approx(joint / chosen, abs=1e-14)


def test_law_refuses_rewards_off_its_grid():
    model = random_model()
    for reward in (model.reward - 1, model.reward + 0.1):
        with pytest.raises(ValueError, match="at least 0 and multiples of 1/1024"):
            ReturnLaw(dataclasses.replace(model, reward=reward), TabularValues(model).policy)


def test_policy_gradient_equals_finite_differences():
    model = random_model()
    world = toy(model=model)
    tasks = world.tasks(3)  # starts 2, 0, 2
    exact = world.policy_gradient(tasks)
    for place in np.ndindex(exact.shape):
        ends = []
        for nudge in (1e-6, -1e-6):
            logits = model.logits.copy()
            logits[place] += nudge
            ends.append(
                TabularValues(dataclasses.replace(model, logits=logits)).value[0, [2, 0, 2]].mean()
            )
        assert exact[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)


def test_truth_counts_what_was_earned():
    world = toy()
    for episode in world.play(world.tasks(2), 20, step=0):
        quality, value, advantage = world.truth(episode)
        earned = 0.0
        for index, turn in enumerate(episode.turns):
            at, state = map(int, turn.state.split(":"))
            own = world.values.action_value[at, state, turn.action]
            assert quality[index] == pytest.approx(earned + own, abs=1e-14)
            assert value[index] == pytest.approx(earned + world.values.value[at, state], abs=1e-14)
            earned += turn.reward
        np.testing.assert_allclose(advantage, quality - value, atol=1e-15)
        assert episode.outcome == earned
        assert episode.success == (earned == 1.0)


STREAMS = [
    (SHARED, 2, Stream("alternative", 3), Stream("sample"), Stream("environment")),
    (
        FRESH,
        1,
        Stream("alternative", 2),
        Stream("fresh/1.1.fresh.resample"),
        Stream("environment/1.1.fresh.resample"),
    ),
    (3, 0, Stream("draw", 3), Stream("draw", 3), Stream("environment", 3)),
]


def replayed(world, row, state, turn, action, streams):
    """The turns from one on by the rules of the keys: (state, action, reward) each."""
    model, (decision, tail, environment) = world.tables, streams
    found = []
    while turn < TURNS:
        stream = decision if not found and decision else tail
        if action is None or found:
            key = stream.key(world.seed, 3, row, turn)
            action = int(sample(model.logits[turn, state][None], [key], [0])[0])
        coins = environment.key(world.seed, 3, row, turn)
        branch = int(uniform(coins, 0, 0) < model.chance[turn, state, action])
        found.append((f"{turn}:{state}", action, model.reward[turn, state, action, branch]))
        state = model.move[turn, state, action, branch]
        if uniform(coins, 0, 1) < model.hazard[turn, state]:
            break
        turn += 1
    return found


def as_played(episode, first=0):
    return [(turn.state, turn.action, turn.reward) for turn in episode.turns[first:]]


def test_factuals_follow_the_keys_of_the_design():
    world = toy(seed=7)
    streams = (None, Stream("sample"), Stream("environment"))
    for row, episode in enumerate(world.play(world.tasks(2), 30, step=3)):
        state = episode.task.info["start"]
        assert as_played(episode) == replayed(world, row, state, 0, None, streams)


@pytest.mark.parametrize(("luck", "alternative", "decision", "tail", "environment"), STREAMS)
def test_forks_follow_the_keys_of_the_design(luck, alternative, decision, tail, environment):
    world = toy(seed=7)
    parents = [e for e in world.play(world.tasks(2), 30, step=3) if e.num_turns > 1]
    forks = [Fork(e, 1, luck=luck, alternative=alternative, skip_equal=False) for e in parents]
    for parent, episode in zip(parents, world.fork(forks), strict=True):
        state = int(parent.turns[1].state.split(":")[1])
        streams = (decision, tail, environment)
        assert as_played(episode, 1) == replayed(world, parent.row, state, 1, None, streams)
        assert episode.turns[0] is parent.turns[0]
        assert episode.sampled == episode.num_turns - 1


def test_forced_actions_keep_the_parents_luck():
    world = toy(seed=7)
    parents = world.play(world.tasks(2), 30, step=3)
    streams = (None, Stream("sample"), Stream("environment"))
    for parent, episode in zip(parents, world.fork([Fork(e, 0, 1) for e in parents]), strict=True):
        state = parent.task.info["start"]
        assert as_played(episode) == replayed(world, parent.row, state, 0, 1, streams)
    for fork in world.fork([Fork(e, 0, DIFFERENT) for e in parents]):
        assert fork.turns[0].action == 1 - fork.fork.episode.turns[0].action


def test_null_twins_are_identical_through_forks_of_forks():
    world = toy(seed=4)
    episodes = world.play(world.tasks(2), 30, step=0)
    forks = world.fork([Fork(e, 0, DIFFERENT, FRESH) for e in episodes])
    both = [*episodes, *forks]
    nulls = world.fork([Fork(e, t, KEEP) for e in both for t in range(e.num_turns)])
    assert null_disagreements(nulls) == (len(nulls), 0, 0)
    for null in nulls:
        assert list(null.turns) == list(null.fork.episode.turns)
        assert null.final_state == null.fork.episode.final_state


def test_episodes_do_not_depend_on_the_batch_or_on_what_was_played_before():
    world, other = toy(seed=1), toy(seed=1)
    other.play(other.tasks(2), 50, step=9)
    alone = world.play([Task("x", {"start": 2})], 3, step=0)
    many = other.play([Task("x", {"start": 2}), Task("y", {"start": 0})], 40, step=0)
    for one, two in zip(alone, many, strict=False):
        assert as_played(one) == as_played(two)


@pytest.mark.parametrize("size", [1, 2, 7, 256, 600])
def test_noise_of_many_keys_equals_that_of_each(size):
    keys = [NoiseKey(7, 3, row, turn, luck=turn) for row in (0, 5, 9) for turn in (0, 2)]
    found = gumbels(KeyColumns.of(keys), 4, size)
    expected = [gumbel(key, 4, np.arange(size)) for key in keys]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("cells", [1, 45, 200])
def test_how_far_noise_is_drawn_ahead_changes_nothing(monkeypatch, cells):
    world = Chain(ChainSetting(name="x", horizon=12, ends=0.2), seed=3)
    episodes = world.play(world.tasks(3), 6, step=0)
    forks = [Fork(e, t, luck=FRESH) for e in episodes for t in range(0, e.num_turns, 3)]
    expected = [as_played(e) for e in [*episodes, *world.fork(forks)]]
    monkeypatch.setattr("simulations.worlds.luck._DRAWN_AHEAD", cells)
    again = [*world.play(world.tasks(3), 6, step=0), *world.fork(forks)]
    assert [as_played(e) for e in again] == expected


def test_logits_without_a_law_are_refused():
    world = toy()
    logits = world.tables.logits.copy()
    logits[1, 2, 0] = np.nan
    with pytest.raises(LogitsError, match="must not be NaN, got one in row 5"):
        world.with_logits(logits)


def test_another_policy_in_the_same_world():
    world = toy(seed=1)
    logits = np.zeros_like(world.tables.logits)
    logits[..., 1] = 60.0
    other = world.with_logits(logits)
    for one in other.play(other.tasks(2), 20, step=0):
        assert {turn.action for turn in one.turns} == {1}
    same = world.with_logits(world.tables.logits)
    first, second = (w.play(w.tasks(2), 20, step=0) for w in (world, same))
    assert [as_played(e) for e in first] == [as_played(e) for e in second]


def test_twins_with_one_decision_share_a_tail_and_pay_for_their_decision_alone():
    world = Chain(ChainSetting(name="c", horizon=6, actions=2, ends=0.2, tokens=3), seed=4)
    factuals = world.play(world.tasks(8), 2, 0)
    forks = [Fork(e, 0, alternative=k, skip_equal=False) for e in factuals for k in range(5)]
    played_out = world.fork(forks)
    shared = world.fork([dataclasses.replace(fork, skip_equal=None) for fork in forks])
    first = {}
    for own, fork, whole in zip(shared, forks, played_out, strict=True):
        decision = (id(fork.episode), own.turns[0].action)
        equal = own.turns[0].action == fork.episode.turns[0].action
        assert (own.outcome, list(own.turns)) == (whole.outcome, list(whole.turns))
        assert whole.sampled == 3 * whole.num_turns
        is_first = not equal and decision not in first
        assert own.sampled == (whole.sampled if is_first else 3)
        first[decision] = True


def test_a_twin_that_takes_its_parents_tail_plays_for_nobody_else():
    world = Chain(ChainSetting(name="c", horizon=4, actions=2, tokens=3), seed=4)
    factuals = world.play(world.tasks(8), 2, 0)
    given = [Fork(e, 1, e.turns[1].action) for e in factuals]
    drawn = world.fork([Fork(e, 1) for e in factuals])
    asked = [fork for e, own in zip(factuals, given, strict=True) for fork in (Fork(e, 1), own)]
    after = world.fork(asked)
    equal = [
        own.turns[1].action == e.turns[1].action for own, e in zip(drawn, factuals, strict=True)
    ]
    assert any(equal) and not all(equal)
    for own, parent in zip(after[1::2], factuals, strict=True):
        assert (own.outcome, own.sampled) == (parent.outcome, 3 * (parent.num_turns - 2))


def test_a_maximal_twin_agrees_as_often_as_can_be_and_keeps_the_policys_law():
    model = random_model()
    model.hazard[:] = 0.0
    world = toy(1, model=model)
    factuals = world.play(world.tasks(2), 6000, 0)
    forks = [Fork(e, 0, 1 - e.turns[0].action, coupling="maximal") for e in factuals]
    seen = {}
    for factual, twin in zip(factuals, world.fork(forks), strict=True):
        _, state, _ = world.places(factual)[:, 1]
        _, other, _ = world.places(twin)[:, 1]
        pair = (factual.turns[1].action, twin.turns[1].action)
        seen.setdefault((int(state), int(other)), []).append(pair)
    policy = world.policy_table()[1]
    assert sum(state != other for state, other in seen) >= 3
    for (state, other), pairs in seen.items():
        if len(pairs) < 300:
            continue
        law = joint(policy[state], policy[other], "maximal")
        counts = np.zeros((ACTIONS, ACTIONS))
        np.add.at(counts, tuple(np.array(pairs).T), 1)
        live = law > 1e-12
        assert not counts[~live].any()
        expected = law[live] / law[live].sum() * len(pairs)
        assert live.sum() == 1 or stats.chisquare(counts[live], expected).pvalue > 1e-6


def test_maximal_null_twins_are_their_factuals_and_gumbel_forks_of_maximal_twins_are_refused():
    world = toy(2)
    factuals = world.play(world.tasks(2), 50, 0)
    nulls = world.fork([Fork(e, 0, KEEP, coupling="maximal") for e in factuals])
    assert null_disagreements(nulls) == (100, 0, 0)
    twins = world.fork([Fork(e, 0, coupling="maximal", skip_equal=False) for e in factuals])
    world.fork([Fork(twins[0], 0, alternative=1, coupling="maximal")])
    with pytest.raises(ValueError, match="`coupling` must be 'maximal' for a fork that shares"):
        world.fork([Fork(twins[0], 0)])
