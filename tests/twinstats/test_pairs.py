import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from twinstats.pairs import paired


def table(b, c, n):
    """Binary outcomes with b pairs higher, c lower, and n - b - c tied at 0."""
    factual = np.zeros(n)
    twin = np.zeros(n)
    factual[:b] = 1
    twin[b : b + c] = 1
    return factual, twin


def continuous(n, seed=1, shift=0.2):
    rng = np.random.default_rng(seed)
    luck = rng.normal(size=n)
    return luck + 0.5 * rng.normal(size=n) + shift, luck + 0.5 * rng.exponential(size=n)


# --- exact identities -------------------------------------------------------------------------


def test_binary_estimate_is_b_minus_c_over_n():
    result = paired(*table(9, 1, 50))
    assert (result.estimate, result.discordant, result.ties) == (8 / 50, (9, 1), 40)
    assert result.discordance == 10 / 50
    assert (result.num_pairs, result.num_clusters, result.num_missing) == (50, 50, 0)
    assert result.method == "exact"


def test_swapping_the_arms_mirrors_everything():
    factual, twin = continuous(17)
    one, other = paired(factual, twin, alternative="greater"), paired(twin, factual)
    assert one.estimate == -other.estimate and one.stderr == other.stderr
    assert paired(twin, factual, alternative="less").pvalue == pytest.approx(one.pvalue)
    for data in ((9, 1, 50), (0, 7, 20), (20, 0, 20), (3, 3, 9)):
        low, high = paired(*table(*data)).confidence_interval()
        mirrored = paired(*table(*data)[::-1]).confidence_interval()
        assert mirrored == (-high, -low)


@pytest.mark.parametrize("power", [600, -600])
@pytest.mark.parametrize("options", [{}, {"cluster": list("aabbccddeefffgg")}])
def test_scaling_by_a_power_of_two_changes_only_units(power, options):
    factual, twin = continuous(15)
    unit = 2.0**power
    one = paired(factual, twin, margin=0.125, **options)
    other = paired(factual * unit, twin * unit, margin=0.125 * unit, **options)
    assert (other.estimate, other.stderr) == (one.estimate * unit, one.stderr * unit)
    for name in ("pvalue", "rho", "rho_eff", "discordance", "method", "warnings"):
        assert getattr(other, name) == getattr(one, name)
    for method in ("t", "bca"):
        ends = one.confidence_interval(method=method)
        assert other.confidence_interval(method=method) == tuple(end * unit for end in ends)
    weights = np.arange(1.0, 16.0)
    heavy = paired(factual, twin, weights=weights * unit, **options)
    assert heavy.stderr == paired(factual, twin, weights=weights, **options).stderr


def test_an_outlier_that_ties_does_not_hide_small_differences():
    factual, twin = np.array([1.0, 2.0, 0.0, 2.0**600]), np.array([0.5, 2.5, 0.25, 2.0**600])
    result = paired(factual, twin)
    assert result.estimate == -0.25 / 4
    assert result.stderr == pytest.approx(np.std([0.5, -0.5, -0.25, 0], ddof=1) / 2)


def test_k_twins_are_one_cluster_of_pairs():
    factual = np.array([0.1, 0.5, 0.9, 0.2])
    twin = np.array([[0.2, 0.1], [0.4, 0.8], [0.3, 0.3], [0.0, 0.6]])
    result = paired(factual, twin)
    long = paired(np.repeat(factual, 2), twin.ravel(), cluster=np.repeat(np.arange(4), 2), test="t")
    assert (result.estimate, result.stderr) == (long.estimate, long.stderr)
    assert result.pvalue == long.pvalue and result.method == "t"
    assert (result.num_pairs, result.num_clusters) == (8, 4)
    by_row = factual - twin.mean(axis=1)
    assert result.stderr == pytest.approx(np.std(by_row, ddof=1) / 2)


def test_one_column_is_one_twin():
    factual, twin = table(5, 1, 30)
    assert paired(factual, twin[:, None]).to_dict() == paired(factual, twin).to_dict()


def test_pairs_of_weight_zero_and_pairs_not_sampled_are_the_same_population():
    factual, twin = continuous(40)
    weight = np.random.default_rng(3).choice([0.0, 2.0, 5.0], 40)
    whole = paired(factual, twin, weights=weight, population=40)
    keep = weight > 0
    part = paired(factual[keep], twin[keep], weights=weight[keep], population=40)
    assert part.estimate == pytest.approx(whole.estimate, rel=1e-13)
    assert part.stderr == pytest.approx(whole.stderr, rel=1e-13)


def test_population_of_the_whole_sample_reduces_to_the_mean():
    factual, twin = continuous(21)
    plain, counted = paired(factual, twin), paired(factual, twin, population=21)
    assert counted.estimate == pytest.approx(plain.estimate, rel=1e-13)
    assert counted.stderr == pytest.approx(plain.stderr, rel=1e-13)
    ends = counted.confidence_interval(method="bca")
    np.testing.assert_allclose(ends, plain.confidence_interval(method="bca"), atol=0.02)


# --- unbiasedness by enumeration --------------------------------------------------------------


def test_unbiased_under_every_coupling_by_enumerating_samples():
    noise = [(0, 0.0, 1.0), (1, 2.0, 0.5), (2, 3.0, 2.0)]  # equally likely luck: (id, F, T)
    truth = np.mean([f for _, f, _ in noise]) - np.mean([t for *_, t in noise])
    factual, twin = [f for _, f, _ in noise], [t for *_, t in noise]
    for relabelled in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        points = [(factual[i], twin[relabelled[i]]) for i in range(3)]
        values, squares = [], []
        for sample in product(points, repeat=3):
            result = paired(*map(list, zip(*sample, strict=True)))
            values.append(result.estimate)
            squares.append(result.stderr**2)
        np.testing.assert_allclose(np.mean(values), truth, rtol=1e-12)
        np.testing.assert_allclose(np.mean(squares), np.var(values), rtol=1e-12)


def test_weighted_population_mean_is_unbiased_when_twins_are_chosen_by_outcome():
    joint = {(0, 0): 0.4, (0, 1): 0.2, (1, 0): 0.1, (1, 1): 0.3}
    chosen = {0: 0.8, 1: 0.25}  # probability of a twin given the factual outcome
    mean = variance = naive = mass = total_square = 0.0
    for units in product(product(joint, (True, False)), repeat=3):
        weight = [1 / chosen[f] if taken else 0.0 for (f, _), taken in units]
        chance = math.prod(
            joint[pair] * (chosen[pair[0]] if taken else 1 - chosen[pair[0]])
            for pair, taken in units
        )
        estimate = stderr = 0.0
        if any(weight):
            first, second = zip(*(pair for pair, _ in units), strict=True)
            result = paired(list(first), list(second), weights=weight, population=3)
            estimate, stderr = result.estimate, result.stderr
            kept = [f - t for ((f, t), taken) in units if taken]
            naive, mass = naive + chance * np.mean(kept), mass + chance
        mean += chance * estimate
        variance += chance * stderr**2
        total_square += chance * estimate**2
    assert mean == pytest.approx(-0.1, rel=1e-12)
    assert variance == pytest.approx(total_square - mean**2, rel=1e-12)
    assert abs(naive / mass + 0.1) > 0.05  # the unweighted mean is far off


# --- naive second implementations -------------------------------------------------------------


def test_t_equals_scipy():
    factual, twin = continuous(23)
    for alternative in ("two-sided", "greater", "less"):
        reference = stats.ttest_rel(factual - 0.1, twin, alternative=alternative)
        result = paired(factual, twin, alternative=alternative, margin=0.1)
        assert result.pvalue == pytest.approx(reference.pvalue, rel=1e-11)
    reference = stats.ttest_rel(factual, twin).confidence_interval(0.9)
    np.testing.assert_allclose(paired(factual, twin).confidence_interval(0.9), reference)


@pytest.mark.parametrize("weighted", [False, True])
def test_clustered_stderr_equals_statsmodels(weighted):
    import statsmodels.api as sm

    factual, twin = continuous(60)
    rng = np.random.default_rng(5)
    cluster = rng.integers(0, 13, 60)
    weight = rng.uniform(0.5, 3, 60) if weighted else np.ones(60)
    fit = sm.WLS(factual - twin, np.ones(60), weights=weight).fit(
        cov_type="cluster", cov_kwds={"groups": cluster}
    )
    result = paired(factual, twin, cluster=cluster, weights=weight if weighted else None)
    assert result.estimate == pytest.approx(fit.params[0], rel=1e-12)
    assert result.stderr == pytest.approx(fit.bse[0], rel=1e-12)
    assert result.pvalue == pytest.approx(2 * stats.t.sf(abs(fit.tvalues[0]), 12), rel=1e-9)


@pytest.mark.parametrize("b, c", [(9, 1), (1, 9), (5, 5), (0, 4), (7, 0), (300, 260)])
def test_mcnemar_equals_binomial_sums(b, c):
    m = b + c
    for alternative in ("two-sided", "greater", "less"):
        data = table(b, c, m + 10)
        exact = paired(*data, test="exact", alternative=alternative).pvalue
        assert exact == pytest.approx(
            stats.binomtest(b, m, alternative=alternative).pvalue, rel=1e-10
        )
        below = stats.binom.cdf(b - 1, m, 0.5) + 0.5 * stats.binom.pmf(b, m, 0.5)
        middle = {"two-sided": 2 * min(below, 1 - below), "greater": 1 - below, "less": below}
        midp = paired(*data, test="midp", alternative=alternative).pvalue
        assert midp == pytest.approx(middle[alternative], rel=1e-9)


def restricted_variance(b, c, n, effect):
    """delta - effect^2 at the maximum of the likelihood over delta, by golden search."""
    from scipy.optimize import minimize_scalar

    def loss(delta):
        cells = np.array([(delta + effect) / 2, (delta - effect) / 2, 1 - delta])
        counts = np.array([b, c, n - b - c])
        return -float(np.sum(np.where(counts > 0, counts * np.log(np.maximum(cells, 1e-300)), 0)))

    found = minimize_scalar(
        loss, bounds=(abs(effect), 1), method="bounded", options={"xatol": 1e-12}
    )
    return found.x - effect**2


@pytest.mark.parametrize("b, c, n, margin", [(9, 1, 50, 0.1), (3, 8, 30, -0.3), (6, 2, 40, -0.05)])
def test_tango_equals_a_maximised_likelihood(b, c, n, margin):
    variance = restricted_variance(b, c, n, margin)
    score = ((b - c) / n - margin) / math.sqrt(variance / n)
    for alternative, value in (
        ("two-sided", 2 * stats.norm.sf(abs(score))),
        ("greater", stats.norm.sf(score)),
        ("less", stats.norm.cdf(score)),
    ):
        result = paired(*table(b, c, n), margin=margin, alternative=alternative)
        assert result.method == "tango"
        assert result.pvalue == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("data", [(9, 1, 50), (0, 0, 50), (5, 0, 50), (20, 0, 20), (0, 20, 20)])
def test_tango_interval_holds_what_its_test_does_not_reject(data):
    result = paired(*table(*data))
    for end, sign in zip(result.confidence_interval(), (-1, 1), strict=True):
        if abs(end) < 1:
            outside, inside = end + sign * 1e-6, end - sign * 1e-6
            assert paired(*table(*data), margin=inside, test="tango").pvalue > 0.05
            assert paired(*table(*data), margin=outside, test="tango").pvalue < 0.05
        else:
            assert abs(result.estimate) == 1


def test_signflip_equals_scipy_over_cluster_sums():
    factual, twin = continuous(16)
    cluster = np.array(list("abcdefgh") * 2)
    sums = np.array([(factual - twin)[cluster == name].sum() for name in "abcdefgh"])
    for alternative in ("two-sided", "greater", "less"):
        reference = stats.permutation_test(
            (sums,),
            np.sum,
            permutation_type="samples",
            n_resamples=np.inf,
            alternative=alternative,
        )
        result = paired(factual, twin, cluster=cluster, alternative=alternative)
        assert result.method == "signflip"
        assert result.pvalue == pytest.approx(reference.pvalue, rel=1e-12)


def test_random_signflips_agree_with_the_t_test_and_repeat():
    factual, twin = continuous(60)
    result = paired(factual, twin, test="signflip")
    assert result.pvalue == pytest.approx(paired(factual, twin, test="t").pvalue, abs=0.02)
    np.random.seed(0)  # noqa: NPY002
    assert paired(factual, twin, test="signflip").pvalue == result.pvalue


@pytest.mark.parametrize("data", [continuous(30), (2 ** np.arange(12.0), np.zeros(12))])
def test_bca_agrees_with_scipy(data):
    factual, twin = data
    result = paired(factual, twin)
    reference = stats.bootstrap(
        (factual - twin,), np.mean, n_resamples=9999, rng=np.random.default_rng(0)
    ).confidence_interval
    ends = result.confidence_interval(method="bca")
    np.testing.assert_allclose(ends, reference, atol=0.12 * result.stderr)
    assert ends == result.confidence_interval(method="bca")
    assert ends != result.confidence_interval(method="bca", seed=1)


def test_bca_resamples_whole_clusters():
    factual = np.repeat([1.0, 2.0, 4.0, 8.0, 5.0, 0.0], 50)
    cluster = np.repeat(np.arange(6), 50)
    whole = paired(factual, np.zeros(300), cluster=cluster).confidence_interval(method="bca")
    means = paired(factual[::50], np.zeros(6)).confidence_interval(method="bca")
    np.testing.assert_allclose(whole, means, rtol=1e-12)


def test_correlations_equal_numpy():
    factual, twin = continuous(31)
    result = paired(factual, twin)
    table_ = np.cov(factual, twin)
    assert result.rho == pytest.approx(np.corrcoef(factual, twin)[0, 1])
    assert result.rho_eff == pytest.approx(2 * table_[0, 1] / np.trace(table_))


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        (([], []), {}, "`factual` must hold at least one outcome"),
        (([1, 0], [1]), {}, "`factual` and `twin` must have the same length, got 2 and 1"),
        (([1, math.inf], [0, 1]), {}, "`factual` must be finite or null, got inf at entry 1"),
        (([1, 2], [0, -math.inf]), {}, "`twin` must be finite or null"),
        ((["a"], [1]), {}, "`factual` must hold numbers or null"),
        (([1, 0], [[1, 2], [3]]), {}, "`twin` must be rectangular"),
        (([[1], [0]], [1, 0]), {}, "`factual` must have one axis"),
        (([1, 0], [0, 0]), {"cluster": ["a"]}, "`cluster` must have one label a row: 2, got 1"),
        (([1, 0], [0, 0]), {"cluster": ["a", None]}, "`cluster` must not hold null"),
        (([1, 0], [0, 0]), {"weights": [1]}, "`weights` must have one entry a row"),
        (([1, 0], [0, 0]), {"weights": [1, -1]}, "`weights` must not be null or negative"),
        (([1, 0], [0, 0]), {"weights": [0, 0]}, "`weights` must not all be 0"),
        (([1, 0], [0, 0]), {"population": 1}, "`population` must be at least"),
        (([1, 0], [0, 0]), {"test": "exakt"}, "Did you mean 'exact'"),
        (([1, 0], [0, 0]), {"alternative": "larger"}, "Known: greater, less, two-sided"),
        (([1, 0], [0, 0]), {"margin": math.nan}, "`margin` must be finite"),
        (([1, 0], [0, 0]), {"margin": 1.0}, "`margin` must be in"),
        (([1, 0], [0, 0]), {"margin": 0.1, "test": "midp"}, "needs `margin` 0"),
        (([1.5, 0], [0, 0]), {"test": "exact"}, "needs binary, unweighted outcomes"),
    ],
)
def test_refusals(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        paired(*arguments, **options)


@pytest.mark.parametrize(
    "method, confidence, message",
    [
        ("tango", 0.95, "`method` 'tango' needs binary"),
        ("bonett-price", 0.95, "needs binary"),
        ("wald", 0.95, "Unknown method 'wald'"),
        ("t", 1.0, "`confidence` must be in"),
        ("anytime", 0.95, r"differences in \[-1, 1\], got 1.5"),
    ],
)
def test_interval_refusals(method, confidence, message):
    result = paired([1.5, 0.0], [0.0, 0.0])
    with pytest.raises(ValueError, match=message):
        result.confidence_interval(confidence, method)


def test_anytime_refuses_weights():
    with pytest.raises(ValueError, match="needs unweighted pairs"):
        paired([1, 0], [0, 0], weights=[1, 2]).confidence_interval(method="anytime")
