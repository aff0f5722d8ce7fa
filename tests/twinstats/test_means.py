import numpy as np
import pytest
from scipy import stats

from twinstats.means import mean_interval


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_it_is_the_t_interval_of_scipy(confidence):
    values = np.random.default_rng(0).normal(size=7)
    expected = stats.t.interval(confidence, 6, values.mean(), stats.sem(values))
    assert mean_interval(values, confidence) == pytest.approx(expected)


def test_fewer_than_two_values_have_none_and_equal_ones_a_width_of_0():
    assert mean_interval([]) is mean_interval([1.0]) is None
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0)
