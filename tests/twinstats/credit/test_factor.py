import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.registry import Need
from twinstats.episodes import FRESH, RESAMPLE, Group, Task
from twinstats.errors import UsageError


def group_of(*episodes):
    return Group(Task("task"), list(episodes), 0, 0)


@pytest.fixture
def pair(gapped):
    # outcomes 1 and 0: mean .5
    return group_of(
        gapped(1.0, [[0.0, np.log(3.0)], [0.0], [0.2, 0.2]]), gapped(0.0, [[0.0]], row=1)
    )


def test_factor_by_hand(pair, given_world):
    values = {(1, 0): 0.25, (1, 1): 0.25, (2, 0): 1.0, (2, 1): 0.5}
    world = given_world(lambda fork: values[(fork.turn, fork.alternative)])
    (credit,) = assign(world, [pair], make("factor", rollouts=2))
    # V = .5 (the group's mean), .25, .75, 1 (the outcome)
    np.testing.assert_allclose(credit.values[0], [-0.25, 0.5, 0.25])
    np.testing.assert_allclose(credit.values[1], [-0.5])
    np.testing.assert_allclose(credit.weights[0][0], [0.5, 1.5])  # odds 1 : 3, mean 1
    assert [w.tolist() for w in credit.weights[0][1:]] == [[1.0], [1.0, 1.0]]
    assert len(world.calls) == 1
    assert {(f.action, f.luck, f.takes_equal_tail()) for f in world.calls[0]} == {
        (RESAMPLE, FRESH, False)
    }
    assert sorted((f.turn, f.alternative) for f in world.calls[0]) == sorted(values)


def test_the_published_default_is_vineppos_nine(pair, given_world):
    (credit,) = assign(given_world(lambda fork: 0.5), [pair], make("factor"))
    assert len(credit.info["forks"]) == 2 * 9  # the first state has the group's mean


@pytest.mark.parametrize("every", [1, 2, 3])
def test_credits_add_up_to_outcome_minus_mean(gapped, given_world, every):
    rng = np.random.default_rng(1)
    outcomes = rng.normal(size=4)
    group = group_of(*(gapped(outcomes[row], [[0.1]] * (row + 2), row=row) for row in range(4)))
    world = given_world(lambda fork: float(rng.normal()))
    (credit,) = assign(world, [group], make("factor", rollouts=1, every=every))
    np.testing.assert_allclose([v.sum() for v in credit.values], outcomes - outcomes.mean())


def test_between_checkpoints_credit_is_shared_evenly(gapped, given_world):
    group = group_of(gapped(1.0, [[0.0]] * 5), gapped(0.0, [[0.0]], row=1))
    world = given_world(lambda fork: {2: 0.9, 4: 0.7}[fork.turn])
    (credit,) = assign(world, [group], make("factor", rollouts=1, every=2))
    # .5 to .9 in two turns, .9 to .7 in two, .7 to 1 in one
    np.testing.assert_allclose(credit.values[0], [0.2, 0.2, -0.1, -0.1, 0.3])


def test_without_checkpoints_the_advantage_is_shared_evenly(pair, given_world):
    world = given_world()
    (credit,) = assign(world, [pair], make("factor", value="group"))
    np.testing.assert_allclose(credit.values[0], [0.5 / 3] * 3)
    assert world.calls == []


def test_a_critics_values_stand_between_mean_and_outcome(gapped, given_world):
    critic = {"value": [9.0, 0.25, None, 9.0]}
    group = group_of(
        gapped(1.0, [[0.0]] * 3, info=critic),
        gapped(0.0, [[0.0]], row=1, info={"value": [9.0, 9.0]}),
    )
    method = make("factor", value="value")
    assert method.needs == (Need("teacher_gap"), Need("value"))
    assert make("factor").needs == (Need("teacher_gap"),)
    (credit,) = assign(given_world(), [group], method)
    # .5, .25, unknown, 1: the last two share .75
    np.testing.assert_allclose(credit.values[0], [-0.25, 0.375, 0.375])
    assert credit.info["missing_checkpoints"] == 1


def test_a_missing_critic_is_named(pair, given_world):
    with pytest.raises(ValueError, match="'factor' needs 'value' .*which the world did not"):
        assign(given_world(), [pair], make("factor", value="value"))


def test_failed_forks_are_left_out_and_a_checkpoint_without_any_is_none(pair, given_world):
    answers = {(1, 0): None, (1, 1): None, (2, 0): None, (2, 1): 0.5}
    world = given_world(lambda fork: answers[(fork.turn, fork.alternative)])
    (credit,) = assign(world, [pair], make("factor", rollouts=2))
    np.testing.assert_allclose(credit.values[0], [0.0, 0.0, 0.5])
    assert credit.info["missing_checkpoints"] == 1


def test_a_failed_episode_and_a_group_of_one_are_not_forked(gapped, given_world):
    world = given_world(lambda fork: 0.5)
    failed = gapped(None, [[0.0]] * 3)
    groups = [
        group_of(failed, gapped(1.0, [[0.0]], row=1), gapped(0.0, [[0.0]], row=2)),
        group_of(gapped(1.0, [[0.0]] * 3, row=3)),
    ]
    first, second = assign(world, groups, make("factor"))
    assert world.calls == []
    np.testing.assert_array_equal(first.values[0], [np.nan] * 3)
    np.testing.assert_array_equal(second.values[0], [np.nan] * 3)
    assert second.info["singleton_groups"] == 1


def test_equal_outcomes_add_up_to_nothing(gapped, given_world):
    group = group_of(*(gapped(0.3, [[0.0]] * 3, row=row) for row in range(3)))
    (credit,) = assign(given_world(lambda fork: 0.8), [group], make("factor", rollouts=1))
    np.testing.assert_allclose([v.sum() for v in credit.values], 0.0, atol=1e-15)
    np.testing.assert_allclose(credit.values[0], [0.5, 0.0, -0.5])  # values differ, outcomes don't


def test_a_gap_is_missed_before_anything_is_forked(gapped, scripted, given_world):
    world = given_world(lambda fork: 0.5)
    episodes = [gapped(1.0, [[0.0]] * 3), scripted(0.0, row=1)]
    with pytest.raises(ValueError, match="needs 'teacher_gap'"):
        assign(world, [group_of(*episodes)], make("factor"))
    assert world.calls == []


def test_rollouts_estimate_the_advantage_by_enumeration(tiny, unchecked):
    """Exactly at the second turn; (n - 1) / n of it at the first, in a group of n = 2."""
    total, mass = {}, {}
    for tape in tiny.Tape():
        world = tiny.World(tape, fails=lambda fork: fork.episode.row == 1)
        world.provide = lambda need, episodes: [
            e.info.update({need: [np.zeros(t.num_tokens) for t in e.turns]}) for e in episodes
        ]
        episodes = world.play([Task("tiny")], 2, 0)
        group = Group(Task("tiny"), episodes, 3, 0)
        (credit,) = assign(world, [group], make("factor", rollouts=1))
        truth = world.truth(episodes[0])
        for turn, value, exact in zip(episodes[0].turns, credit.values[0], truth, strict=True):
            place = (turn.state, turn.action)
            expected = exact if turn.state else exact / 2
            total[place] = total.get(place, 0.0) + tape.weight * (value - expected)
            mass[place] = mass.get(place, 0.0) + tape.weight
    assert len(total) == 8
    np.testing.assert_allclose(list(total.values()), 0.0, atol=1e-12)


def test_an_action_mean_surrogate_is_the_credit_whatever_the_length(gapped, given_world):
    rng = np.random.default_rng(0)
    gaps = [rng.normal(size=length) for length in (1, 3, 11)]
    group = group_of(gapped(1.0, gaps), gapped(0.0, [[0.0]], row=1))
    (credit,) = assign(given_world(), [group], make("factor", value="group"))
    inner = [(c * w).mean() for c, w in zip(credit.values[0], credit.weights[0], strict=True)]
    np.testing.assert_allclose(inner, credit.values[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollouts": 0}, "`rollouts` must be at least 1, got 0"),
        ({"every": 0}, "`every` must be at least 1, got 0"),
        ({"temperature": -1.0}, "`temperature` must be positive"),
        ({"low": 1.5}, "`low` and `high` must hold 0 <= low <= 1 <= high, got 1.5, 5.0"),
        ({"high": 0.5}, "`low` and `high`"),
    ],
)
def test_options_out_of_range_are_refused(pair, options, message):
    with pytest.raises(ValueError, match=message):
        make("factor", **options)(pair)


def test_an_unknown_value_is_refused(pair, unchecked):
    with pytest.raises(UsageError, match="Unknown value 'rollout'. Did you mean 'rollouts'"):
        make("factor", value="rollout")(pair)
