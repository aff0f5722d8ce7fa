import json
import math

import numpy as np
import pytest
from scipy import stats

from twinstats import _variance_draws
from twinstats.variance import variance_account


def cells(a, b, c, d):
    """Binary pairs: a both 1, b (1, 0), c (0, 1), d both 0."""
    return [1] * (a + b) + [0] * (c + d), [1] * a + [0] * b + [1] * c + [0] * d


def coupled(n, seed=1):
    rng = np.random.default_rng(seed)
    luck, fresh = rng.normal(size=n), rng.normal(size=n)
    own = 0.3 * rng.normal(size=(3, n))
    return luck + own[0], 0.8 * luck + own[1], 0.8 * fresh + own[2]


# --- intervals --------------------------------------------------------------------------------


def test_binary_intervals_are_the_dirichlet_posterior_of_four_cells():
    account = variance_account(*cells(20, 12, 2, 16))
    draws = np.random.default_rng(7).dirichlet([20.5, 12.5, 2.5, 16.5], 200_000)
    p, q = draws[:, 0] + draws[:, 1], draws[:, 0] + draws[:, 2]
    covariance = draws[:, 0] - p * q
    for name, values in (
        ("rho", covariance / np.sqrt(p * (1 - p) * q * (1 - q))),
        ("rho_eff", 2 * covariance / (p * (1 - p) + q * (1 - q))),
        ("discordance", draws[:, 1] + draws[:, 2]),
    ):
        ends = np.quantile(values, [0.025, 0.975])
        np.testing.assert_allclose(account.intervals[name], ends, atol=0.01)
    assert account.intervals["effect"] == pytest.approx((0.0593590306, 0.3406409694))


def test_other_intervals_are_a_bayesian_bootstrap_over_clusters():
    factual, twin, _ = coupled(60)
    cluster = np.arange(60) // 3
    account = variance_account(factual, twin, cluster=cluster)
    weight = np.random.default_rng(9).dirichlet(np.ones(20), 20_000)[:, cluster]
    weight /= weight.sum(axis=1, keepdims=True)
    first = np.sum(weight * factual**2, axis=1) - np.sum(weight * factual, axis=1) ** 2
    second = np.sum(weight * twin**2, axis=1) - np.sum(weight * twin, axis=1) ** 2
    between = factual - twin
    both = np.sum(weight * between**2, axis=1) - np.sum(weight * between, axis=1) ** 2
    paired = both * 20 / 19
    for name, values in (("rho_eff", 1 - both / (first + second)), ("variance_paired", paired)):
        ends = np.quantile(values, [0.025, 0.975])
        np.testing.assert_allclose(account.intervals[name], ends, rtol=0.03)


def test_copies_of_pairs_in_a_cluster_do_not_narrow_intervals():
    factual, twin, _ = coupled(25)
    one = variance_account(factual, twin)
    many = variance_account(
        np.repeat(factual, 40), np.repeat(twin, 40), cluster=np.repeat(np.arange(25), 40)
    )
    for name in ("rho_eff", "variance_paired", "discordance", "effect"):
        np.testing.assert_allclose(many.intervals[name], one.intervals[name], rtol=1e-6)


def test_the_normal_limit_of_many_clusters_agrees_with_their_draws(monkeypatch):
    factual, twin, _ = coupled(4000)
    drawn = variance_account(factual, twin).intervals
    monkeypatch.setattr(_variance_draws, "NORMAL_CLUSTERS", 100)
    limit = variance_account(factual, twin).intervals
    for name in ("rho", "rho_eff", "variance_paired", "covariance"):
        assert limit[name] != drawn[name]
        np.testing.assert_allclose(limit[name], drawn[name], rtol=0.004)


def test_equal_clusters_are_drawn_as_one_gamma():
    columns = {"a": np.array([1.0, 1, 1, 1]), "b": np.array([2.0, -1, 2, 2])}
    sums = _variance_draws.cluster_draws(columns, np.arange(4))
    np.testing.assert_allclose([sums["a"].mean(), sums["b"].mean()], [4, 5], rtol=0.03)
    np.testing.assert_allclose([sums["a"].var(), sums["b"].var()], [4, 13], rtol=0.05)


def test_intervals_do_not_depend_on_the_global_generator():
    factual, twin, control = coupled(40)
    np.random.seed(1)  # noqa: NPY002
    one = variance_account(factual, twin, control=control)
    np.random.seed(2)  # noqa: NPY002
    assert variance_account(factual, twin, control=control) == one


# --- degenerate and failed --------------------------------------------------------------------


def test_no_discordant_pair_has_no_point_rho_but_a_bound_on_discordance():
    account = variance_account([1] * 50, [1] * 50)
    assert account.rho is None and account.rho_eff is None and account.discordance == 0.0
    assert any("0.07112" in text for text in account.warnings)
    assert account.intervals["discordance"][1] < 0.08
    json.dumps(account.to_dict(), allow_nan=False)


def test_one_pair_one_cluster_and_no_pair_have_stated_results():
    one = variance_account([1.5], [0.5])
    assert (one.effect, one.variance_paired, one.num_pairs) == (1.0, None, 1)
    assert any(text.startswith("one_pair") for text in one.warnings)
    cluster = variance_account(*coupled(9)[:2], cluster=["task"] * 9)
    assert cluster.variance_paired is not None
    assert set(cluster.intervals.values()) == {None}
    none = variance_account([None, 1.0], [1.0, None])
    assert (none.effect, none.variance_paired, none.num_missing) == (None, None, 2)
    for account in (one, cluster, none):
        json.dumps(account.to_dict(), allow_nan=False)
        assert "warning" in str(account)


def test_failed_pairs_are_dropped_and_counted():
    factual, twin, _ = coupled(20)
    masked = [None if i in (3, 8) else v for i, v in enumerate(twin)]
    keep = [i for i in range(20) if i not in (3, 8)]
    account = variance_account(factual, masked)
    assert account.variance_paired == variance_account(factual[keep], twin[keep]).variance_paired
    assert account.num_missing == 2
    assert any(text.startswith("missing: 2 of 20") for text in account.warnings)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fork": [1, 2, 3]}, "`fork` and `luck` must be given together"),
        ({"luck": [1, 2, 3]}, "`fork` and `luck` must be given together"),
        ({"fork": [1, 1, 2], "luck": [0, 0, 0]}, "`luck` must not repeat within a fork"),
        ({"fork": [1, 1], "luck": [0, 1, 0]}, "`fork` must have one label a row: 3, got 2"),
        ({"control": [1, 2]}, r"`control` must have the shape of `twin`, \(3,\)"),
        ({"equal": [0.5, 1, 0]}, "`equal` must hold true, false or null"),
        ({"null": [1, 2]}, "`null` must have one outcome a row, 3"),
        ({"cluster": [1]}, "`cluster` must have one label a row"),
        ({"confidence": 95}, "`confidence` must be in"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        variance_account([1.0, 0.0, 2.0], [0.0, 0.5, 1.0], **options)


def test_forks_need_one_twin_each():
    with pytest.raises(ValueError, match="`fork` needs one twin a factual, got 2"):
        variance_account([1, 0], [[1, 0], [0, 1]], fork=[1, 1], luck=[0, 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "p, q, rho, expected",
    [
        (0.5, 0.5, 0.8, 0.955),
        (0.5, 0.6, 0.8, 0.958),
        (0.1, 0.15, 0.7, 0.953),
        (0.05, 0.05, 0.8, 0.935),
    ],
)
def test_coverage_of_the_binary_rho_interval(p, q, rho, expected):
    both = p * q + rho * math.sqrt(p * (1 - p) * q * (1 - q))
    chance = [both, p - both, q - both, 1 - p - q + both]
    rng = np.random.default_rng(3)
    hits = 0
    for counts in rng.multinomial(30, chance, 400):
        low, high = variance_account(*cells(*counts)).intervals["rho"]
        hits += low <= rho <= high
    least, most = stats.binom.interval(1 - 1e-6, 400, expected)
    assert least <= hits <= most
