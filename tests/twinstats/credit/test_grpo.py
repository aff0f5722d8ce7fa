import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.grpo import grpo
from twinstats.episodes import Episode, Group, Task, Turn


def test_grpo_by_hand(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1)), scripted(0.0), scripted(0.0)], 0, 0)
    (credit,) = assign(scripted_world(), [group], make("grpo", epsilon=0.0))
    # mean 1/3, squared deviations 4/9 + 1/9 + 1/9 = 2/3, over n - 1 = 2: 1/3
    expected = (2 / 3) / np.sqrt(1 / 3)
    np.testing.assert_allclose(credit.values[0], [expected, expected])
    np.testing.assert_allclose(np.concatenate(credit.values[1:]), [-expected / 2] * 2)


@pytest.mark.parametrize(("ddof", "expected"), [(1, 1 / np.sqrt(2)), (0, 1.0)])
def test_ddof_is_the_callers(scripted, scripted_world, ddof, expected):
    group = Group(Task("t"), [scripted(4.0), scripted(2.0)], 0, 0)
    (credit,) = assign(scripted_world(), [group], make("grpo", ddof=ddof, epsilon=0.0))
    np.testing.assert_allclose(np.concatenate(credit.values), [expected, -expected])


def test_epsilon_is_added_to_the_standard_deviation(scripted, scripted_world):
    group = Group(Task("t"), [scripted(4.0), scripted(2.0)], 0, 0)
    (credit,) = assign(scripted_world(), [group], make("grpo", ddof=0, epsilon=1.0))
    np.testing.assert_allclose(np.concatenate(credit.values), [0.5, -0.5])


def test_the_scale_is_not_the_advantages():
    assert not make("grpo").estimates_advantage
    assert make("rloo").estimates_advantage


def rewarded(*rewards):
    turns = [Turn(0, None, None, 1, "s", reward=reward) for reward in rewards]
    return Episode(Task("t"), 0, 0, turns, sum(rewards), True, False)


def process(*episodes, **options):
    return grpo(Group(Task("t"), list(episodes), 0, 0), process=True, **options)


def test_process_credit_by_hand():
    # rewards 3, 1 and 0, 0: mean 1; deviations 2, 0, -1, -1; squares 6, over 3: 2; sums from behind
    credit = process(rewarded(3.0, 1.0), rewarded(0.0, 0.0), epsilon=0.0)
    found = np.concatenate(credit.values)
    np.testing.assert_allclose(found, np.array([2, 0, -2, -1]) / np.sqrt(2))


def test_process_credit_of_single_turns_is_that_of_outcomes(scripted, scripted_world):
    group = Group(Task("t"), [scripted(r) for r in (0.3, 1.0, 0.0)], 0, 0)
    found, plain = (
        np.concatenate(assign(scripted_world(), [group], make("grpo", process=on))[0].values)
        for on in (True, False)
    )
    assert found.tobytes() == plain.tobytes()


def test_process_credit_has_the_edge_cases_of_the_outcomes(scripted):
    assert not np.concatenate(process(*[rewarded(0.1, 0.1)] * 3).values).any()
    found = process(rewarded(3.0, 1.0), scripted(None, (0, 0)), rewarded(0.0, 0.0), epsilon=0.0)
    np.testing.assert_array_equal(found.values[1], [np.nan, np.nan])
    np.testing.assert_allclose(found.values[2], np.array([-2, -1]) / np.sqrt(2))
    alone = process(rewarded(3.0, 1.0))
    assert np.isnan(alone.values[0]).all()
    assert "needs at least 2" in alone.info["reason"]
    assert process(rewarded(3.0, 1.0), scripted(None)).values[0].tolist() == [0.0, 0.0]


def test_a_scale_without_a_meaning_is_refused():
    with pytest.raises(ValueError, match="`ddof` must be 0 or 1, got 2"):
        process(rewarded(1.0), ddof=2)
    with pytest.raises(ValueError, match="`epsilon` must be at least 0 and finite, got -1"):
        process(rewarded(1.0), epsilon=-1.0)
