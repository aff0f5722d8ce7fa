import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, nct, norm, t

from twinstats import _binary_power
from twinstats.power import detectable_effect, paired_power, pairs_needed, round_up

TABLE = [  # discordance, effect, exact, midp, connor, wald
    (0.5, 0.4, 25, 21, 22.0113, 16.6789),
    (0.3, 0.2, 61, 53, 56.4497, 51.0177),
    (0.2, 0.1, 168, 152, 154.599, 149.129),
    (0.4, 0.1, 329, 311, 311.587, 306.106),
    (0.1, 0.1, 78, 66, 76.0875, 70.6399),
    (0.05, 0.05, 157, 134, 154.599, 149.129),
]


def pvalue(wins, losses, test, alternative="two-sided"):
    """The sign test's p-value by adding up binomial probabilities, one at a time."""
    m = wins + losses
    if m == 0:
        return 1.0
    masses = [math.comb(m, k) / 2**m for k in range(m + 1)]
    half = masses[wins] / 2 if test == "midp" else 0.0
    upper, lower = sum(masses[wins:]) - half, sum(masses[: wins + 1]) - half
    if alternative == "greater":
        return upper
    return lower if alternative == "less" else min(1.0, 2 * min(upper, lower))


def power_by_enumeration(n, discordance, effect, test, alternative="two-sided", alpha=0.05):
    """All trinomial tables (wins, losses, ties) of n pairs."""
    up, down = (discordance + effect) / 2, (discordance - effect) / 2
    total = 0.0
    for wins, losses in product(range(n + 1), repeat=2):
        if wins + losses <= n and pvalue(wins, losses, test, alternative) <= alpha:
            ways = math.comb(n, wins) * math.comb(n - wins, losses)
            total += ways * up**wins * down**losses * (1 - up - down) ** (n - wins - losses)
    return total


@pytest.mark.parametrize(("discordance", "effect", "exact", "midp", "connor", "wald"), TABLE)
def test_the_reference_table(discordance, effect, exact, midp, connor, wald):
    expected = {"exact": exact, "midp": midp, "connor": connor, "wald": wald}
    for test, value in expected.items():
        found = pairs_needed(effect, discordance=discordance, test=test)
        assert found == math.ceil(value), test


@pytest.mark.parametrize("test", ["exact", "midp"])
@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize(("discordance", "effect"), [(0.6, 0.3), (0.9, -0.5), (1.0, 0.4)])
def test_power_equals_the_enumeration_of_all_tables(test, alternative, discordance, effect):
    for n in (1, 5, 12, 20):
        expected = power_by_enumeration(n, discordance, effect, test, alternative)
        found = paired_power(effect, n, discordance=discordance, test=test, alternative=alternative)
        assert found == pytest.approx(expected, abs=1e-12)


def test_reference_powers():
    assert paired_power(0.2, 40, discordance=0.3) == pytest.approx(0.5673794537, abs=1e-10)
    assert paired_power(0.5, 20, discordance=1.0) == pytest.approx(0.6171764674, abs=1e-6)
    options = {"discordance": 0.5}
    assert paired_power(0.4, 22, test="connor", **options) == pytest.approx(0.799768, abs=1e-6)
    assert paired_power(0.4, 22, **options) == pytest.approx(0.751569, abs=1e-6)
    assert paired_power(0.4, 22, test="midp", **options) == pytest.approx(0.829919, abs=1e-6)
    assert paired_power(0.474341649, 25, sd=1.0) == pytest.approx(0.6240614253, abs=1e-9)


def test_monotone_coupling_needs_a_number_of_order_one_over_the_effect():
    effects = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
    found = [pairs_needed(effect, discordance=effect) for effect in effects]
    assert found == [39, 78, 157, 394, 790, 1580, 3952]
    tiny = pairs_needed(1e-6, discordance=1e-6)
    assert tiny * 1e-6 == pytest.approx(7.905993, abs=1e-5)  # the 0.8 quantile of Gamma(6)


@pytest.mark.parametrize("test", ["exact", "midp"])
@pytest.mark.parametrize(
    ("discordance", "effect"), [(1.0, 0.3), (1.0, 0.15), (0.95, 0.4), (0.5, 0.45), (0.06, 0.05)]
)
def test_the_smallest_number_is_found_across_the_saw_tooth(test, discordance, effect):
    """Every n from 1 on, not only near the answer; at discordance 1 power is not monotone."""
    for target in (0.3, 0.62, 0.8, 0.9):
        found = pairs_needed(effect, discordance=discordance, test=test, power=target)
        below = (
            paired_power(effect, n, discordance=discordance, test=test)
            for n in range(max(1, found - 80), found)
        )
        assert max(below, default=0.0) < target
        assert paired_power(effect, found, discordance=discordance, test=test) >= target - 1e-12


@pytest.mark.parametrize("test", ["exact", "midp"])
@pytest.mark.parametrize("discordance", [1.0, 0.99, 0.9])
def test_every_tooth_is_looked_at(test, discordance):
    """Where power falls between neighbours, against the first number in a full list."""
    options = {"discordance": discordance, "test": test}
    powers = np.array([paired_power(0.45, n, **options) for n in range(1, 80)])
    assert np.diff(powers).min() < 0
    for target in np.arange(0.05, 0.9, 0.011):
        found = pairs_needed(0.45, power=target, **options)
        assert found == 1 + int(np.argmax(powers >= target)), target


def test_power_does_fall_between_neighbours():
    powers = [paired_power(0.4, n, discordance=1.0) for n in range(10, 60)]
    assert min(np.diff(powers)) < -0.02


def test_one_sided_exact_test_needs_five_discordant_pairs():
    assert paired_power(0.99, 4, discordance=0.99, alternative="greater") == 0.0
    assert paired_power(1.0, 5, discordance=1.0, alternative="greater") == 1.0
    assert paired_power(1.0, 5, discordance=1.0) == 0.0
    assert paired_power(1.0, 6, discordance=1.0) == 1.0


def test_normal_tests_are_their_formulas():
    z = norm.ppf(0.975)
    for n, discordance, effect in ((40, 0.3, 0.1), (300, 0.2, 0.05)):
        stderr = math.sqrt((discordance - effect**2) / n)
        connor = norm.cdf((effect - z * math.sqrt(discordance / n)) / stderr)
        connor += norm.cdf((-effect - z * math.sqrt(discordance / n)) / stderr)
        wald = norm.cdf(effect / stderr - z) + norm.cdf(-effect / stderr - z)
        options = {"discordance": discordance}
        assert paired_power(effect, n, test="connor", **options) == pytest.approx(connor)
        assert paired_power(effect, n, test="wald", **options) == pytest.approx(wald)


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
def test_t_power_is_the_noncentral_t(alternative):
    for n, effect in ((5, 0.8), (34, 0.5), (400, 0.1)):
        tail = 0.025 if alternative == "two-sided" else 0.05
        critical, shift = t.isf(tail, n - 1), effect / 1.3 * math.sqrt(n)
        expected = nct.sf(critical, n - 1, shift)
        expected += nct.cdf(-critical, n - 1, shift) if alternative == "two-sided" else 0.0
        found = paired_power(effect, n, sd=1.3, test="t", alternative=alternative)
        assert found == pytest.approx(expected, rel=1e-9)
        mirrored = "less" if alternative == "greater" else alternative
        assert paired_power(-effect, n, sd=1.3, test="t", alternative=mirrored) == found


def test_t_power_of_huge_effects_is_one_and_never_undefined():
    for n, effect in product((2, 3, 33, 1000), (1.0, 10.0, 60.0, 1e3, 1e8)):
        for signed, alternative in product((effect, -effect), ("two-sided", "greater")):
            found = paired_power(signed, n, sd=1.0, alternative=alternative)
            assert 0.0 <= found <= 1.0
    assert paired_power(1e8, 3, sd=1.0) == 1.0
    assert paired_power(-1e8, 3, sd=1.0, alternative="greater") == 0.0


def test_correlation_sets_the_variance_of_the_difference():
    assert pairs_needed(0.5, sd=1, rho=0.5, test="wald") == pairs_needed(0.5, sd=1, test="wald")
    low, high = (pairs_needed(0.1, sd=1, rho=rho, test="wald") for rho in (0.9, 0.0))
    assert high / low == pytest.approx(10, rel=0.01)


def test_at_effect_zero_power_is_the_size_of_the_test():
    for test in ("connor", "wald", "t"):
        assert paired_power(0.0, 50, discordance=0.3, test=test) == pytest.approx(0.05)
    assert paired_power(0.0, 200, discordance=0.3) < 0.05
    assert paired_power(0.0, 200, discordance=0.3) == pytest.approx(0.036, abs=0.006)


def test_against_the_alternative_power_is_below_the_level():
    for test in ("exact", "midp", "connor", "wald", "t"):
        found = paired_power(-0.1, 100, discordance=0.3, test=test, alternative="greater")
        assert 0 <= found < 0.01


def test_clusters_multiply_the_number():
    for test in ("exact", "midp", "connor", "wald"):
        options = {"discordance": 0.3, "test": test, "cluster_size": 5, "icc": 0.3}
        found = pairs_needed(0.2, **options)
        assert found == pytest.approx(2.2 * pairs_needed(0.2, discordance=0.3, test=test), abs=2.2)
        assert paired_power(0.2, found, **options) >= 0.8 - 1e-12
        assert detectable_effect(found, **options) <= 0.2 + 1e-9
    assert pairs_needed(0.2, discordance=0.3, cluster_size=5, icc=0.3) == math.ceil(61 * 2.2)
    few = pairs_needed(1.0, sd=1.0, test="t", cluster_size=10, icc=0.0)
    assert few > 10  # one cluster leaves no degree of freedom


@pytest.mark.parametrize("test", ["exact", "midp", "connor", "wald", "t"])
@pytest.mark.parametrize("alternative", ["two-sided", "less"])
def test_detectable_effect_inverts_power(test, alternative):
    for n, discordance in ((80, 0.4), (5_000, 0.05), (10**7, 0.3), (10**10, 0.5)):
        options = {"discordance": discordance, "test": test, "alternative": alternative}
        effect = detectable_effect(n, **options)
        assert (effect < 0) == (alternative == "less")
        assert paired_power(effect, n, **options) == pytest.approx(0.8, abs=1e-8)


def test_detectable_effect_of_other_outcomes():
    effect = detectable_effect(34, sd=2.0)
    assert paired_power(effect, 34, sd=2.0) == pytest.approx(0.8, abs=1e-9)
    assert detectable_effect(2, sd=1.0) > 5
    assert detectable_effect(50, sd=1.0, power=0.04) == 0.0


@pytest.mark.parametrize("test", ["exact", "midp"])
@pytest.mark.parametrize("discordance", [0.2, 0.9])
def test_the_normal_form_takes_over_without_a_step(test, discordance):
    """On both sides of 10,000 expected discordant pairs."""
    edge = int(_binary_power.MOST_DISCORDANT / discordance)
    for shift in (1.0, 2.0, 2.8, 4.0):
        effect = shift * math.sqrt(discordance / edge)
        below, above = (
            paired_power(effect, n, discordance=discordance, test=test)
            for n in (edge - 1, edge + 1)
        )
        assert above == pytest.approx(below, abs=4e-3)


@pytest.mark.parametrize("test", ["exact", "midp", "connor", "wald", "t"])
def test_tiny_effects_and_huge_numbers(test):
    found = pairs_needed(1e-6, discordance=0.5, test=test)
    assert found == pytest.approx(7.8488797 * 0.5 / 1e-12, rel=1e-5)
    assert paired_power(1e-6, 10**10, discordance=0.5, test=test) < 0.06
    assert paired_power(1e-4, 10**10, discordance=0.5, test=test) == pytest.approx(1.0)


def test_answers_are_python_numbers():
    for test in ("exact", "midp", "connor", "wald", "t"):
        assert type(pairs_needed(np.float64(0.2), discordance=np.float64(0.3), test=test)) is int
        assert type(paired_power(0.2, np.int64(40), discordance=0.3, test=test)) is float
        assert type(detectable_effect(40, discordance=0.3, test=test)) is float


def test_binomial_window_is_the_binomial():
    for n, probability in ((1, 0.3), (40, 0.7), (10**6, 1e-6), (10**10, 1e-8), (30, 1.0)):
        m, weights = _binary_power.binomial_window(n, probability)
        assert weights.sum() == pytest.approx(1, abs=1e-14)
        np.testing.assert_allclose(weights, binom.pmf(m, n, probability), rtol=1e-6, atol=1e-15)


def test_critical_values_are_the_largest_that_reject():
    m = np.arange(0, 60)
    for test, level in product(("exact", "midp"), (0.025, 0.05, 0.2)):
        found = _binary_power.critical_losses(m, level, test == "midp")
        for count, critical in zip(m.tolist(), found.astype(int).tolist(), strict=True):
            expected = -1
            while expected + 1 < count and (
                pvalue(expected + 1, count - expected - 1, test, "less") <= level
            ):
                expected += 1
            assert critical == expected, (test, count)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pairs_needed(0.4, discordance=0.3), r"`effect` must be in \[-0.3, 0.3\]"),
        (lambda: pairs_needed(math.nan, sd=1), "`effect` must be finite"),
        (lambda: pairs_needed(0.2), "Exactly one of `discordance`"),
        (lambda: pairs_needed(0.2, discordance=0.3, sd=1), "Exactly one of `discordance`"),
        (lambda: pairs_needed(0.2, discordance=0.3, rho=0.2), "`rho` belongs to `sd`"),
        (lambda: pairs_needed(0.2, discordance=1.2), r"`discordance` must lie in \(0, 1\]"),
        (lambda: pairs_needed(0.2, discordance=0), r"`discordance` must lie in \(0, 1\]"),
        (lambda: pairs_needed(0.2, sd=0), "`sd` must be positive"),
        (lambda: pairs_needed(0.2, sd=1, rho=1), r"`rho` must lie in \[-1, 1\)"),
        (lambda: pairs_needed(0.2, sd=1, rho=-1.5), r"`rho` must lie in \[-1, 1\)"),
        (lambda: pairs_needed(0.2, sd=1, test="midp"), "is for binary outcomes"),
        (lambda: pairs_needed(0.2, sd=1, test="z"), "Unknown test 'z'.* connor, exact"),
        (lambda: pairs_needed(0.2, sd=1, alternative="smaller"), "Unknown alternative"),
        (lambda: pairs_needed(0.2, sd=1, alpha=0), "`alpha` must lie in"),
        (lambda: pairs_needed(0.2, sd=1, power=1), "`power` must lie in"),
        (lambda: pairs_needed(0.2, sd=1, cluster_size=0), "`cluster_size` must be at least 1"),
        (lambda: pairs_needed(0.2, sd=1, cluster_size=5, icc=-0.3), "`icc` must lie in"),
        (lambda: paired_power(0.2, 0, sd=1), "`num_pairs` must be a whole number"),
        (lambda: paired_power(0.2, 2.5, sd=1), "`num_pairs` must be a whole number"),
        (lambda: detectable_effect(5, discordance=0.3), "even an effect of 0.3 has power 0,"),
        (lambda: detectable_effect(1, sd=1), "`num_pairs` must be larger"),
    ],
)
def test_infeasible_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rounding_up_forgives_floats():
    assert [round_up(x) for x in (7.000000000000001, 7.1, 7.0, -0.5)] == [7, 8, 7, 0]


@pytest.mark.slow
def test_random_designs_against_a_scan_of_every_number():
    rng = np.random.default_rng(0)
    for _ in range(60):
        discordance = float(rng.uniform(0.02, 1))
        effect = float(discordance * rng.uniform(0.3, 1))
        options = {
            "discordance": discordance,
            "test": str(rng.choice(["exact", "midp"])),
            "alternative": str(rng.choice(["two-sided", "greater"])),
            "alpha": float(rng.choice([0.01, 0.05, 0.2])),
        }
        target = float(rng.uniform(0.1, 0.97))
        found = pairs_needed(effect, power=target, **options)
        n = 1
        while paired_power(effect, n, **options) < target - 1e-12:
            n += 1
        assert found == n, options


def test_numbers_whose_squares_leave_the_range_are_refused():
    with pytest.raises(ValueError, match="`effect` must be 0 or at least"):
        pairs_needed(1e-300, discordance=0.5)
    with pytest.raises(ValueError, match="`sd` must be positive and at most"):
        pairs_needed(0.1, sd=1e300)
