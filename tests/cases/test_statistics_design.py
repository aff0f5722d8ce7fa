"""Faults of others around planning and fitting, rows of CASES.md: each must not happen here."""

import math

import numpy as np
import pytest

from twinstats.allocation import sqrt_allocation
from twinstats.complexity import fit_exponent
from twinstats.power import detectable_effect, paired_power, pairs_needed, round_up

TESTS = ("exact", "midp", "connor", "wald", "t")


@pytest.mark.parametrize("test", ["wald", "t", "exact"])
def test_s01_the_wrong_tail_has_no_number_of_pairs(test):
    with pytest.raises(ValueError, match="no n exists"):
        pairs_needed(0.5, sd=1.0, alternative="less", test=test)
    with pytest.raises(ValueError, match="no n exists"):
        pairs_needed(-0.5, sd=1.0, alternative="greater", test=test)
    assert pairs_needed(-0.5, sd=1.0, alternative="less", test=test) > 0


@pytest.mark.parametrize("test", TESTS)
def test_s02_effect_zero_is_an_error_and_answers_are_python_numbers(test):
    with pytest.raises(ValueError, match="`effect` must be different from 0.* no n exists"):
        pairs_needed(0.0, discordance=0.3, test=test)
    assert type(pairs_needed(0.2, discordance=0.3, test=test)) is int
    assert type(paired_power(0.2, 40, discordance=0.3, test=test)) is float
    assert type(detectable_effect(40, discordance=0.3, test=test)) is float


@pytest.mark.parametrize(
    ("variance", "budget", "expected"),
    [
        ([1, 1, 1], 10, [4, 3, 3]),
        ([1] * 5, 8, [2, 2, 2, 1, 1]),
        # shares sqrt(v / c) of v = (.25, .09, .01, 0), c = (1, 4, 1, 1), by number of items
        ([0.25, 0.09 / 4, 0.01, 0], 20, [13, 4, 3, 0]),
    ],
)
def test_s22_whole_numbers_spend_the_budget_exactly(variance, budget, expected):
    found = sqrt_allocation(variance, 1, budget=budget, integer=True)
    assert found.counts.tolist() == expected
    assert found.counts.sum() == found.spent == budget


def test_s22_cost_constrained_allocation():
    variance, cost = np.array([0.25, 0.09, 0.01, 0.0]), np.array([1, 4, 1, 1])
    found = sqrt_allocation(variance, cost, budget=20)
    np.testing.assert_allclose(found.counts, [25 / 3, 2.5, 5 / 3, 0])
    assert found.spent == pytest.approx(20) and found.value == pytest.approx(0.072)
    uniform = 20 / cost.sum()
    assert (variance / uniform).sum() == pytest.approx(0.1225)
    floor = sqrt_allocation(variance, cost, budget=20, integer=True, minimum=1)
    assert floor.counts[3] == 1 and floor.spent <= 20


def test_s23_a_hair_above_an_integer_does_not_add_one():
    assert round_up(0.07 * 100) == 7 != math.ceil(0.07 * 100)
    assert round_up(1.1 * 10) == 11
    assert round_up(31.3955) == 32
    assert pairs_needed(0.5, sd=1.0, test="wald") == 32
    assert pairs_needed(0.2, discordance=0.3, cluster_size=2, icc=0.1) == round_up(61 * 1.1)
    whole = sqrt_allocation([1.0], 1, target_stderr=math.sqrt(1 / 7), integer=True)
    assert whole.counts.tolist() == [7]


@pytest.mark.parametrize(("power", "scale"), [(-2.0, 4.0), (-1.0, 2.0)])
def test_l12_a_row_of_zero_pairs_is_left_out_and_reported(power, scale):
    effects = np.array([0.4, 0.2, 0.1, 0.05, 0.025])
    pairs = scale * effects**power
    pairs[-1] = 0
    fit = fit_exponent(effects, pairs)
    assert fit.slope == pytest.approx(power, abs=1e-12)
    assert fit.num_excluded == 1 and any("1 rows" in warning for warning in fit.warnings)
    assert fit.slope != pytest.approx(8.5014, abs=1)


def test_l12_fewer_than_three_points_are_undefined():
    fit = fit_exponent([0.4, 0.2, 0.1], [25, 100, 0])
    assert fit.slope is None and fit.num_excluded == 1
    assert fit.to_dict()["slope"] is None and fit.warnings
