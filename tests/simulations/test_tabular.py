import dataclasses
import itertools

import numpy as np
import pytest

from simulations.worlds.chain_model import ChainSetting
from simulations.worlds.tabular import TabularWorld
from simulations.worlds.tabular_model import ReturnLaw, TabularModel, solve
from simulations.worlds.tabular_needs import (
    JUDGE_NOISE,
    LEAST_LOGPROB,
    NOTABLE,
    TEACHER_STRENGTH,
    Labels,
    Quality,
)
from twinstats.episodes import DIFFERENT, FRESH, KEEP, SHARED, Fork, Task
from twinstats.errors import UsageError
from twinstats.keys import Stream
from twinstats.noise import NoiseKey, sample, uniform
from twinstats.rows import null_disagreements

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


def test_values_equal_brute_force_enumeration():
    model = random_model()
    values = solve(model)
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
    occupancy = solve(model).occupancy
    for number, start in enumerate(model.starts):
        expected = np.zeros((TURNS, STATES))
        for p, places, _ in ways(model, 0, int(start)):
            for turn, state, _ in places:
                expected[turn, state] += p
        np.testing.assert_allclose(occupancy[number], expected, atol=1e-14)


def test_law_of_returns_equals_brute_force_enumeration():
    model = random_model()
    law = ReturnLaw(model, solve(model).policy)
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
            ReturnLaw(dataclasses.replace(model, reward=reward), solve(model).policy)


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
            ends.append(solve(dataclasses.replace(model, logits=logits)).value[0, [2, 0, 2]].mean())
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


def filled(world, need, rollouts=40):
    episodes = world.play(world.tasks(2), rollouts, step=0)
    world.provide(need, episodes)
    return [(episode, episode.info[need]) for episode in episodes]


def test_value_is_exact_at_quality_one_and_noise_around_the_mean_at_zero():
    world = toy()
    for episode, value in filled(world, "value"):
        np.testing.assert_array_equal(value[:-1], world.truth(episode)[1])
        assert value[-1] == episode.outcome
    seen = np.concatenate([value[:-1] for _, value in filled(toy(quality=0.0), "value", 1000)])
    mean = world.values.value[0, [2, 0]].mean()
    assert seen.mean() == pytest.approx(mean, abs=0.02)
    assert seen.std() == pytest.approx(0.25, abs=0.01)


def test_exact_teacher_prefers_better_actions_and_is_a_law():
    world = toy(tokens=3)
    gaps = np.full(world.values.policy.shape, np.nan)
    for episode, found in filled(world, "teacher_gap", 400):
        for place, gap in zip(world.places(episode).T, found, strict=True):
            assert gap.shape == (3,) and np.ptp(gap) == 0
            gaps[tuple(place)] = gap.sum()
    met = ~np.isnan(gaps).any(axis=-1)
    assert met.sum() > 5
    mass = (world.values.policy * np.exp(gaps)).sum(axis=-1)[met]
    np.testing.assert_allclose(mass, 1, atol=1e-12)
    advantage = world.values.advantage
    apart = (advantage[..., 1] - advantage[..., 0])[met]
    np.testing.assert_allclose(
        (gaps[..., 1] - gaps[..., 0])[met], TEACHER_STRENGTH * apart, atol=1e-12
    )


def test_bad_teacher_sees_noise_of_its_own_in_every_token():
    world = toy(tokens=2, quality=0.0)
    tokens = np.concatenate([gap for _, gaps in filled(world, "teacher_gap", 600) for gap in gaps])
    first, second = tokens[::2], tokens[1::2]
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert tokens.std() == pytest.approx(1.0, abs=0.07)


def test_gold_logprob_is_the_probability_of_success():
    world = toy()
    for episode, gold in filled(world, "gold_logprob"):
        earned = np.append(0, np.cumsum(episode.column("reward")))
        for index, turn in enumerate(episode.turns):
            at, state = map(int, turn.state.split(":"))
            hits = [p for p, _, r in ways(world.tables, at, state) if sum(r) + earned[index] == 1]
            floor = np.exp(LEAST_LOGPROB)
            assert np.exp(gold[index]) == pytest.approx(max(sum(hits), floor), rel=1e-10)
        assert gold[-1] == (0.0 if episode.success else LEAST_LOGPROB)


def test_hindsight_is_bayes_rule():
    world = toy()
    for episode, hindsight in filled(world, "hindsight_logprob"):
        to_come = episode.outcome - np.append(0, np.cumsum(episode.column("reward")))
        for index, turn in enumerate(episode.turns):
            at, state = map(int, turn.state.split(":"))
            hits = [way for way in ways(world.tables, at, state) if sum(way[2]) == to_come[index]]
            joint = sum(p for p, places, _ in hits if places[0][2] == turn.action)
            expected = joint / sum(p for p, _, _ in hits)
            assert np.exp(hindsight[index]) == pytest.approx(expected, rel=1e-10)


def test_exact_judge_names_runs_of_notable_turns():
    world = toy()
    some = 0
    for episode, segments in filled(world, "segments"):
        advantage = world.truth(episode)[2]
        marks = np.zeros(episode.num_turns)
        for begin, end, sign in segments:
            assert not marks[begin : end + 1].any()
            marks[begin : end + 1] = sign
            some += end > begin
        expected = np.where(np.abs(advantage) > NOTABLE, np.sign(advantage), 0)
        np.testing.assert_array_equal(marks, expected)
        borders = zip(segments, segments[1:], strict=False)
        assert all(a[1] + 1 < b[0] or a[2] != b[2] for a, b in borders)
    assert some > 5


def test_judgement_is_keyed_by_row_and_slot():
    world = toy(quality=0.0)
    episodes = [e for e in world.play(world.tasks(2), 40, step=5) if e.num_turns == TURNS]
    twins = world.fork([Fork(e, 2, DIFFERENT, FRESH) for e in episodes])
    world.provide("value", [*episodes, *twins])
    for twin in twins:
        np.testing.assert_array_equal(twin.info["value"][:3], twin.fork.episode.info["value"][:3])
    seen = np.array([episode.info["value"][:2] for episode in episodes])
    assert len(np.unique(seen)) == seen.size
    world.provide("segments", episodes)
    for episode in episodes:
        marks = np.zeros(TURNS)
        for begin, end, sign in episode.info["segments"]:
            marks[begin : end + 1] = sign
        for slot in range(TURNS):
            noise = float(uniform(NoiseKey(0, 5, episode.row, slot, purpose="judge"), 0))
            assert marks[slot] in (0, 1 if noise > 0.5 else -1)
            assert (marks[slot] != 0) == (abs(noise - 0.5) > 0.19146246)  # half a spread of .1
    assert JUDGE_NOISE == 0.1 and NOTABLE == 0.05


def test_the_other_needs_follow_the_episode():
    world = toy(tokens=2)
    episodes = world.play(world.tasks(2), 20, step=0)
    for need in ("first_entropy", "tool", "turn_reward", "state_score", "signature", "features"):
        world.provide(need, episodes)
    for episode in episodes:
        names = [("left", "right")[turn.action] for turn in episode.turns]
        states = [turn.state for turn in episode.turns]
        assert episode.info["tool"] == names
        assert episode.info["signature"] == list(zip(states, names, strict=True))
        rewards = episode.column("reward")
        np.testing.assert_array_equal(episode.info["turn_reward"], rewards)
        np.testing.assert_array_equal(episode.info["state_score"], np.append(0, np.cumsum(rewards)))
        np.testing.assert_allclose(
            episode.info["first_entropy"], episode.column("entropy") / np.log(2)
        )
        shown = [int(text.split(":")[1]) for text in [*states, episode.final_state]]
        np.testing.assert_array_equal(episode.info["features"][:, :-1], np.eye(3)[shown])
        np.testing.assert_allclose(
            episode.info["features"][:, -1], np.arange(episode.num_turns + 1) / 3
        )


def test_needs_that_a_world_lacks_are_refused_with_those_it_has():
    with pytest.raises(UsageError, match="need of the toy world 'entities'.*Known: .*gold_logprob"):
        toy().provide("entities", [])
    plain = toy(model=random_model(goal=None))
    with pytest.raises(UsageError, match="Unknown need of the toy world 'gold_logprob'"):
        plain.provide("gold_logprob", [])
    assert plain.play(plain.tasks(1), 1, step=0)[0].success is None


@pytest.mark.parametrize("name", ["critic", "teacher", "judge"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_qualities_are_refused_outside_their_range(name, value):
    known = {"critic": 1.0, "teacher": 1.0, "judge": 1.0, name: value}
    with pytest.raises(ValueError, match=rf"`{name}` must be in \[0, 1\], got {value}"):
        Quality(**known)
    with pytest.raises(ValueError, match=rf"`{name}` must be in"):
        ChainSetting(name="x", **{name: value})
