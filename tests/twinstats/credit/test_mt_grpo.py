import inspect
import math

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.mt_grpo import mt_grpo
from twinstats.episodes import Episode, Group, Task, Turn

NAN = math.nan
HALF = math.sqrt(0.5)  # (1 - 1/2) / sqrt(1/2): one of two standardised members


def rewarded(outcome, rewards, num_turns=None):
    turns = [Turn(0, None, None, 1, "s")] * (num_turns or len(rewards or [0]))
    info = {} if rewards is None else {"turn_reward": rewards}
    return Episode(Task("t"), 0, 0, turns, outcome, True, False, info=info)


def credit_of(*episodes, **options):
    return mt_grpo(Group(Task("t"), list(episodes), 0, 0), **options)


def values_of(*episodes, **options):
    return np.concatenate(credit_of(*episodes, **({"epsilon": 0.0} | options)).values)


def test_mt_grpo_by_hand():
    # outcome 1, 0: +-.707; turn 0: 2, 4: -+.707, weighed 2; before the last turn half the outcome
    found = values_of(
        rewarded(1.0, [2.0, 9.0]), rewarded(0.0, [4.0, -9.0]), turn_weight=2.0, outcome_weight=0.5
    )
    np.testing.assert_allclose(found, np.array([-2 + 0.5, 1, 2 - 0.5, -1]) * HALF)


def test_turns_are_compared_by_index_and_a_last_turn_with_none():
    first, second = rewarded(1.0, [0.0, 5.0, 0.0]), rewarded(1.0, [4.0, 1.0])
    # equal outcomes; turn 0: 0 against 4; turn 1 is the last of the second, so alone: 0
    np.testing.assert_allclose(values_of(first, second), [-HALF, 0, 0, HALF, 0])


def test_the_published_defaults():
    options = inspect.signature(mt_grpo).parameters
    assert {name: option.default for name, option in options.items() if name != "group"} == {
        "turn_weight": 1.0,
        "outcome_weight": 1.0,
        "ddof": 1,
        "epsilon": 1e-4,
    }
    method = make("mt_grpo")
    assert [need.name for need in method.needs] == ["turn_reward"]
    assert method.compares_members
    assert not method.estimates_advantage


def test_without_turn_rewards_in_it_it_is_grpo(scripted_world):
    class Given(type(scripted_world())):
        def provide(self, need, episodes):
            for episode in episodes:
                episode.info[need] = [0.3] * episode.num_turns

    episodes = [rewarded(r, None, num_turns=2 + i) for i, r in enumerate((0.2, 1.0, 0.0))]
    group = Group(Task("t"), episodes, 0, 0)
    (credit,) = assign(Given(), [group], make("mt_grpo", turn_weight=0.0, epsilon=1e-6))
    (plain,) = assign(scripted_world(), [group], make("grpo"))
    for values, expected in zip(credit.values, plain.values, strict=True):
        assert values.tobytes() == expected.tobytes()
    # equal turn rewards have no part in it either
    (equal,) = assign(Given(), [group], make("mt_grpo", epsilon=1e-6))
    np.testing.assert_array_equal(np.concatenate(equal.values), np.concatenate(plain.values))


def test_equal_outcomes_leave_the_turn_rewards_and_equal_both_nothing():
    found = values_of(rewarded(0.3, [1.0, 0.0]), rewarded(0.3, [0.0, 0.0]))
    np.testing.assert_allclose(found, [HALF, 0, -HALF, 0])
    assert not values_of(*[rewarded(0.3, [0.1, 0.1, 0.1])] * 3).any()


def test_a_failed_episode_is_null_and_in_no_mean():
    found = values_of(
        rewarded(1.0, [1.0, 0.0]), rewarded(None, [50.0, NAN]), rewarded(0.0, [0.0] * 2)
    )
    np.testing.assert_allclose(found, np.array([2, 1, NAN, NAN, -2, -1]) * HALF)


def test_too_few_scored_episodes():
    alone = credit_of(rewarded(1.0, [1.0, 0.0]))
    assert np.isnan(alone.values[0]).all()
    assert "needs at least 2" in alone.info["reason"]
    found = values_of(rewarded(1.0, [1.0, 0.0]), rewarded(None, [1.0]))
    np.testing.assert_array_equal(found, [0.0, 0.0, NAN])


def test_what_is_missing_or_wrong_is_named():
    with pytest.raises(ValueError, match="Method 'mt_grpo' needs 'turn_reward' \\(a reward for ea"):
        credit_of(rewarded(1.0, None))
    with pytest.raises(ValueError, match="'turn_reward' of episode 0/0 must have 3 entries"):
        credit_of(rewarded(1.0, [1.0, 0.0], num_turns=3))
    with pytest.raises(ValueError, match="`turn_weight` must be at least 0 and finite, got -1"):
        credit_of(rewarded(1.0, [0.0]), turn_weight=-1.0)
    with pytest.raises(ValueError, match="`ddof` must be 0 or 1, got 2"):
        credit_of(rewarded(1.0, [0.0]), ddof=2)
