import inspect
import math

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.reinforce_pp import reinforce_pp
from twinstats.episodes import Episode, Group, Task, Turn


def rewarded(rewards, *, task="t", tokens=None):
    tokens = tokens or [1] * len(rewards)
    turns = [
        Turn(0, None, None, count, "s", reward=reward)
        for count, reward in zip(tokens, rewards, strict=True)
    ]
    return Episode(Task(task), 0, 0, turns, sum(rewards), True, False)


def step(world, groups, **options):
    groups = [Group(Task(str(i)), episodes, 0, 0) for i, episodes in enumerate(groups)]
    return assign(world, groups, make("reinforce_pp", **options))


def flat(credits):
    return np.concatenate([values for credit in credits for values in credit.values])


def test_reinforce_pp_by_hand(scripted_world):
    groups = [[rewarded([1.0, 2.0])], [rewarded([0.0])]]
    # returns 3, 2 and 0: mean 5/3; squared deviations 16/9 + 1/9 + 25/9 = 42/9, over 2: 7/3
    found = flat(step(scripted_world(), groups))
    np.testing.assert_allclose(found, np.array([4, 1, -5]) / 3 / math.sqrt(7 / 3), rtol=1e-8)


def test_returns_are_discounted_by_turns(scripted_world):
    groups = [[rewarded([0.0, 0.0, 4.0])], [rewarded([0.0])]]
    # returns 1, 2, 4 and 0: mean 7/4; squared deviations (9 + 1 + 81 + 49) / 16, over 3: 35/12
    found = flat(step(scripted_world(), groups, discount=0.5))
    np.testing.assert_allclose(found, np.array([-3, 1, 9, -7]) / 4 / math.sqrt(35 / 12), rtol=1e-8)


def test_a_turn_counts_as_often_as_it_has_tokens(scripted_world):
    weighted = flat(step(scripted_world(), [[rewarded([2.0], tokens=[3]), rewarded([0.0])]]))
    # tokens 2, 2, 2, 0: mean 3/2, squared deviations 3/4 + 9/4 = 3, over 3: 1
    np.testing.assert_allclose(weighted, [0.5, -1.5], rtol=1e-7)
    repeated = [[rewarded([2.0])] * 3 + [rewarded([0.0])]]
    np.testing.assert_allclose(flat(step(scripted_world(), repeated))[2:], weighted)


def test_turns_without_tokens_are_in_no_mean(scripted_world):
    groups = [[rewarded([2.0], tokens=[3]), rewarded([0.0]), rewarded([9.0], tokens=[0])]]
    found = flat(step(scripted_world(), groups))
    np.testing.assert_allclose(found, [0.5, -1.5, 7.5], rtol=1e-7)
    groups = [[rewarded([2.0], tokens=[0]), rewarded([0.0], tokens=[0])]]
    assert flat(step(scripted_world(), groups)).tolist() == [0.0, 0.0]


def test_with_baseline_the_groups_mean_comes_off_first(scripted_world):
    groups = [[rewarded([5.0]), rewarded([3.0])], [rewarded([0.0]), rewarded([0.0])]]
    # 1, -1 and 0, 0: mean 0, squared deviations 2, over 3
    found = flat(step(scripted_world(), groups, baseline=True))
    np.testing.assert_allclose(found, np.array([1, -1, 0, 0]) / math.sqrt(2 / 3), rtol=1e-7)
    assert found[2:].tolist() == [0.0, 0.0]


def test_with_baseline_lengths_move_the_mean_of_the_step(scripted_world):
    groups = [[rewarded([0.0, 5.0]), rewarded([3.0])], [rewarded([0.0]), rewarded([0.0])]]
    # 1, 1, -1, 0, 0: mean 1/5, so that a group without signal gets less than 0
    found = flat(step(scripted_world(), groups, baseline=True))
    assert found[3] == found[4] < 0


def defaults():
    options = inspect.signature(reinforce_pp).parameters.values()
    return {option.name: option.default for option in options if option.name != "group"}


def test_the_published_defaults():
    assert defaults() == {"baseline": False, "discount": 1.0}
    assert not make("reinforce_pp").estimates_advantage
    assert not make("reinforce_pp").compares_members


@pytest.mark.parametrize("baseline", [False, True])
def test_a_step_of_equal_outcomes_has_exactly_no_signal(scripted, scripted_world, baseline):
    groups = [[scripted(0.1, (0, 1)), scripted(0.1)], [scripted(0.1)] * 3]
    assert not flat(step(scripted_world(), groups, baseline=baseline)).any()


def test_a_group_of_equal_outcomes_is_still_compared_with_the_step(scripted, scripted_world):
    found = flat(step(scripted_world(), [[scripted(1.0)] * 2, [scripted(0.0)] * 2]))
    # A11 of the case list: over the whole batch, with ddof 1
    np.testing.assert_allclose(found, np.array([1, 1, -1, -1]) * 0.866025, atol=1e-6)
    groups = [[scripted(1.0)] * 2, [scripted(0.0)] * 2]
    assert not flat(step(scripted_world(), groups, baseline=True)).any()


def test_a_failed_episode_is_null_and_in_no_mean(scripted, scripted_world):
    groups = [[scripted(1.0), scripted(None, (0, 0)), scripted(0.0)]]
    for baseline in (False, True):
        found = flat(step(scripted_world(), groups, baseline=baseline))
        expected = np.array([0.5, np.nan, np.nan, -0.5]) / math.sqrt(0.5)
        np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_a_step_of_failures_is_null(scripted, scripted_world):
    assert np.isnan(flat(step(scripted_world(), [[scripted(None)] * 2]))).all()


def test_groups_of_one_are_whitened_like_any(scripted, scripted_world):
    found = flat(step(scripted_world(), [[scripted(1.0)], [scripted(0.0)]]))
    np.testing.assert_allclose(found, [math.sqrt(0.5), -math.sqrt(0.5)], rtol=1e-7)


def test_with_baseline_a_group_of_one_is_null_and_a_step_of_them_refused(scripted, scripted_world):
    groups = [[scripted(1.0)], [scripted(1.0), scripted(0.0)]]
    credits = step(scripted_world(), groups, baseline=True)
    assert np.isnan(credits[0].values[0]).all()
    assert "needs at least 2" in credits[0].info["reason"]
    np.testing.assert_allclose(flat(credits[1:]), np.array([0.5, -0.5]) / math.sqrt(0.5), rtol=1e-7)
    with pytest.raises(ValueError, match="`baseline` of method 'reinforce_pp'.*size 1 \\(2 of"):
        step(scripted_world(), [[scripted(1.0)], [scripted(0.0)]], baseline=True)


def test_a_step_is_whitened_once(scripted, scripted_world):
    method = make("reinforce_pp")
    groups = [Group(Task("a"), [scripted(5.0, (0, 1)), scripted(1.0)], 0, 0)]
    credits = assign(scripted_world(), groups, method)
    assert credits[0].info["whitening"] == "done"
    assert method.finish(credits) is credits


def test_the_order_of_groups_and_members_changes_no_bit(scripted, scripted_world):
    rng = np.random.default_rng(0)
    groups = [[scripted(value, (0,) * int(rng.integers(1, 4))) for value in row]
              for row in rng.normal(size=(4, 3))]  # fmt: skip
    credits = step(scripted_world(), groups)
    turned = step(scripted_world(), [group[::-1] for group in groups[::-1]])
    for credit, other in zip(credits, turned[::-1], strict=True):
        for values, same in zip(credit.values, other.values[::-1], strict=True):
            assert values.tobytes() == same.tobytes()


def test_options_without_a_meaning_are_refused(scripted, scripted_world):
    with pytest.raises(ValueError, match="`discount` must be in \\[0, 1\\], got 1.5"):
        step(scripted_world(), [[scripted(1.0)]], discount=1.5)
    with pytest.raises(ValueError, match="`discount` must be 1 with `baseline`, got 0.5"):
        step(scripted_world(), [[scripted(1.0)]], discount=0.5, baseline=True)
