import json

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import binom, chi2

from twinstats.complexity import fit_exponent, regime

EFFECTS = np.array([0.4, 0.2, 0.1, 0.05, 0.025])


def pairs_at(discordance):
    return (discordance - EFFECTS**2) / EFFECTS**2


@pytest.mark.parametrize("exponent", [-2.0, -1.0, 0.5])
def test_a_power_law_is_found_exactly(exponent):
    fit = fit_exponent(EFFECTS, 3 * EFFECTS**exponent, stderr=np.full(5, 0.1))
    assert fit.slope == pytest.approx(exponent, abs=1e-12)
    assert fit.local_slopes == pytest.approx([exponent] * 4, abs=1e-12)
    assert fit.chi2 == pytest.approx(0, abs=1e-12) and fit.chi2_pvalue == pytest.approx(1)
    assert fit.interval[0] < exponent < fit.interval[1]


@pytest.mark.parametrize(
    ("pairs", "slope", "local"),
    [
        ((0.5 - EFFECTS**2 / 2) / EFFECTS**2, -2.0557, None),
        (pairs_at(EFFECTS), -1.1649, (-1.415, -1.170, -1.078, -1.037)),
        (pairs_at(0.02 + EFFECTS), -1.3483, (-1.469, -1.290, -1.295, -1.395)),
    ],
)
def test_reference_slopes_of_curved_laws(pairs, slope, local):
    fit = fit_exponent(EFFECTS, pairs)
    assert fit.slope == pytest.approx(slope, abs=5e-4)
    if local is not None:
        assert fit.local_slopes == pytest.approx(local, abs=1e-3)


def test_local_exponent_of_a_mixture():
    """delta = .02 + Delta at Delta = .1: -14/11, from two effects close by."""
    near = np.array([0.1001, 0.1, 0.0999])
    fit = fit_exponent(near, (0.02 + near - near**2) / near**2)
    assert fit.slope == pytest.approx(-14 / 11, abs=1e-5)


def test_known_curvature_as_offset_gives_the_exponent():
    fit = fit_exponent(EFFECTS, pairs_at(EFFECTS), offset=np.log(1 - EFFECTS))
    assert fit.slope == pytest.approx(-1.0, abs=1e-12)


def test_weighted_fit_equals_scipy():
    rng = np.random.default_rng(1)
    stderr = rng.uniform(0.05, 0.3, 5)
    pairs = np.exp(1 - 1.3 * np.log(EFFECTS) + rng.normal(size=5) * stderr)
    fit = fit_exponent(EFFECTS, pairs, stderr=stderr)
    popt, pcov = curve_fit(
        lambda x, a, b: a + b * x,
        np.log(EFFECTS),
        np.log(pairs),
        sigma=stderr,
        absolute_sigma=True,
    )
    residuals = (np.log(pairs) - popt[0] - popt[1] * np.log(EFFECTS)) / stderr
    assert fit.slope == pytest.approx(popt[1], rel=1e-6)
    half_width = 1.959963985 * np.sqrt(pcov[1, 1])
    assert np.diff(fit.interval)[0] == pytest.approx(2 * half_width, rel=1e-6)
    assert fit.chi2 == pytest.approx(np.sum(residuals**2), rel=1e-6)
    assert fit.chi2_pvalue == pytest.approx(chi2.sf(np.sum(residuals**2), 3), rel=1e-6)


def test_unweighted_interval_is_the_t_interval_of_linregress():
    from scipy.stats import linregress, t

    rng = np.random.default_rng(2)
    pairs = np.exp(-np.log(EFFECTS) + rng.normal(size=5) * 0.2)
    fit, other = fit_exponent(EFFECTS, pairs), linregress(np.log(EFFECTS), np.log(pairs))
    half_width = t.ppf(0.975, 3) * other.stderr
    expected = (other.slope - half_width, other.slope + half_width)
    assert fit.interval == pytest.approx(expected, rel=1e-9)
    assert fit.chi2 is None and any("goodness of fit undefined" in w for w in fit.warnings)


def test_a_bent_curve_is_said_to_be_bent():
    fit = fit_exponent(EFFECTS, pairs_at(EFFECTS), stderr=np.full(5, 0.02))
    assert fit.chi2_pvalue < 1e-6
    assert any("straight line does not fit" in warning for warning in fit.warnings)


def test_order_of_rows_does_not_matter():
    order = [3, 0, 4, 1, 2]
    first = fit_exponent(EFFECTS, pairs_at(EFFECTS))
    second = fit_exponent(EFFECTS[order], pairs_at(EFFECTS)[order])
    assert second.slope == pytest.approx(first.slope, rel=1e-12)
    assert second.local_slopes == pytest.approx(first.local_slopes, rel=1e-12)


def test_repeated_effects_are_averaged_for_local_slopes():
    fit = fit_exponent([0.4, 0.4, 0.1], [1.0, 4.0, 32.0])
    assert fit.local_slopes == pytest.approx((np.log(2 / 32) / np.log(4),))


@pytest.mark.parametrize("effect", [[0.2, 0.1], [0.1, 0.1, 0.1], []])
def test_too_few_points_are_undefined_with_the_reason(effect):
    fit = fit_exponent(effect, [2.0] * len(effect))
    assert fit.slope is None and fit.interval is None and fit.chi2 is None
    assert any("slope undefined" in warning for warning in fit.warnings)
    assert json.loads(json.dumps(fit.to_dict(), allow_nan=False))["slope"] is None


def test_null_rows_are_left_out_and_counted():
    fit = fit_exponent([*EFFECTS, 0.01, -0.1, 0.3], [*(4 / EFFECTS**2), None, 3, 0])
    assert fit.slope == pytest.approx(-2) and fit.num_excluded == 3 and fit.num_points == 5


@pytest.mark.parametrize("censored", [[0, 0.01, 0.2, 0.645, 0.9075], [False] * 4 + [True]])
def test_censoring_that_would_fabricate_a_slope_is_refused(censored):
    with pytest.raises(ValueError, match="`censored` must be below half in every row"):
        fit_exponent(EFFECTS, pairs_at(0.5), censored=censored)


def test_light_censoring_asks_for_medians():
    fit = fit_exponent(EFFECTS, 1 / EFFECTS, censored=[0, 0, 0, 0.1, 0.4])
    assert fit.slope == pytest.approx(-1)
    assert any("must be medians" in warning for warning in fit.warnings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stderr": [0.1, 0.1, 0.1, 0.1, 0]}, "`stderr` must be positive"),
        ({"stderr": [0.1]}, "`stderr` must have one entry a row"),
        ({"offset": [np.nan] * 5}, "`offset` must be finite"),
        ({"censored": [2, 0, 0, 0, 0]}, "`censored` must be true, false or a share"),
        ({"censored": [np.nan] * 5}, "`censored` must be true, false or a share"),
        ({"pairs": [1, 2, 3, 4, np.inf]}, "an infinite count is a censored one"),
        ({"pairs": [1, 2]}, "`pairs` must have one entry a row"),
        ({"pairs": [[1, 2]]}, "`pairs` must be a list of numbers"),
    ],
)
def test_wrong_columns_are_refused(options, message):
    pairs = options.pop("pairs", pairs_at(0.5))
    with pytest.raises(ValueError, match=message):
        fit_exponent(EFFECTS, pairs, **options)


@pytest.mark.slow
def test_coverage_needs_the_offset():
    rng, stderr, runs = np.random.default_rng(4), np.full(5, 0.1), 2_000
    with_offset = without = 0
    total = 0.0
    for _ in range(runs):
        pairs = np.exp(np.log(pairs_at(EFFECTS)) + rng.normal(size=5) * stderr)
        fit = fit_exponent(EFFECTS, pairs, stderr=stderr, offset=np.log(1 - EFFECTS))
        with_offset += fit.interval[0] <= -1 <= fit.interval[1]
        total += fit.chi2
        fit = fit_exponent(EFFECTS, pairs, stderr=stderr)
        without += fit.interval[0] <= -1 <= fit.interval[1]
    low, high = binom.interval(1 - 1e-6, runs, 0.95)
    assert low <= with_offset <= high
    assert without < runs / 2
    assert total / runs == pytest.approx(3, abs=5 * np.sqrt(6 / runs))


def forks_of(difference):
    """Flat columns from a (forks, draws) table of differences."""
    num_forks, num_draws = difference.shape
    return {
        "factual": difference.reshape(-1),
        "twin": np.zeros(difference.size),
        "fork": np.repeat(np.arange(num_forks), num_draws),
        "luck": np.tile(np.arange(num_draws), num_forks),
    }


def monotone(rng, num_forks, num_draws, effect):
    """delta = |Delta| in every fork: the outcome differs only ever in one direction."""
    sign = rng.choice([-1.0, 1.0], num_forks)
    return (rng.random((num_forks, num_draws)) < effect) * sign[:, None]


def test_squared_effect_is_the_mean_product_of_two_draws():
    difference = np.array([[1.0, 0.0, 1.0], [0.0, -1.0, 1.0], [1.0, 1.0, 1.0]])
    found = regime(**forks_of(difference))
    products = [(1 * 0 + 1 * 1 + 0 * 1) / 3, (0 + 0 - 1) / 3, 1.0]
    assert found.effect == pytest.approx(np.sqrt(np.mean(products)))
    assert found.discordance == pytest.approx(7 / 9)
    assert found.ratio == pytest.approx(found.discordance / found.effect)
    assert (found.num_pairs, found.num_forks, found.num_clusters) == (9, 3, 3)


def test_monotone_forks_are_linear_though_they_average_to_zero():
    found = regime(**forks_of(monotone(np.random.default_rng(0), 400, 4, 0.2)))
    assert found.law == "linear" and found.reason is None
    assert found.ratio == pytest.approx(1.0, abs=0.1)


def test_chaotic_forks_are_quadratic():
    rng = np.random.default_rng(1)
    sign = rng.choice([-1.0, 1.0], 2_000)[:, None]
    difference = np.where(rng.random((2_000, 16)) < 0.515, sign, -sign)
    found = regime(**forks_of(difference))
    assert found.law == "quadratic" and found.interval[0] > 10


def test_the_middle_is_undecided_with_the_reason():
    rng = np.random.default_rng(2)
    sign = rng.choice([-1.0, 1.0], 500)[:, None]
    found = regime(**forks_of(np.where(rng.random((500, 4)) < 0.6, sign, -sign)))
    assert found.law == "undecided" and "more than one law" in found.reason
    assert found.interval[0] < found.ratio < found.interval[1]


def test_an_interval_without_upper_end_is_null_in_json():
    rng = np.random.default_rng(3)
    found = regime(**forks_of(rng.choice([-1.0, 1.0], (40, 2))))
    assert found.interval[1] == np.inf
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["interval"][1] is None
    assert any("no upper end" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"luck": None}, "needs `fork` and `luck`"),
        ({"fork": None}, "needs `fork` and `luck`"),
        ({"fork": np.arange(12)}, "no fork was played under two draws"),
        ({"factual": np.zeros(12)}, "no twin's outcome differed"),
        ({"factual": np.full(12, 3.0)}, "scale them into"),
        ({"cluster": ["one"] * 12}, "one cluster gives no interval"),
        ({"factual": [None] * 12}, "no fork was played under two draws"),
    ],
)
def test_what_cannot_be_decided_says_why(change, reason):
    found = regime(**(forks_of(np.ones((4, 3))) | change))
    assert found.law == "undecided" and reason in found.reason
    assert found.ratio is None and found.interval is None
    assert any(reason in warning for warning in found.warnings)
    json.dumps(found.to_dict(), allow_nan=False)


def test_clusters_widen_the_interval():
    rng = np.random.default_rng(5)
    per_task = rng.uniform(0.02, 0.5, 30)
    difference = monotone(rng, 300, 4, np.repeat(per_task, 10)[:, None])
    free = regime(**forks_of(difference))
    clustered = regime(**forks_of(difference), cluster=np.repeat(np.arange(30), 40))
    assert np.diff(clustered.interval) > np.diff(free.interval)
    assert clustered.num_clusters == 30


def test_interval_equals_an_independent_bootstrap():
    rng = np.random.default_rng(9)
    difference = monotone(rng, 80, 3, 0.4)
    total, squares = difference.sum(axis=1), (difference**2).sum(axis=1)
    product, differing = (total**2 - squares) / 6, (difference != 0).mean(axis=1)
    weights = rng.dirichlet(np.ones(80), 20_000)
    ratios = weights @ differing / np.sqrt(weights @ product)
    for confidence in (0.5, 0.95):
        found = regime(**forks_of(difference), confidence=confidence)
        expected = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
        assert found.interval == pytest.approx(expected, rel=0.01)


def test_nulls_and_single_draws_are_counted_out():
    columns = forks_of(np.array([[1.0, 1.0, 1.0], [1.0, 0.0, np.nan], [1.0, np.nan, np.nan]]))
    found = regime(**columns)
    assert (found.num_forks, found.num_pairs) == (2, 5)
    assert any("3 pairs with a null outcome" in warning for warning in found.warnings)
    assert any("1 forks with a single draw" in warning for warning in found.warnings)


def test_the_interval_does_not_depend_on_global_seeds_or_row_order():
    columns = forks_of(monotone(np.random.default_rng(6), 60, 3, 0.3))
    first = regime(**columns)
    assert regime(**columns) == first
    shuffled = np.random.default_rng(0).permutation(180)
    again = regime(**{name: column[shuffled] for name, column in columns.items()})
    assert again.effect == pytest.approx(first.effect)
    assert again.interval == pytest.approx(first.interval, rel=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"luck": [0] * 12}, "`luck` must differ within a fork"),
        ({"luck": [0]}, "`luck` must have one label a row: 12, got 1"),
        ({"twin": [0.0]}, "`twin` must have one entry a row"),
        ({"cluster": list(range(12))}, "`cluster` must be the same for all pairs of a fork"),
        ({"confidence": 1.0}, "`confidence` must lie in"),
        ({"linear_below": 20.0}, "`linear_below` must be positive and at most"),
    ],
)
def test_wrong_regime_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        regime(**(forks_of(np.ones((4, 3))) | change))


@pytest.mark.slow
def test_coverage_of_the_ratio():
    """True ratio 2: forks differ with probability .2, mean difference +-.1."""
    rng, runs, hits = np.random.default_rng(8), 300, 0
    for _ in range(runs):
        sign = rng.choice([-1.0, 1.0], (300, 1))
        u = rng.random((300, 4))
        difference = sign * ((u < 0.15).astype(float) - ((u >= 0.15) & (u < 0.2)))
        low, high = regime(**forks_of(difference)).interval
        hits += low <= 2.0 <= high
    assert hits >= binom.ppf(1e-6, runs, 0.93)
