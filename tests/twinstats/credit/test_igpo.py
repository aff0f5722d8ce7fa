import inspect
import math

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.igpo import igpo
from twinstats.episodes import Episode, Group, Task, Turn

NAN = math.nan


def searched(outcome, chances, num_turns=None):
    """An episode before whose turns the gold answer had these chances."""
    turns = [Turn(0, None, None, 1, "s")] * (num_turns or len(chances) - 1)
    info = {} if chances is None else {"gold_logprob": np.log(chances)}
    return Episode(Task("t"), 0, 0, turns, outcome, True, False, info=info)


def credit_of(*episodes, **options):
    return igpo(Group(Task("t"), list(episodes), 0, 0), **options)


def values_of(*episodes, **options):
    return np.concatenate(credit_of(*episodes, **({"epsilon": 0.0} | options)).values)


def two():
    """Rewards .25, 1 and -.25, 0: gains of the gold answer's chance, then the outcome."""
    return searched(1.0, [0.25, 0.5, 0.75]), searched(0.0, [0.5, 0.25, 0.25])


def test_igpo_by_hand():
    # mean 1/4; deviations 0, 3/4, -1/2, -1/4; squares 14/16, over 3: 7/24; then sums from the end
    found = values_of(*two())
    expected = np.array([0.75, 0.75, -0.75, -0.25]) / math.sqrt(7 / 24)
    np.testing.assert_allclose(found, expected)


def test_the_sum_is_discounted_by_turns():
    found = values_of(*two(), discount=0.5)
    expected = np.array([0.375, 0.75, -0.625, -0.25]) / math.sqrt(7 / 24)
    np.testing.assert_allclose(found, expected)


def test_gains_and_outcomes_apart():
    # gains +-1/4 and outcomes 1, 0 are both one of two: +-.707
    found = values_of(*two(), pooling="separate")
    np.testing.assert_allclose(found, np.array([2, 1, -2, -1]) * math.sqrt(0.5))


def test_turns_of_one_index_together():
    found = values_of(*two(), pooling="turn", ddof=0, discount=0.5)
    np.testing.assert_allclose(found, [1.5, 1.0, -1.5, -1.0])
    longer = searched(1.0, [0.25, 0.5, 0.75, 0.75])
    # index 0: .25 and -.25, index 1: .25 and 0, index 2 alone: 0
    found = values_of(longer, two()[1], pooling="turn", ddof=0, discount=0.0)
    np.testing.assert_allclose(found, [1.0, 1.0, 0.0, -1.0, -1.0])


def test_discounting_first_changes_the_scale():
    # sums .75, 1 and -.25, 0: mean 3/8; deviations 3/8, 5/8, -5/8, -3/8; squares 68/64, over 3
    found = values_of(*two(), discount=0.5, discount_first=True)
    np.testing.assert_allclose(found, np.array([3, 5, -5, -3]) / 8 / math.sqrt(68 / 192))


def test_the_published_defaults():
    options = inspect.signature(igpo).parameters
    assert {name: option.default for name, option in options.items() if name != "group"} == {
        "discount": 1.0,
        "pooling": "joint",
        "discount_first": False,
        "ddof": 1,
        "epsilon": 1e-6,
    }
    method = make("igpo")
    assert [need.name for need in method.needs] == ["gold_logprob"]
    assert method.compares_members
    assert not method.estimates_advantage


@pytest.mark.parametrize("pooling", ["joint", "separate", "turn"])
def test_episodes_of_one_turn_are_grpos(scripted_world, pooling):
    class Given(type(scripted_world())):
        def provide(self, need, episodes):
            assert all(need in episode.info for episode in episodes)

    episodes = [searched(outcome, [0.5, 0.1]) for outcome in (0.3, 1.0, 0.0)]
    group = Group(Task("t"), episodes, 0, 0)
    (credit,) = assign(Given(), [group], make("igpo", pooling=pooling))
    (plain,) = assign(scripted_world(), [group], make("grpo"))
    assert np.concatenate(credit.values).tobytes() == np.concatenate(plain.values).tobytes()


@pytest.mark.parametrize("pooling", ["joint", "separate", "turn"])
def test_equal_rewards_give_exactly_nothing(pooling):
    # chances .25 and .5 are exact, and so is a gain of .25; joint wants the outcome equal as well
    assert not values_of(*[searched(0.25, [0.25, 0.5, 0.1])] * 3, pooling=pooling).any()


def test_equal_outcomes_leave_the_gains():
    found = values_of(searched(0.0, [0.25, 0.5, 0.1]), searched(0.0, [0.5, 0.5, 0.1]))
    assert found[0] > found[2] and found[1] == found[3] < 0
    found = values_of(
        searched(0.0, [0.25, 0.5, 0.1]), searched(0.0, [0.5, 0.5, 0.1]), pooling="separate"
    )
    np.testing.assert_allclose(found, np.array([1, 0, -1, 0]) * math.sqrt(0.5))


def test_the_only_gain_of_a_group_is_nothing_to_compare():
    found = values_of(searched(1.0, [0.2, 0.5, 0.1]), searched(0.0, [0.5, 0.1]), pooling="separate")
    np.testing.assert_allclose(found, np.array([1, 1, -1]) * math.sqrt(0.5))


@pytest.mark.parametrize("pooling", ["joint", "separate", "turn"])
def test_a_failed_episode_is_null_and_in_no_mean(pooling):
    first, second = two()
    failed = searched(None, [0.1, 0.9, 0.9])
    found = values_of(first, failed, second, pooling=pooling)
    expected = values_of(first, second, pooling=pooling)
    np.testing.assert_array_equal(found, [*expected[:2], NAN, NAN, *expected[2:]])
    empty = Episode(Task("t"), 0, 0, [], None, False, False, info={"gold_logprob": [-1.0]})
    credit = credit_of(first, second, empty, pooling=pooling)
    assert [len(values) for values in credit.values] == [2, 2, 0]


def test_too_few_scored_episodes():
    alone = credit_of(two()[0])
    assert np.isnan(alone.values[0]).all()
    assert "needs at least 2" in alone.info["reason"]
    found = values_of(two()[0], searched(None, [0.1, 0.9]))
    np.testing.assert_array_equal(found, [0.0, 0.0, NAN])


def test_the_order_of_a_group_changes_no_bit():
    rng = np.random.default_rng(0)
    episodes = [searched(float(rng.normal()), rng.random(4)) for _ in range(5)]
    for pooling in ("joint", "separate", "turn"):
        values = credit_of(*episodes, pooling=pooling).values
        turned = credit_of(*episodes[::-1], pooling=pooling).values[::-1]
        assert [own.tobytes() for own in values] == [own.tobytes() for own in turned]


def test_what_is_missing_or_wrong_is_named(unchecked):
    with pytest.raises(ValueError, match="Method 'igpo' needs 'gold_logprob' \\(the mean log-prob"):
        credit_of(searched(1.0, None, num_turns=1))
    with pytest.raises(ValueError, match="must have 4 entries \\(3 turns\\), got 2"):
        credit_of(searched(1.0, [0.1, 0.2], num_turns=3))
    with pytest.raises(ValueError, match="Unknown pooling 'joined'. Did you mean 'joint'"):
        credit_of(*two(), pooling="joined")
    with pytest.raises(ValueError, match="`discount` must be in \\[0, 1\\], got 2"):
        credit_of(*two(), discount=2.0)
    with pytest.raises(ValueError, match="`ddof` must be 0 or 1, got 2"):
        credit_of(*two(), ddof=2)
