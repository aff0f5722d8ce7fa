import json
import math
from itertools import product

import numpy as np
import pytest

from twinstats.pairs import paired
from twinstats.variance import variance_account


def cells(a, b, c, d):
    """Binary pairs: a both 1, b (1, 0), c (0, 1), d both 0."""
    return [1] * (a + b) + [0] * (c + d), [1] * a + [0] * b + [1] * c + [0] * d


def coupled(n, seed=1):
    rng = np.random.default_rng(seed)
    luck, fresh = rng.normal(size=n), rng.normal(size=n)
    own = 0.3 * rng.normal(size=(3, n))
    return luck + own[0], 0.8 * luck + own[1], 0.8 * fresh + own[2]


# --- exact identities -------------------------------------------------------------------------


@pytest.mark.parametrize("data", [cells(20, 12, 2, 16), coupled(40)[:2]])
def test_paired_variance_is_one_minus_rho_eff_of_the_independent(data):
    account = variance_account(*data)
    independent = account.variance_factual + account.variance_twin
    assert account.variance_independent == pytest.approx(independent, rel=1e-12)
    assert account.variance_paired == pytest.approx((1 - account.rho_eff) * independent, rel=1e-12)
    assert account.variance_paired == pytest.approx(independent - 2 * account.covariance, rel=1e-11)
    ratio = math.sqrt(account.variance_factual * account.variance_twin) / (independent / 2)
    assert account.rho_eff == pytest.approx(account.rho * ratio, rel=1e-11)


@pytest.mark.parametrize("n", [10, 100])
def test_the_largest_variance_of_a_coin_is_inside_its_interval(n):
    """Draws of p (1 - p) all lie below the estimate at p = 1/2, unless they are unbiased too."""
    account = variance_account([0, 1] * (n // 2), [0, 0, 1, 1] * (n // 4) + [0, 1] * (n % 4 // 2))
    for name in ("variance_factual", "variance_twin", "variance_independent"):
        low, high = account.intervals[name]
        assert low < getattr(account, name) <= high * 1.01
    assert account.intervals["variance_independent"][1] > 0.5


def test_one_pair_has_no_variance_and_no_interval_of_one():
    account = variance_account([1], [0])
    assert account.variance_factual is None and account.intervals["variance_factual"] is None


def test_unequal_variances_leave_a_floor_at_full_correlation():
    account = variance_account([2.0, 4.0, 6.0, 8.0], [1.0, 2.0, 3.0, 4.0])
    assert account.rho == pytest.approx(1) and account.rho_eff == pytest.approx(0.8)
    difference = math.sqrt(account.variance_factual) - math.sqrt(account.variance_twin)
    assert account.variance_paired == pytest.approx(difference**2)


def test_reference_values():
    account = variance_account(*cells(20, 12, 2, 16))
    assert (account.effect, account.discordance) == (0.2, 0.28)
    assert account.rho_eff == pytest.approx(0.4966442953, rel=1e-9)
    assert account.variance_paired == pytest.approx((0.28 - 0.04) * 50 / 49)
    phi = variance_account(*cells(40, 10, 5, 45)).rho
    assert phi == pytest.approx(0.7035265, abs=5e-8)


@pytest.mark.parametrize("p, q, most", [(50, 60, 0.816497), (10, 30, 0.509175)])
def test_rho_max_is_the_frechet_bound(p, q, most):
    factual, twin = [1] * p + [0] * (100 - p), [0] * (100 - q) + [1] * q
    account = variance_account(factual, twin)
    assert account.rho_max == pytest.approx(most, abs=5e-7)
    assert account.rho <= account.rho_max


@pytest.mark.parametrize("power", [400, -400])
def test_scaling_by_a_power_of_two_changes_only_units(power):
    factual, twin, control = coupled(30)
    unit = 2.0**power
    options = {"equal": np.arange(30) % 3 == 0, "fork": np.arange(30) // 5, "luck": [*range(5)] * 6}
    one = variance_account(factual, twin, control=control, null=twin, **options)
    other = variance_account(
        factual * unit, twin * unit, control=control * unit, null=twin * unit, **options
    )
    squared = ("variance_factual", "variance_twin", "covariance", "variance_paired", "floor")
    for name in squared:
        assert getattr(other, name) == getattr(one, name) * unit**2
        assert other.intervals[name] == tuple(end * unit**2 for end in one.intervals[name])
    for name in ("rho", "rho_max", "rho_eff", "coupling_gain", "rho_luck", "noise_gain"):
        assert getattr(other, name) == getattr(one, name)
        if name in one.intervals:
            assert other.intervals[name] == one.intervals[name]
    assert other.effect == one.effect * unit


def test_a_variance_that_float64_cannot_hold_is_null_with_a_reason():
    factual, twin, _ = coupled(12)
    for unit in (2.0**600, 2.0**-600):
        account = variance_account(factual * unit, twin * unit)
        assert account.variance_paired is None
        assert any("variance_paired: undefined" in text for text in account.warnings)
        assert account.rho_eff == variance_account(factual, twin).rho_eff
        json.dumps(account.to_dict(), allow_nan=False)


# --- unbiasedness by enumeration --------------------------------------------------------------


def test_variances_are_unbiased_by_enumerating_every_sample():
    points = [(1.0, 0.0), (2.0, 2.0), (0.0, 3.0)]
    first, second = map(np.array, zip(*points, strict=True))
    found = {"variance_factual": [], "variance_twin": [], "covariance": [], "variance_paired": []}
    for sample in product(points, repeat=3):
        account = variance_account(*zip(*sample, strict=True))
        for name, values in found.items():
            values.append(getattr(account, name))
    truth = (np.var(first), np.var(second), np.cov(first, second, ddof=0)[0, 1])
    truth += (np.var(first - second),)
    for values, value in zip(found.values(), truth, strict=True):
        np.testing.assert_allclose(np.mean(values), value, rtol=1e-12)


# --- K twins ----------------------------------------------------------------------------------


def test_twins_of_one_factual_have_a_floor():
    rows = np.array(list(product((0, 1), repeat=5)), float)  # luck, and one private bit a world
    factual, twins = rows[:, 0] + rows[:, 1], rows[:, [0]] + rows[:, 2:]
    account = variance_account(factual, twins)
    unbiased = 32 / 31
    assert account.variance_paired == pytest.approx(0.5 * unbiased)
    assert account.covariance_twins == pytest.approx(0.25 * unbiased)
    assert account.variance_mean_twin == pytest.approx(0.25 * (1 + 1 / 3) * unbiased)
    assert account.variance_one_more == pytest.approx(0.25 * (1 + 1 / 4) * unbiased)
    assert account.variance_many == pytest.approx(0.25 * unbiased)
    assert account.num_twins == 3 and account.num_pairs == 96 and account.num_clusters == 32


def test_mean_twin_variance_is_the_paired_standard_error():
    rng = np.random.default_rng(4)
    factual, twins = rng.normal(size=25), rng.normal(size=(25, 3))
    account = variance_account(factual, twins)
    assert math.sqrt(account.variance_mean_twin / 25) == pytest.approx(
        paired(factual, twins).stderr
    )


def test_one_twin_has_no_decomposition():
    account = variance_account(*cells(4, 2, 1, 5))
    assert account.variance_mean_twin == account.variance_paired
    assert account.covariance_twins is None and account.variance_one_more is None


# --- coupling gain ----------------------------------------------------------------------------


def test_gain_is_the_ratio_of_variances_over_pairs_with_a_control():
    factual, twin, control = coupled(60)
    some = control.copy()
    some[::3] = np.nan
    kept = ~np.isnan(some)
    account = variance_account(factual, twin, control=some)
    gain = np.var((factual - control)[kept]) / np.var((factual - twin)[kept])
    assert account.coupling_gain == pytest.approx(gain, rel=1e-12)
    assert account.equivalent_independent_pairs == pytest.approx(60 * gain, rel=1e-12)
    assert account.rho_eff == variance_account(factual, twin).rho_eff  # all 60 pairs
    f, t, c = factual[kept], twin[kept], control[kept]
    shared = np.cov(f, t)[0, 1] - np.cov(f, c)[0, 1]
    rho_prefix = shared / (np.var(f, ddof=1) - np.cov(f, c)[0, 1])
    assert account.rho_prefix == pytest.approx(rho_prefix, rel=1e-10)
    low, high = account.intervals["coupling_gain"]
    assert 1 < low < gain < high


def test_gain_is_one_over_one_minus_rho_prefix_when_worlds_vary_alike():
    rows = np.array(list(product((0.0, 1.0), repeat=5)))
    prefix, luck, fresh, own, other = rows.T
    factual = prefix + luck + own
    twin, control = prefix + luck + other, prefix + fresh + other
    account = variance_account(factual, twin, control=control)
    assert account.coupling_gain == pytest.approx(2.0)
    assert account.coupling_gain == pytest.approx(1 / (1 - account.rho_prefix))
    assert account.rho == pytest.approx(2 / 3)  # the pooled rho promises a gain of 3
    np.testing.assert_allclose(account.equivalent_independent_pairs, 64)


def test_deduplicated_gain_takes_equal_decisions_as_no_difference():
    factual, twin, control = coupled(50)
    equal = np.arange(50) % 2 == 0
    twin = np.where(equal, factual, twin)
    some = [None if i % 5 == 0 else v for i, v in enumerate(control)]
    flags = [None if i % 7 == 0 else bool(v) for i, v in enumerate(equal)]
    account = variance_account(factual, twin, control=some, equal=flags)
    kept = [i for i in range(50) if i % 5 and i % 7]
    fresh = np.where(equal, 0.0, factual - control)[kept]
    gain = np.var(fresh) / np.var((factual - twin)[kept])
    assert account.coupling_gain_deduplicated == pytest.approx(gain, rel=1e-12)
    assert account.coupling_gain > account.coupling_gain_deduplicated
    assert account.equal_share == pytest.approx(np.mean([v for v in flags if v is not None]))


def test_without_a_control_the_gain_is_null_and_says_why():
    account = variance_account(*cells(20, 12, 2, 16))
    assert account.coupling_gain is None and account.equivalent_independent_pairs is None
    assert "task and prefix share" in account.warnings[-1]


def test_no_variance_below_a_gain_is_null_with_a_reason():
    account = variance_account([1, 0, 1, 0], [1, 0, 1, 0], control=[0, 0, 1, 1])
    assert account.coupling_gain is None
    assert any(text.startswith("coupling_gain: undefined") for text in account.warnings)


def test_adverse_coupling_is_warned_against_loudly():
    uniform = (np.arange(100) + 0.5) / 100
    factual, twin = uniform < 0.5, uniform >= 0.45
    account = variance_account(factual, twin)
    assert account.rho == pytest.approx(-0.9045340337, rel=1e-9)
    assert account.discordance == 0.95
    assert account.variance_paired == pytest.approx(0.9475 * 100 / 99)
    assert any(text.startswith("USE INDEPENDENT TWINS") for text in account.warnings)
    control = np.random.default_rng(0).permutation(twin)
    against = variance_account(factual, twin, control=control)
    assert against.intervals["coupling_gain"][1] < 1
    assert sum(text.startswith("USE INDEPENDENT TWINS") for text in against.warnings) == 2


def test_outcomes_that_differ_after_equal_decisions_are_reported():
    account = variance_account([1, 0, 1], [1, 1, 1], equal=[True, True, False])
    assert any(text.startswith("replay_noise: 1 pairs") for text in account.warnings)


# --- luck within forks ------------------------------------------------------------------------


def naive_luck(factual, twin, fork):
    sums = np.zeros(3)
    for name in set(fork):
        rows = [i for i, other in enumerate(fork) if other == name]
        f, t = np.array(factual)[rows], np.array(twin)[rows]
        f, t = f - f.mean(), t - t.mean()
        sums += [f @ f, t @ t, f @ t]
    ff, tt, ft = sums
    return ft / math.sqrt(ff * tt), 1 / (1 - 2 * ft / (ff + tt))


def test_luck_correlation_equals_a_loop_over_forks():
    factual, twin, _ = coupled(40)
    fork = [f"fork {i % 7}" for i in range(40)]
    account = variance_account(factual, twin, fork=fork, luck=np.arange(40) // 7)
    expected = naive_luck(factual, twin, fork)
    assert (account.rho_luck, account.noise_gain) == pytest.approx(expected, rel=1e-12)
    assert account.num_clusters == 7
    assert account.intervals["rho_luck"][0] < account.rho_luck < account.intervals["rho_luck"][1]


def test_levels_of_forks_are_not_luck():
    rng = np.random.default_rng(0)
    level = np.repeat([0.0, 10.0, 20.0, 30.0], 50)
    factual, twin = level + rng.normal(size=200), level + rng.normal(size=200)
    account = variance_account(factual, twin, fork=np.arange(200) // 50, luck=np.arange(200) % 50)
    assert account.rho > 0.98 and abs(account.rho_luck) < 0.2 and account.noise_gain < 1.25


def test_forks_seen_once_say_nothing_about_luck():
    factual, twin, _ = coupled(6)
    account = variance_account(factual, twin, fork=list("abcdef"), luck=[0] * 6)
    assert account.rho_luck is None and account.noise_gain is None
    assert any(text.startswith("rho_luck: undefined") for text in account.warnings)


# --- floor ------------------------------------------------------------------------------------


def test_floor_is_the_mean_square_of_null_twins_and_alters_nothing_else():
    factual, twin, _ = coupled(30)
    null = [None if i % 4 else factual[i] + 0.1 * (-1) ** i for i in range(30)]
    account = variance_account(factual, twin, null=null)
    assert account.floor == pytest.approx(0.01)
    assert account.variance_above_floor == pytest.approx(account.variance_paired - 0.01)
    plain = variance_account(factual, twin)
    assert (account.effect, account.variance_paired) == (plain.effect, plain.variance_paired)
    twins = np.stack([twin, twin + 1], axis=1)
    assert variance_account(factual, twins, null=null).floor == pytest.approx(0.01)


def test_the_best_number_of_twins_is_the_formulas():
    """Equicorrelated outcomes: K* = sqrt(c0 / c1); in general sqrt(c0/c1 (1-r1)/(1-2r0+r1))."""
    rng = np.random.default_rng(8)
    common, own = rng.normal(size=(2000, 1)), rng.normal(size=(2000, 5))
    worlds = common + own
    account = variance_account(worlds[:, 0], worlds[:, 1:])
    own_variance = np.mean([np.var(worlds[:, k], ddof=1) for k in range(1, 5)])
    shared = account.covariance_twins
    many = account.variance_factual - 2 * account.covariance + shared
    expected = math.sqrt(7.0 * (own_variance - shared) / many)
    assert account.best_twins(7.0, 1.0) == pytest.approx(expected, rel=1e-9)
    assert account.best_twins(7.0, 1.0) == pytest.approx(math.sqrt(7), rel=0.1)
    assert account.best_twins(0.0, 1.0) == 1.0
    assert account.best_twins(1.0, 1000.0) == 1.0
    assert variance_account(worlds[:, 0], worlds[:, 1]).best_twins(1.0, 1.0) is None
    with pytest.raises(ValueError, match="`twin_cost` above 0"):
        account.best_twins(1.0, 0.0)


def test_the_account_reads_as_what_was_spent_and_saved():
    factual, twin, control = [1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 0, 0], [0, 0, 1, 1, 0, 1]
    account = variance_account(factual, twin, control=control, equal=[True, False] * 3)
    text = str(account)
    order = ["spent:", "what luck costs:", "what coupling saved:", "what deduplication saved:"]
    assert [text.index(title) for title in order] == sorted(text.index(title) for title in order)
    gain = account.coupling_gain / account.coupling_gain_deduplicated
    assert account.deduplication_gain == pytest.approx(gain)
    assert f"deduplication gain: {gain:.4g}" in text


# --- standard errors --------------------------------------------------------------------------


def test_standard_errors_are_a_jackknife_over_clusters():
    factual, twin, control = (np.round(one, 2) for one in coupled(24))
    cluster = np.repeat(np.arange(6), 4)
    equal = (np.arange(24) % 3 == 0).astype(float)
    twin = np.where(equal == 1, factual, twin)
    names = ("coupling_gain", "coupling_gain_deduplicated", "rho_eff", "discordance", "equal_share")

    def account(where):
        columns = {"control": control[where], "equal": equal[where], "cluster": cluster[where]}
        return variance_account(factual[where], twin[where], confidence=None, **columns)

    without = [account(cluster != one) for one in range(6)]
    whole = account(cluster >= 0)
    for name in names:
        own = np.array([getattr(one, name) for one in without])
        expected = math.sqrt(5 / 6 * ((own - own.mean()) ** 2).sum())
        assert whole.stderr[name] == pytest.approx(expected, rel=1e-9), name


def test_without_a_confidence_there_are_no_intervals_and_the_same_points():
    factual, twin, control = coupled(30)
    fast = variance_account(factual, twin, control=control, confidence=None)
    slow = variance_account(factual, twin, control=control)
    assert fast.intervals == {} and fast.confidence is None and slow.intervals
    assert fast.coupling_gain == slow.coupling_gain and fast.stderr == slow.stderr
    assert "coupling gain" in str(fast) and "interval" not in str(fast)


def test_a_standard_error_that_rests_on_one_cluster_is_null():
    outcomes = [1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]
    control = [0.0, 1.0, None, None]
    account = variance_account(*outcomes, control=control, cluster=[0, 0, 1, 1])
    assert account.coupling_gain is not None and account.stderr["coupling_gain"] is None
    assert account.stderr["rho_eff"] is not None
    assert variance_account(*outcomes, cluster=[0] * 4).stderr["rho_eff"] is None


def test_standard_errors_are_in_the_outcomes_unit():
    factual, twin, _ = coupled(30)
    one, large = (variance_account(scale * factual, scale * twin) for scale in (1.0, 2.0**40))
    assert large.stderr["variance_paired"] == pytest.approx(2.0**80 * one.stderr["variance_paired"])
    assert large.stderr["rho_eff"] == pytest.approx(one.stderr["rho_eff"])
