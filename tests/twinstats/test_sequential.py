import math
from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom

from twinstats import sequential
from twinstats.sequential import PairedSequence, log_wealth

MIXED = [1.0, -0.25, 0.5, 0.0, 1.0, 1.0, 0.75, -1.0, 0.3, 1.0, 1.0, 0.9]


def wealth_by_quadrature(differences, mean):
    """The definition: mean over l ~ U(-1/(1-m), 1/(1+m)) of prod(1 + l (D - m))."""
    low, high = -1 / (1 - mean), 1 / (1 + mean)
    d = np.asarray(differences, float)
    value, _ = quad(lambda bet: np.prod(1 + bet * (d - mean)), low, high, epsabs=0, epsrel=1e-11)
    return value / (high - low)


def interval_by_scan(differences, alpha):
    """Intersects the level sets of the definition over all prefixes, by bisection on each side."""
    low, high = -1.0, 1.0
    for end in range(1, len(differences) + 1):
        prefix = differences[:end]
        centre = float(np.mean(prefix))
        low = max(low, level_crossing(prefix, alpha, centre, -1.0))
        high = min(high, level_crossing(prefix, alpha, centre, 1.0))
    return low, high


def level_crossing(prefix, alpha, inside, outside):
    edge = outside * (1 - 1e-9)
    if abs(inside) == 1 or wealth_by_quadrature(prefix, edge) < 1 / alpha:
        if inside == outside or wealth_by_quadrature(prefix, edge) < 1 / alpha:
            return outside
        inside *= 1 - 1e-9
    for _ in range(50):
        middle = (inside + outside) / 2
        if wealth_by_quadrature(prefix, middle) < 1 / alpha:
            inside = middle
        else:
            outside = middle
    return (inside + outside) / 2


def fed(differences, alpha=0.05):
    one = PairedSequence(alpha)
    one.update(differences)
    return one


def test_wealth_is_a_martingale_under_the_null():
    wins, losses = np.meshgrid(np.arange(60), np.arange(60))
    now = np.exp(log_wealth(wins, losses))
    next_ = (np.exp(log_wealth(wins + 1, losses)) + np.exp(log_wealth(wins, losses + 1))) / 2
    np.testing.assert_allclose(next_, now, rtol=1e-12)


@pytest.mark.parametrize("mean", [-0.6, 0.0, 0.35])
def test_wealth_at_any_null_value_is_a_martingale(mean):
    """E[W] stays 1 when each difference has conditional mean m, by enumerating 4 steps."""
    values = np.array([-1.0, 0.2, 1.0])
    tilted = np.array([0.4, 0.3, 0.3])
    shift = mean - tilted @ values
    law = tilted + shift * np.array([-0.5, 0.0, 0.5])
    assert law @ values == pytest.approx(mean) and law.min() > 0
    logit = math.log1p(mean) - math.log1p(-mean)
    expected = sum(
        np.prod(law[list(path)])
        * math.exp(sequential._wealth_path(np.zeros(1024), values[list(path)], logit)[0][-1])
        for path in product(range(3), repeat=4)
    )
    assert expected == pytest.approx(1.0, rel=1e-12)


def test_reference_values_of_wealth():
    assert float(log_wealth(12, 3)) == pytest.approx(1.5043216, abs=1e-7)
    assert float(log_wealth(8, 0)) == pytest.approx(3.347952867, abs=1e-9)
    assert math.exp(float(log_wealth(8, 0))) == pytest.approx(256 / 9, rel=1e-13)
    assert float(log_wealth(7, 0)) < math.log(20) < float(log_wealth(8, 0))


@pytest.mark.parametrize("mean", [-0.5, 0.0, 0.3, 0.9])
def test_wealth_is_its_definition(mean):
    logit = math.log1p(mean) - math.log1p(-mean)
    path, _ = sequential._wealth_path(np.zeros(1024), np.array(MIXED), logit)
    for end in range(1, len(MIXED) + 1):
        expected = wealth_by_quadrature(MIXED[:end], mean)
        assert math.exp(path[end - 1]) == pytest.approx(expected, rel=1e-9)


def test_unit_differences_have_the_closed_form_whichever_way_they_come():
    differences = [1, 0, -1, 1, 1, 0, 0, 1, -1, 1]
    one_by_one = PairedSequence()
    for difference in differences:
        one_by_one.update(difference)
    expected = float(log_wealth(differences.count(1), differences.count(-1)))
    assert one_by_one.log_wealth == pytest.approx(expected, abs=1e-13)
    assert fed(differences).log_wealth == pytest.approx(expected, abs=1e-13)
    by_grid = fed([*differences, 0.5]).log_wealth
    assert math.exp(by_grid) == pytest.approx(wealth_by_quadrature([*differences, 0.5], 0.0))


def test_batches_and_single_updates_agree_with_general_values():
    whole, steps = fed(MIXED), PairedSequence()
    for difference in MIXED:
        steps.update(difference)
        steps.confidence_interval()
    assert steps.log_wealth == pytest.approx(whole.log_wealth, abs=1e-12)
    assert steps.rejected == whole.rejected
    assert steps.confidence_interval() == pytest.approx(whole.confidence_interval(), abs=1e-9)


def test_running_interval_equals_a_naive_scan():
    for differences in (MIXED, [1, 1, 0, 1, 1, -1, 1, 1, 1, 1, 0, 1], [0.5] * 8, [-1.0] * 9):
        expected = interval_by_scan(differences, 0.1)
        assert fed(differences, 0.1).confidence_interval() == pytest.approx(expected, abs=1e-6)


def test_interval_of_the_last_look_has_the_reference_value():
    differences = np.r_[np.ones(60), np.zeros(120), -np.ones(20)]
    lower, upper = sequential._Edge(1.0, math.log(20)), sequential._Edge(-1.0, math.log(20))
    low = math.tanh(lower._solve(differences, 0.2) / 2)
    high = -math.tanh(upper._solve(-differences, -0.2) / 2)
    assert (low, high) == pytest.approx((0.06316, 0.33416), abs=1e-5)


def test_interval_excludes_zero_exactly_when_rejected():
    rng = np.random.default_rng(3)
    for _ in range(30):
        differences = rng.choice([-1.0, 0.0, 1.0, 0.5], size=40, p=[0.1, 0.4, 0.3, 0.2])
        one = PairedSequence()
        for part in np.array_split(differences, 8):
            one.update(part)
            low, high = one.confidence_interval()
            assert one.rejected == (low > 0 or high < 0)


def test_interval_mirrors_when_differences_change_sign():
    low, high = fed(MIXED).confidence_interval()
    assert fed(np.negative(MIXED)).confidence_interval() == pytest.approx((-high, -low), abs=1e-12)


def test_interval_only_shrinks():
    one, last = PairedSequence(), (-1.0, 1.0)
    for difference in np.random.default_rng(0).uniform(-0.5, 1, 60):
        one.update(difference)
        low, high = one.confidence_interval()
        assert low >= last[0] and high <= last[1]
        last = (low, high)


def test_rejection_is_kept():
    one = fed([1] * 8)
    assert one.rejected
    one.update([-1] * 30)
    assert one.rejected
    assert one.log_wealth == pytest.approx(float(log_wealth(8, 30)))


def test_without_data_nothing_is_excluded():
    one = PairedSequence()
    one.update([])
    assert one.num_pairs == 0 and one.log_wealth == 0 and not one.rejected
    assert one.confidence_interval() == (-1.0, 1.0) and one.warnings == ()


def test_ties_alone_never_reject_but_narrow_the_interval():
    one = fed(np.zeros(100))
    low, high = one.confidence_interval()
    assert one.log_wealth == 0 and low == pytest.approx(-high)
    assert 0 < high < 0.15


def test_a_moving_mean_empties_the_interval_and_says_so():
    one = fed([1] * 40 + [-1] * 80)
    low, high = one.confidence_interval()
    assert low == high
    assert any("mean moved" in warning for warning in one.warnings)


@pytest.mark.parametrize(
    ("num_discordant", "expected"),
    [(50, 0.0233076801), (200, 0.0308765338), (500, 0.0340219101)],
)
def test_type_one_error_by_dynamic_programming(num_discordant, expected):
    assert stopped_by(num_discordant, 0.5)[0] == pytest.approx(expected, abs=1e-10)


def test_expected_discordant_pairs_to_stop():
    assert stopped_by(20, 1.0)[1] == pytest.approx(8.0)
    # rational arithmetic gives 33.87068641561085 up to 199 pairs
    assert stopped_by(199, 0.75)[1] == pytest.approx(33.87068641561085, abs=1e-10)
    assert stopped_by(600, 0.75)[1] == pytest.approx(33.87076656, abs=2e-6)


def stopped_by(horizon, favourable):
    """P(wealth reached 20 by then) and E[discordant pairs until it does], exactly."""
    alive, stopped, expected = np.ones(1), 0.0, 0.0  # alive[b]: P(b wins so far, still going)
    for count in range(1, horizon + 1):
        expected += alive.sum()
        grown = np.zeros(count + 1)
        grown[1:] += favourable * alive
        grown[:-1] += (1 - favourable) * alive
        wins = np.arange(count + 1)
        over = log_wealth(wins, count - wins) >= math.log(20)
        stopped += grown[over].sum()
        alive = np.where(over, 0.0, grown)
    return stopped, expected


@pytest.mark.parametrize("difference", [1.5, -1.001, math.nan, math.inf, [0.0, 2.0]])
def test_differences_outside_are_refused_and_not_taken(difference):
    one = fed([1, 0])
    with pytest.raises(ValueError, match=r"`difference` must lie in \[-1, 1\]"):
        one.update(difference)
    assert one.num_pairs == 2


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, math.nan])
def test_alpha_outside_is_refused(alpha):
    with pytest.raises(ValueError, match="`alpha` must lie in"):
        PairedSequence(alpha)


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="`losses` must hold counts"):
        log_wealth([1, 2], [0, -1])


def test_text_says_what_was_found():
    assert "9 pairs" in str(fed([1] * 9)) and "rejected True" in str(fed([1] * 9))


@pytest.mark.slow
def test_coverage_of_the_running_interval():
    rng, misses, runs = np.random.default_rng(11), 0, 400
    for _ in range(runs):
        differences = rng.choice([-1.0, -0.5, 0.0, 1.0], size=400, p=[0.1, 0.1, 0.5, 0.3])
        low, high = fed(differences).confidence_interval()
        misses += not low <= 0.15 <= high
    assert misses <= binom.ppf(1 - 1e-6, runs, 0.05)
