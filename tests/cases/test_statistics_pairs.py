"""Section S of CASES.md, as far as it touches `paired` and `variance_account`."""

import json

import numpy as np
import pytest

from twinstats._paired_tests import signflip_pvalue
from twinstats.pairs import paired
from twinstats.variance import variance_account


def is_flagged(result, word):
    return any(word in text for text in result.warnings)


@pytest.mark.parametrize("test", ["auto", "exact", "midp", "tango", "t", "signflip"])
@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_s09_no_discordant_pair_has_p_one_from_every_method(test, alternative):
    outcomes = [1, 0, 1, 1, 0]
    result = paired(outcomes, outcomes, test=test, alternative=alternative)
    assert result.pvalue == 1.0
    assert is_flagged(result, "degenerate")


@pytest.mark.parametrize("cluster", [None, [0, 0, 1, 1, 2]])
def test_s09_no_discordant_pair_in_clusters(cluster):
    result = paired([1, 0, 1, 1, 0], [1, 0, 1, 1, 0], cluster=cluster)
    assert result.pvalue == 1.0 and is_flagged(result, "degenerate")


def test_s10_twins_that_all_agree_have_no_p_and_no_nan():
    outcomes = [0.25, 0.5, 0.125, 0.75]
    result = paired(outcomes, outcomes)
    assert (result.estimate, result.stderr, result.pvalue) == (0.0, 0.0, None)
    assert is_flagged(result, "zero_variance")
    assert "nan" not in str(result) and "undefined" in str(result)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["pvalue"] is None


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_s11_constant_difference_is_told_from_rounding(dtype):
    result = paired(np.array([4.33, 4.39], dtype), np.array([4.28, 4.34], dtype))
    assert (result.num_pairs, result.stderr, result.pvalue) == (2, 0.0, None)
    assert is_flagged(result, "zero_variance")
    account = variance_account(np.array([4.33, 4.39], dtype), np.array([4.28, 4.34], dtype))
    assert account.variance_paired == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_s11_any_constant_difference(seed):
    rng = np.random.default_rng(seed)
    factual = rng.uniform(-10, 10, 20).round(2)
    result = paired(factual, factual - 0.07)
    assert result.pvalue is None and is_flagged(result, "zero_variance")


def test_s13_identical_series_are_never_significant():
    outcomes = [1.5, 2.5, 3.5, 4.5, 5.5]
    for test in ("auto", "t", "signflip"):
        assert paired(outcomes, outcomes, test=test).pvalue in (None, 1.0)


def test_s13_nan_is_a_failed_pair_and_does_not_lower_p():
    whole = paired([1, 2, 3], [0, 0, 0], test="signflip")
    more = paired([1, 2, 3, float("nan")], [0, 0, 0, 0], test="signflip")
    assert whole.pvalue == more.pvalue == 0.25
    assert (more.num_pairs, more.num_missing) == (3, 1)


@pytest.mark.parametrize("method", ["auto", "t", "bca"])
def test_s14_interval_of_equal_data_is_a_point_without_significance(method):
    result = paired([10000.0] * 35, [0.0] * 35)
    ends = result.confidence_interval(method=method)
    assert ends == (10000.0, 10000.0) and all(type(end) is float for end in ends)
    assert result.pvalue is None and is_flagged(result, "degenerate")


def test_s15_constant_outcome_has_no_rho_and_a_variance_ratio():
    account = variance_account([1, 1, 1, 1], [0, 1, 0, 1])
    assert account.rho is None
    assert account.variance_paired / account.variance_independent == 1.0
    assert account.rho_eff == 0.0
    assert is_flagged(account, "constant_outcome")
    result = paired([1, 1, 1, 1], [0, 1, 0, 1])
    assert (result.rho, result.rho_eff) == (None, 0.0)


def test_s15_constant_columns_do_not_drop_the_others():
    factual = np.array([0, 1, 0, 1])
    columns = np.array([[1, 1, 1, 0], [1, 1, 0, 1], [1, 1, 1, 0], [1, 1, 0, 1]])
    found = [paired(factual, column).rho for column in columns.T]
    assert found[:2] == [None, None]
    assert found[2:] == pytest.approx([-1.0, 1.0])


def test_s16_float32_outcomes_are_added_in_float64():
    outcomes = np.full(1_000_000, 0.1, np.float32)
    result = paired(outcomes, np.zeros(1_000_000, np.float32))
    assert result.estimate == pytest.approx(float(np.float32(0.1)), rel=1e-14)


@pytest.mark.slow
def test_s16_mean_of_twenty_million_ones():
    outcomes = np.ones((20_000_000, 2), np.float32)
    assert paired(outcomes[:, 0], outcomes[:, 1] - 1, weights=outcomes[:, 0]).estimate == 1.0


def test_s17_constant_float32_columns_do_not_vary():
    rows = np.tile(np.array([100, -100], np.float32), (1_000_000, 1))
    account = variance_account(rows[:, 0], rows[:, 1])
    assert (account.variance_factual, account.variance_twin, account.variance_paired) == (0, 0, 0)
    assert account.effect == 200.0


def test_s17_constant_float32_that_is_no_whole_number():
    account = variance_account(np.full(999, 0.1, np.float32), np.full(999, 0.3, np.float32))
    assert (account.variance_factual, account.variance_twin, account.variance_paired) == (0, 0, 0)


def test_s18_enumerated_flips_need_no_correction_and_random_ones_have_it():
    assert paired([1] * 5, [0] * 5, test="signflip").pvalue == 2 / 32
    assert paired([0.5, 1.5, 2.5, 1.0, 2.0], [0] * 5, test="signflip").pvalue == 2 / 32
    extreme = signflip_pvalue(np.arange(1.0, 61.0), "two-sided")
    assert extreme == 1 / 10_000


def test_s19_resampling_has_width():
    factual = [1, 9]
    low, high = paired(factual, [0, 0]).confidence_interval(method="bca")
    assert {low, high} <= {1.0, 5.0, 9.0} and low < high
    account = variance_account(np.arange(1.0, 8.0), np.zeros(7))
    low, high = account.intervals["variance_paired"]
    assert low < account.variance_paired * 6 / 7 < high


def test_s20_rollouts_of_one_question_are_one_cluster():
    factual = np.repeat([1, 0], 250)
    question = np.repeat(np.arange(10), 50)
    result = paired(factual, np.zeros(500), cluster=question)
    assert result.num_clusters == 10
    assert result.stderr == pytest.approx(0.5 / 3, rel=1e-12)
    assert paired(factual, np.zeros(500)).stderr == pytest.approx(0.022361, abs=5e-5)


def test_l01_results_are_strict_json_with_reasons():
    for result in (paired([1], [1]), variance_account([1], [1]), paired([None], [1.5])):
        found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert None in found.values() and found["warnings"]
