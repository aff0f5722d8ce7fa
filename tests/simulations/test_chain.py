import dataclasses
import itertools

import numpy as np
import pytest

from simulations.measure import score_step
from simulations.worlds.chain import Chain
from simulations.worlds.chain_model import (
    ChainModel,
    ChainSetting,
    build_model,
    log_policy,
    tables,
)
from simulations.worlds.chain_twins import twin_moments
from simulations.worlds.tabular_model import TabularValues
from twinstats.coupling import joint
from twinstats.credit import Budget, assign, make
from twinstats.episodes import DIFFERENT, FRESH, KEEP, RESAMPLE, SHARED, Fork, Task, group_by_task
from twinstats.errors import UsageError
from twinstats.keys import Stream
from twinstats.noise import NoiseKey, sample, uniform
from twinstats.rows import null_disagreements

TINY = ChainSetting(name="tiny", horizon=3, states=2, actions=2, density=1.0, ends=0.6, luck=0.5)
ENDS = ChainSetting(name="ends", horizon=5, states=3, actions=3, density=0.6, ends=0.5)


def enumerate_from(model: ChainModel, turn: int, state: int) -> list[tuple[float, float]]:
    """Every (probability, reward still to come) of a state: nothing but the tables."""
    if turn == len(model.logits):
        return [(1.0, 0.0)]
    policy = np.exp(model.logits[turn, state])
    policy /= policy.sum()
    found = []
    for action, share in enumerate(policy):
        after = model.move[turn, state, action]
        chance, hazard = model.chance[turn, after], model.hazard[turn, after]
        rest = enumerate_from(model, turn + 1, after)
        for coin, p_coin in ((0, 1 - chance), (1, chance)):
            own = model.points[turn, state, action] + coin * model.prize[turn]
            found.append((share * p_coin * hazard, own))
            found += [(share * p_coin * (1 - hazard) * p, own + more) for p, more in rest]
    return found


def mean(outcomes: list[tuple[float, float]]) -> float:
    return sum(p * reward for p, reward in outcomes)


@pytest.mark.parametrize("reward", ["turns", "end"])
def test_values_equal_brute_force_enumeration(reward):
    setting = ChainSetting(
        name="x", horizon=3, states=2, actions=2, density=0.7, ends=0.6, reward=reward
    )
    model = build_model(setting)
    values = TabularValues(tables(model))
    for turn, state in itertools.product(range(4), range(2)):
        expected = mean(enumerate_from(model, turn, state))
        assert values.value[turn, state] == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_truth_is_action_value_minus_value_with_what_was_earned():
    world = Chain(ENDS, seed=3)
    for episode in world.play(world.tasks(3), 20, step=0):
        action_value, value, advantage = world.truth(episode)
        earned = 0.0
        for index, turn in enumerate(episode.turns):
            at, state = turn.state
            after = world.model.move[at, state, turn.action]
            tail = world.model.points[at, state, turn.action]
            tail += world.model.prize[at] * world.model.chance[at, after]
            tail += (1 - world.model.hazard[at, after]) * world.values.value[at + 1, after]
            assert action_value[index] == pytest.approx(earned + tail, abs=1e-12)
            assert value[index] == pytest.approx(earned + world.values.value[at, state], abs=1e-12)
            earned += turn.reward
        np.testing.assert_allclose(advantage, action_value - value, atol=1e-12)
        assert episode.outcome == earned


def test_advantage_averages_to_zero_under_the_policy():
    values = TabularValues(tables(build_model(ENDS)))
    np.testing.assert_allclose((values.policy * values.advantage).sum(axis=-1), 0, atol=1e-14)


def test_policy_gradient_equals_finite_differences():
    world = Chain(TINY, seed=0)
    tasks = world.tasks(2)
    exact = world.policy_gradient(tasks)
    for place in np.ndindex(exact.shape):
        ends = []
        for nudge in (1e-6, -1e-6):
            model = build_model(TINY)
            model.logits[place] += nudge
            ends.append(TabularValues(tables(model)).value[0, [0, 1]].mean())
        assert exact[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)


def test_factual_follows_the_keys_of_the_design():
    world = Chain(ENDS, seed=7)
    episodes = world.play(world.tasks(2), 5, step=3)
    for row, episode in enumerate(episodes):
        assert episode.row == row and episode.step == 3
        for index, turn in enumerate(episode.turns):
            key = NoiseKey(7, 3, row, index)
            logits = world.model.logits[turn.state]
            assert turn.action == sample(logits[None], [key], [0])[0]
            coin = uniform(NoiseKey(7, 3, row, index, purpose="environment"), 0)
            paid = turn.reward - world.model.points[*turn.state, turn.action]
            assert paid == ENDS.luck * (coin < 0.5)


FORKS = [
    (SHARED, 0, Stream("alternative", 1), Stream("sample"), Stream("environment")),
    (SHARED, 4, Stream("alternative", 5), Stream("sample"), Stream("environment")),
    (
        FRESH,
        1,
        Stream("alternative", 2),
        Stream("fresh/2.1.fresh.resample"),
        Stream("environment/2.1.fresh.resample"),
    ),
    (3, 0, Stream("draw", 3), Stream("draw", 3), Stream("environment", 3)),
]


@pytest.mark.parametrize(("luck", "alternative", "decision", "tail", "environment"), FORKS)
def test_fork_follows_the_keys_of_the_design(luck, alternative, decision, tail, environment):
    setting = ChainSetting(name="x", horizon=5, density=1.0)
    world = Chain(setting, seed=7)
    parents = world.play(world.tasks(4), 5, step=3)
    forks = [
        Fork(parent, 2, RESAMPLE, luck, alternative=alternative, skip_equal=False)
        for parent in parents
    ]
    for parent, episode in zip(parents, world.fork(forks), strict=True):
        assert episode.row == parent.row
        for index in range(2, 5):
            turn = episode.turns[index]
            stream = decision if index == 2 else tail
            key = stream.key(7, 3, parent.row, index)
            assert turn.action == sample(world.model.logits[turn.state][None], [key], [0])[0]
            coin = uniform(environment.key(7, 3, parent.row, index), 0) < 0.5
            paid = turn.reward - world.model.points[*turn.state, turn.action]
            assert paid == setting.luck * coin


def test_same_key_same_bytes_and_no_global_state():
    np.random.seed(1)  # noqa: NPY002
    first = Chain(ENDS, seed=1).play(Chain(ENDS, seed=1).tasks(2), 8, step=5)
    np.random.seed(2)  # noqa: NPY002
    world = Chain(ENDS, seed=1)
    again = world.play(world.tasks(2), 8, step=5)
    for one, other in zip(first, again, strict=True):
        assert [t.action for t in one.turns] == [t.action for t in other.turns]
        assert one.outcome == other.outcome
    other = Chain(ENDS, seed=2)
    assert [e.outcome for e in first] != [e.outcome for e in other.play(other.tasks(2), 8, 5)]


def test_rows_do_not_depend_on_the_batch():
    world = Chain(ENDS, seed=1)
    alone = world.play([Task("a", {"start": 0})], 2, step=0)
    many = world.play([Task("a", {"start": 0})], 50, step=0)
    for one, other in zip(alone, many, strict=False):
        assert one.turns == other.turns


def test_different_rows_have_different_luck():
    world = Chain(ChainSetting(name="x", horizon=40), seed=1)
    first, second = world.play(world.tasks(1), 2, step=0)
    assert [t.action for t in first.turns] != [t.action for t in second.turns]


def test_null_twins_never_disagree():
    world = Chain(ENDS, seed=4)
    episodes = world.play(world.tasks(3), 30, step=0)
    nulls = world.fork([Fork(e, t, KEEP) for e in episodes for t in range(e.num_turns)])
    assert null_disagreements(nulls) == (len(nulls), 0, 0)


def test_equal_decision_with_shared_luck_ends_identically_even_if_played():
    world = Chain(ENDS, seed=4)
    episodes = world.play(world.tasks(3), 30, step=0)
    places = [(e, t) for e in episodes for t in range(e.num_turns)]
    skipped = world.fork([Fork(e, t) for e, t in places])
    played = world.fork([Fork(e, t, skip_equal=False) for e, t in places])
    equal = 0
    for one, other, (parent, turn) in zip(skipped, played, places, strict=True):
        assert one.outcome == other.outcome
        assert list(one.turns) == list(other.turns)
        if one.turns[turn].action == parent.turns[turn].action:
            equal += 1
            assert one.outcome == parent.outcome and one.sampled == 1
            assert other.sampled == parent.num_turns - turn
    assert equal > 20


def test_prefix_turns_are_the_parents_own_and_are_not_paid_again():
    world = Chain(ChainSetting(name="x", horizon=6, tokens=3), seed=0)
    (parent,) = world.play(world.tasks(1), 1, step=0)
    assert parent.sampled == 18
    costs = {}
    for action in (RESAMPLE, DIFFERENT, KEEP, 1):
        (fork,) = world.fork([Fork(parent, 2, action, FRESH)])
        assert all(
            one is other for one, other in zip(fork.turns[:2], parent.turns[:2], strict=True)
        )
        assert fork.num_turns == 6
        costs[action] = fork.sampled
    assert costs == {RESAMPLE: 12, DIFFERENT: 12, KEEP: 9, 1: 9}


def test_explicit_and_different_actions():
    world = Chain(ENDS, seed=4)
    episodes = world.play(world.tasks(3), 300, step=0)
    for fork in world.fork([Fork(e, 0, 2) for e in episodes]):
        assert fork.turns[0].action == 2
    forks = world.fork([Fork(e, 0, DIFFERENT) for e in episodes])
    same_start = [
        f for f in forks if f.task.id == "chain-0" and f.fork.episode.turns[0].action == 0
    ]
    actions = np.array([f.turns[0].action for f in same_start])
    assert not (actions == 0).any()
    policy = world.values.policy[0, 0]
    expected = policy[1] / (policy[1] + policy[2])
    spread = 5 * np.sqrt(expected * (1 - expected) / len(actions))
    assert abs((actions == 1).mean() - expected) < spread
    with pytest.raises(ValueError, match="`action` must be in 0..2"):
        world.fork([Fork(episodes[0], 0, 3)])


def test_control_takes_the_same_decision_as_its_twin():
    world = Chain(ENDS, seed=4)
    episodes = world.play(world.tasks(3), 30, step=0)
    twins = world.fork([Fork(e, 0, alternative=2) for e in episodes])
    controls = world.fork([Fork(e, 0, luck=FRESH, alternative=2) for e in episodes])
    assert [t.turns[0].action for t in twins] == [c.turns[0].action for c in controls]
    assert [t.outcome for t in twins] != [c.outcome for c in controls]


def test_forks_of_forks_keep_their_ancestors_turns():
    world = Chain(ChainSetting(name="x", horizon=6), seed=0)
    (parent,) = world.play(world.tasks(1), 1, step=0)
    (child,) = world.fork([Fork(parent, 1, DIFFERENT, FRESH)])
    (null,) = world.fork([Fork(child, 3, KEEP)])
    assert list(null.turns) == list(child.turns) and null.outcome == child.outcome
    (grandchild,) = world.fork([Fork(child, 3, luck=FRESH)])
    assert list(grandchild.turns[:3]) == list(child.turns[:3])
    assert grandchild.owner(0) is parent and grandchild.owner(2) is child
    assert grandchild.owner(3) is grandchild
    with pytest.raises(ValueError, match="before the parent's own fork turn"):
        Fork(child, 0)


def test_order_of_forks_is_kept_and_does_not_matter():
    world = Chain(ENDS, seed=4)
    episodes = world.play(world.tasks(3), 10, step=0)
    forks = [Fork(e, t, luck=FRESH) for e in episodes for t in range(e.num_turns)]
    forward, backward = world.fork(forks), world.fork(forks[::-1])[::-1]
    assert [f.fork for f in forward] == forks
    assert [f.outcome for f in forward] == [f.outcome for f in backward]


def test_end_reward_is_a_success():
    world = Chain(ChainSetting(name="x", horizon=4, reward="end"), seed=0)
    episodes = world.play(world.tasks(4), 30, step=0)
    assert {e.outcome for e in episodes} == {0.0, 1.0}
    assert all(e.success == (e.outcome == 1.0) for e in episodes)


def test_turns_that_do_not_matter_have_no_advantage():
    world = Chain(ChainSetting(name="x", horizon=20, density=0.25), seed=0)
    assert world.model.matters.sum() == 5
    np.testing.assert_allclose(world.values.advantage[~world.model.matters], 0, atol=1e-12)


def test_dials_are_refused_outside_their_range():
    with pytest.raises(ValueError, match="`density` must be in"):
        ChainSetting(name="x", density=0.0)
    with pytest.raises(ValueError, match="`luck` must be a multiple of 1/8"):
        ChainSetting(name="x", luck=0.3)
    with pytest.raises(ValueError, match="`actions` at least 2"):
        ChainSetting(name="x", actions=1)
    for sharpness in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="`sharpness` must be at least 0 and finite"):
            ChainSetting(name="x", sharpness=sharpness)
    with pytest.raises(UsageError, match="Unknown reward 'ends'. Did you mean 'end'"):
        ChainSetting(name="x", reward="ends")
    with pytest.raises(UsageError, match="Unknown need"):
        Chain(ENDS, seed=0).provide("predicates", [])


def test_value_need_ends_with_the_outcome():
    world = Chain(ENDS, seed=0)
    episodes = world.play(world.tasks(1), 3, step=0)
    world.provide("value", episodes)
    for episode in episodes:
        assert len(episode.info["value"]) == episode.num_turns + 1
        assert episode.info["value"][-1] == episode.outcome


def apart(model, turn, one, two, gap):
    """E[D^2] from two states (null: ended), with a difference so far, by enumerating all luck."""
    if turn == len(model.logits) or (one is None and two is None):
        return gap**2
    if one is None or two is None:
        sign, alive = (-1, two) if one is None else (1, one)
        moments = enumerate_from(model, turn, alive)
        return sum(p * (gap + sign * reward) ** 2 for p, reward in moments)
    policy = np.exp(log_policy(model))[turn]
    law = np.diag(policy[one]) if one == two else joint(policy[one], policy[two], "gumbel")
    return sum(
        law[a, b] * apart_after(model, turn, (one, two), (a, b), gap)
        for a, b in np.ndindex(law.shape)
        if law[a, b]
    )


def apart_after(model, turn, states, actions, gap):
    one, two = states
    gap = gap + model.points[turn, one, actions[0]] - model.points[turn, two, actions[1]]
    after = [model.move[turn, s, a] for s, a in zip(states, actions, strict=True)]
    chance, hazard = model.chance[turn], model.hazard[turn]
    total = 0.0
    for low, high in pieces(*chance[after]):
        paid = [float((low + high) / 2 < chance[s]) for s in after]
        own = gap + model.prize[turn] * (paid[0] - paid[1])
        for below, above in pieces(*hazard[after]):
            going = [s if (below + above) / 2 >= hazard[s] else None for s in after]
            share = (high - low) * (above - below)
            total += share * apart(model, turn + 1, *going, own)
    return total


def pieces(*cuts):
    return list(itertools.pairwise(sorted({0.0, 1.0, *map(float, cuts)})))


@pytest.mark.parametrize("reward", ["turns", "end", "coins that states set"])
def test_twin_moments_equal_enumeration(reward):
    dials = {"reward": reward} if reward in ("turns", "end") else {}
    setting = ChainSetting(name="x", horizon=3, states=3, actions=3, density=1.0, ends=0.6, **dials)
    model = build_model(setting)
    if not dials:
        chance = np.random.default_rng(0).uniform(size=model.chance.shape)
        model = dataclasses.replace(model, chance=chance)
    values = TabularValues(tables(model))
    moments = twin_moments(model)
    for turn in range(3):
        reached = values.occupancy[0, turn] / values.occupancy[0, turn].sum()
        expected = sum(
            reached[s]
            * values.policy[turn, s, a]
            * values.policy[turn, s, b]
            * apart_after(model, turn, (s, s), (a, b), 0.0)
            for s, a, b in itertools.product(range(3), range(3), range(3))
        )
        assert moments.shared[turn] == pytest.approx(expected, rel=1e-10)


def test_twin_moments_match_forks():
    setting = ChainSetting(name="x", horizon=5, states=3, density=0.8, ends=0.3)
    world = Chain(setting, seed=1)
    moments = twin_moments(world.model)
    episodes = world.play(world.tasks(1), 4000, step=0)
    for turn in (0, 2):
        reached = [e for e in episodes if e.num_turns > turn]
        for luck, exact in ((SHARED, moments.shared), (FRESH, moments.fresh)):
            forks = world.fork([Fork(e, turn, luck=luck) for e in reached])
            squares = np.array([(f.outcome - f.fork.episode.outcome) ** 2 for f in forks])
            stderr = squares.std() / np.sqrt(len(squares))
            assert abs(squares.mean() - exact[turn]) <= 4.5 * stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twice", "independent", "vine"])
def test_credit_is_unbiased_for_the_advantage_in_every_place(name):
    world = Chain(ENDS, seed=12)
    method = make(name, **({"rollouts": 2} if name == "vine" else {}))
    parts = []
    for step in range(5):
        scored = score_step(world, method, num_tasks=1000, rollouts=4, step=step)
        cells = np.zeros((scored.num_groups, *world.policy_table().shape))
        np.add.at(cells, (scored.group, *scored.place), scored.error)
        parts.append(cells.reshape(len(cells), -1))
    errors = np.concatenate(parts)
    stderr = errors.std(axis=0) / np.sqrt(len(errors))
    assert (np.abs(errors.mean(axis=0)) <= 4.5 * stderr + 1e-12).all()


def credit_errors(world, method, num_tasks, step=0, rollouts=4):
    episodes = world.play(world.tasks(num_tasks), rollouts, step)
    credits = assign(world, group_by_task(episodes, seed=world.seed, step=step), method)
    return [
        np.concatenate(
            [v - world.truth(e)[2] for e, v in zip(c.episodes, c.values, strict=True)]
        ).sum()
        for c in credits
    ]


@pytest.mark.parametrize("name", ["twice", "independent", "vine"])
def test_credit_is_unbiased_where_luck_ends_episodes(name):
    options = {"rollouts": 2} if name == "vine" else {}
    errors = np.array(credit_errors(Chain(ENDS, seed=11), make(name, **options), 200))
    assert abs(errors.mean()) < 4.5 * errors.std() / np.sqrt(len(errors))


def test_no_budget_equals_rloo_bit_for_bit():
    world = Chain(ENDS, seed=2)
    groups = group_by_task(world.play(world.tasks(20), 4, step=0), seed=2, step=0)
    plain = assign(world, groups, make("rloo"))
    budget = assign(world, groups, make("twice", budget=Budget(ratio=0.0)))
    for one, other in zip(plain, budget, strict=True):
        assert not other.info["forks"]
        for values, others in zip(one.values, other.values, strict=True):
            assert values.tobytes() == others.tobytes()


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_budget_spends_near_its_ratio(ratio):
    world, method = Chain(ENDS, seed=2), make("twice", budget=Budget(ratio=ratio))
    spent = factual = 0
    for step in range(12):
        episodes = world.play(world.tasks(12), 4, step)
        credits = assign(world, group_by_task(episodes, seed=2, step=step), method)
        method.observe(step, credits)
        if step >= 4:
            spent += sum(fork.sampled for credit in credits for fork in credit.info["forks"])
            factual += sum(episode.sampled for episode in episodes)
    assert spent / factual == pytest.approx(ratio, rel=0.25)
