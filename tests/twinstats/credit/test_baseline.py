import math

import numpy as np
import pytest

from twinstats.credit.baseline import (
    broadcast,
    centred,
    group_info,
    leave_one_out,
    outcomes,
    standardised,
    standardised_by_index,
    standardised_turns,
    uncomparable,
)
from twinstats.episodes import Group, Task

NAN = math.nan


def naive_leave_one_out(values):
    result = []
    for index, value in enumerate(values):
        others = [v for i, v in enumerate(values) if i != index and not math.isnan(v)]
        mean = sum(others) / len(others) if others else NAN
        result.append(value - mean)
    return result


def test_leave_one_out_is_each_minus_the_mean_of_the_others():
    rng = np.random.default_rng(0)
    for size in (2, 3, 8):
        values = rng.normal(size=size)
        values[rng.random(size) < 0.2] = NAN
        np.testing.assert_allclose(leave_one_out(values), naive_leave_one_out(values), atol=1e-12)


def test_standardised_is_the_textbook_formula():
    values = np.random.default_rng(1).normal(size=7)
    for ddof in (0, 1):
        expected = (values - values.mean()) / (values.std(ddof=ddof) + 1e-3)
        np.testing.assert_allclose(standardised(values, ddof=ddof, epsilon=1e-3), expected)


@pytest.mark.parametrize("function", [leave_one_out, centred, standardised])
@pytest.mark.parametrize("value", [0.1, 0.2, 0.3, 1e300, -7.7])
@pytest.mark.parametrize("size", [2, 3, 6, 7])
def test_equal_outcomes_have_no_advantage_at_all(function, value, size):
    assert function(np.full(size, value)).tolist() == [0.0] * size


@pytest.mark.parametrize("function", [leave_one_out, centred, standardised])
def test_the_order_of_a_group_changes_no_bit(function):
    rng = np.random.default_rng(2)
    for _ in range(50):
        values = rng.normal(size=9) * 10.0 ** rng.integers(-8, 8, 9)
        values[rng.integers(9)] = NAN
        order = rng.permutation(9)
        np.testing.assert_array_equal(function(values)[order], function(values[order]))


def test_centred_is_each_minus_the_mean():
    values = np.array([3.0, NAN, 1.0, 0.5])
    np.testing.assert_array_equal(centred(values), values - 1.5)
    np.testing.assert_allclose(centred(values), leave_one_out(values) * 2 / 3)


def test_turns_are_standardised_together_and_by_index():
    turns = [np.array([1.0, 5.0]), np.array([]), np.array([3.0, NAN, 9.0])]
    together = standardised(np.array([1.0, 5.0, 3.0, NAN, 9.0]))
    found = standardised_turns(turns)
    assert [len(own) for own in found] == [2, 0, 3]
    np.testing.assert_array_equal(np.concatenate(found), together)
    found = standardised_by_index(turns, epsilon=0.0)
    half = math.sqrt(0.5)
    np.testing.assert_allclose(np.concatenate(found), [-half, 0.0, half, NAN, 0.0])
    assert [len(own) for own in found] == [2, 0, 3]
    assert standardised_by_index([]) == []


def test_a_turn_that_is_alone_among_several_episodes_has_no_signal():
    for function in (standardised_turns, standardised_by_index):
        np.testing.assert_array_equal(function([np.array([0.7]), np.array([])])[0], [0.0])
        np.testing.assert_array_equal(function([np.array([0.7])])[0], [NAN])


def test_a_group_with_nothing_to_compare_has_its_credit_at_once(scripted):
    def found(*values):
        return uncomparable(Group(Task("t"), [scripted(value) for value in values], 0, 0))

    assert found(1.0, None, 1.0) is None
    np.testing.assert_array_equal(np.concatenate(found(1.0, None).values), [0.0, NAN])
    assert np.isnan(found(1.0).values[0]).all()
    assert "needs at least 2" in found(1.0).info["reason"]


def test_too_few_scored_members_have_no_baseline():
    np.testing.assert_array_equal(leave_one_out(np.array([0.7])), [NAN])
    np.testing.assert_array_equal(leave_one_out(np.array([NAN, 0.7])), [NAN, NAN])
    for function in (centred, standardised):
        np.testing.assert_array_equal(function(np.array([0.7])), [NAN])
        np.testing.assert_array_equal(function(np.array([0.7, NAN])), [0.0, NAN])
    for function in (leave_one_out, centred, standardised):
        assert function(np.array([])).tolist() == []
        np.testing.assert_array_equal(function(np.full(3, NAN)), [NAN] * 3)


def test_outcomes_are_floats_with_nan_for_failed(scripted):
    episodes = [scripted(1.0), scripted(None), scripted(0.5)]
    np.testing.assert_array_equal(outcomes(episodes), [1.0, NAN, 0.5])
    assert outcomes([]).dtype == np.float64


def test_broadcast_gives_every_turn_the_episodes_number(scripted):
    group = Group(Task("t"), [scripted(1.0, (0, 1)), scripted(0.0, (0, 1, 2))], 0, 0)
    credit = broadcast(group, np.array([0.5, NAN]))
    np.testing.assert_array_equal(credit.values[0], [0.5, 0.5])
    np.testing.assert_array_equal(credit.values[1], [NAN] * 3)


@pytest.mark.parametrize(
    ("values", "unscored", "singleton", "zero_variance", "has_reason"),
    [
        ([1.0, 0.0], 0, 0, False, False),
        ([1.0, 1.0, None], 1, 0, True, False),
        ([1.0], 0, 1, False, True),
        ([1.0, None, None], 2, 1, False, True),
        ([None, None], 2, 0, False, True),
        ([], 0, 0, False, True),
    ],
)
def test_a_group_says_how_informative_it_is(
    scripted, values, unscored, singleton, zero_variance, has_reason
):
    info = group_info(Group(Task("t"), [scripted(value) for value in values], 0, 0))
    assert (info["unscored"], info["singleton_groups"]) == (unscored, singleton)
    assert info["zero_variance"] is zero_variance
    assert ("reason" in info) == has_reason
