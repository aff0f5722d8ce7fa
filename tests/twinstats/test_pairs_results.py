import json
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


# --- reference values -------------------------------------------------------------------------


def test_reference_values_of_the_fifty_pairs():
    factual = [1] * 20 + [1] * 12 + [0] * 2 + [0] * 16
    twin = [1] * 20 + [0] * 12 + [1] * 2 + [0] * 16
    result = paired(factual, twin, test="midp")
    assert result.discordance == 0.28
    assert result.stderr == pytest.approx(0.06998542122, rel=1e-9)
    assert result.confidence_interval(method="t")[1] == pytest.approx(0.3406409694, rel=1e-9)
    assert result.rho_eff == pytest.approx(0.4966442953, rel=1e-9)
    assert result.pvalue == pytest.approx(0.007385253906, rel=1e-9)


@pytest.mark.parametrize(
    "data, method, ends",
    [
        ((9, 1, 50), "tango", (0.0445087, 0.2929364)),
        ((9, 1, 50), "bonett-price", (0.03015544196, 0.2775368657)),
        ((9, 1, 50), "t", (0.0401110, 0.2798890)),
        ((5, 0, 50), "tango", (0.0215176, 0.2136024)),
        ((0, 0, 50), "tango", (-0.0713476, 0.0713476)),
        ((0, 0, 50), "bonett-price", (-0.0533040, 0.0533040)),
    ],
)
def test_reference_intervals(data, method, ends):
    found = paired(*table(*data)).confidence_interval(method=method)
    np.testing.assert_allclose(found, ends, atol=1e-7)


def test_exact_mcnemar_of_a_published_table():
    assert paired(*table(18, 33, 1536)).pvalue == pytest.approx(0.0488739, abs=5e-8)


def exact_coverage(n, delta, effect):
    """Coverage of each interval by enumerating all (b, c)."""
    up, down = (delta + effect) / 2, (delta - effect) / 2
    covered = dict.fromkeys(("t", "bonett-price", "tango"), 0.0)
    for b in range(n + 1):
        for c in range(n + 1 - b):
            chance = stats.multinomial.pmf([b, c, n - b - c], n, [up, down, 1 - up - down])
            if chance < 1e-7:
                continue
            result = paired(*table(b, c, n))
            for method in covered:
                low, high = result.confidence_interval(method=method)
                covered[method] += chance * (low - 1e-12 <= effect <= high + 1e-12)
    return covered


@pytest.mark.parametrize(
    "n, delta, effect, expected",
    [
        (50, 0.05, 0.05, (0.9199, 0.9992, 0.9882)),
        (50, 0.1, 0.1, (0.8789, 0.9630, 0.9703)),
        (50, 0.3, 0.1, (0.9529, 0.9573, 0.9523)),
        (20, 0.2, 0.1, (0.9474, 0.9810, 0.9733)),
    ],
)
def test_exact_coverage_of_the_intervals(n, delta, effect, expected):
    covered = exact_coverage(n, delta, effect)
    np.testing.assert_allclose(list(covered.values()), expected, atol=1.5e-4)


# --- failed pairs -----------------------------------------------------------------------------


def test_failed_binary_pairs_are_dropped_counted_and_bounded():
    result = paired([1, 0, None, 1, 1], [0, 0, 1, None, float("nan")])
    assert (result.estimate, result.num_pairs, result.num_missing) == (0.5, 2, 3)
    assert result.missing_bounds == (0.0, 3 / 5)  # -1 + 0 + 0 + 1 and 0 + 1 + 1 + 1, of 5
    assert any(text.startswith("missing: 3 of 5") for text in result.warnings)


def test_failed_continuous_pairs_take_the_observed_range_and_say_so():
    result = paired([0.5, 2.0, None], [0.0, 1.0, 1.5])
    assert result.missing_bounds == ((0.5 + 1 - 1.5) / 3, (0.5 + 1 + 0.5) / 3)
    assert "observed range" in result.warnings[-1]


def test_bounds_hold_whatever_the_failed_pairs_were():
    rng = np.random.default_rng(2)
    factual, twin = rng.integers(0, 2, 12), rng.integers(0, 2, 12)
    weight = rng.uniform(1, 3, 12)
    masked = [None if i in (1, 4, 7) else int(v) for i, v in enumerate(twin)]
    low, high = paired(factual, masked, weights=weight).missing_bounds
    reached = []
    for filled in product((0, 1), repeat=3):
        twin[[1, 4, 7]] = filled
        reached.append(paired(factual, twin, weights=weight).estimate)
    assert (low, high) == pytest.approx((min(reached), max(reached)), rel=1e-12)


def test_a_failed_twin_leaves_its_siblings():
    result = paired([1.5, 0.5], [[1.0, None], [0.5, 0.25]])
    assert (result.num_pairs, result.num_clusters, result.num_missing) == (3, 2, 1)
    assert result.estimate == pytest.approx((0.5 + 0 + 0.25) / 3)


def test_without_missing_pairs_the_bounds_are_the_estimate():
    result = paired(*table(9, 1, 50))
    assert result.missing_bounds == (result.estimate, result.estimate)


def test_every_pair_failed_is_a_result_with_a_reason():
    result = paired([None, 1], [0, None])
    assert (result.estimate, result.stderr, result.pvalue, result.num_pairs) == (None,) * 3 + (0,)
    assert result.confidence_interval() is None
    assert result.missing_bounds == (-0.0, 1.0)  # 0 or 1 for (?, 0), 0 or 1 for (1, ?)
    assert result.warnings[0].startswith("no_pairs")
    json.loads(json.dumps(result.to_dict(), allow_nan=False))


# --- degenerate data --------------------------------------------------------------------------


def test_one_pair_has_an_estimate_and_no_stderr():
    for factual, twin in (([1], [0]), ([1.5], [0.25])):
        result = paired(factual, twin)
        assert result.estimate == factual[0] - twin[0] and result.stderr is None
        assert any("one_cluster" in text for text in result.warnings)
        assert result.confidence_interval(method="t") is None
        assert result.confidence_interval(method="bca") is None


def test_one_cluster_of_many_pairs_has_no_stderr():
    result = paired(*continuous(9), cluster=["task"] * 9)
    assert (result.stderr, result.pvalue, result.num_clusters) == (None, None, 1)
    assert "undefined" in str(result)


def test_clusters_with_equal_sums_are_flagged_not_certain():
    factual = [0.3, 0.1, 0.2, 0.2, 0.1, 0.3]
    result = paired(factual, [0.0] * 6, cluster=[0, 0, 1, 1, 2, 2], test="t")
    assert result.stderr == 0.0 and result.pvalue is None
    assert any("zero_variance" in text for text in result.warnings)


def test_float32_rounding_is_no_variance():
    factual = np.array([4.33, 4.39, 7.77], np.float32)
    twin = np.array([4.28, 4.34, 7.72], np.float32)
    result = paired(factual, twin)
    assert result.stderr == 0.0 and result.pvalue is None


def test_small_true_variance_is_not_taken_for_rounding():
    result = paired([1e6 + 1, 1e6 + 2, 1e6 + 4], [1e6, 1e6, 1e6])
    assert result.stderr == pytest.approx(np.std([1, 2, 4], ddof=1) / math.sqrt(3))


def test_few_clusters_use_sign_flips_and_say_how_low_p_can_go():
    result = paired([3.0, 1.0, 2.0, 1.0], [0.0] * 4, cluster=["a", "b", "c", "d"])
    assert (result.method, result.pvalue) == ("signflip", 2 / 16)
    assert any("0.125" in text for text in result.warnings)
    for num_clusters, method in ((9, "signflip"), (10, "t")):
        many = paired(*continuous(2 * num_clusters), cluster=np.arange(2 * num_clusters) // 2)
        assert (many.method, many.num_clusters) == (method, num_clusters)


@pytest.mark.parametrize(
    "options, method",
    [
        ({}, "exact"),
        ({"cluster": np.arange(50)}, "exact"),
        ({"weights": np.ones(50)}, "t"),
        ({"population": 60}, "t"),
        ({"cluster": np.arange(50) // 2}, "t"),
        ({"margin": 0.1}, "tango"),
    ],
)
def test_auto_is_exact_only_for_plain_binary_pairs(options, method):
    assert paired(*table(9, 1, 50), **options).method == method


def test_two_clusters_of_two_types_of_label_are_kept_apart():
    result = paired(*continuous(4), cluster=[1, "1", (1, 2), 1])
    assert result.num_clusters == 3


def test_anytime_uses_cluster_means_in_order_of_first_appearance():
    from twinstats.sequential import PairedSequence

    means = np.array([1.0] * 10 + [0.5] + [0.0] * 9 + [-1.0] * 4)
    sequence, late = PairedSequence(alpha=0.1), PairedSequence(alpha=0.1)
    sequence.update(means)
    late.update(means[::-1])
    assert sequence.confidence_interval() != pytest.approx(late.confidence_interval())
    names = [f"task {99 - i}" for i in range(24)]
    factual = np.concatenate([means > 0, [False]])  # "task 89" has a second pair, a tie
    twin = np.concatenate([means < 0, [False]])
    labels = [*names, names[10]]
    for cluster in (labels, np.array(labels)):
        result = paired(factual, twin, cluster=cluster)
        found = result.confidence_interval(0.9, method="anytime")
        assert found == pytest.approx(sequence.confidence_interval(), abs=1e-12)


# --- output -----------------------------------------------------------------------------------


def test_to_dict_is_strict_json_without_the_data():
    result = paired([1.5], [0.5])
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert found["stderr"] is None and found["estimate"] == 1.0
    assert not any(name.startswith("_") for name in found)
    assert "warning: one_cluster" in str(result)


@pytest.mark.slow
def test_coverage_of_the_clustered_t_and_bca_intervals():
    rng = np.random.default_rng(11)
    hits = dict.fromkeys(("t", "bca"), 0)
    cluster = np.repeat(np.arange(30), 5)
    for _ in range(400):
        shared = rng.normal(size=30)[cluster]
        result = paired(0.3 + shared + rng.normal(size=150), rng.normal(size=150), cluster=cluster)
        for method in hits:
            low, high = result.confidence_interval(method=method)
            hits[method] += low <= 0.3 <= high
    least, most = stats.binom.interval(1 - 1e-6, 400, 0.95)
    assert least <= hits["t"] <= most
    assert stats.binom.interval(1 - 1e-6, 400, 0.93)[0] <= hits["bca"] <= most


@pytest.mark.parametrize("kind", ["normal", "offset", "float32", "whole", "binary", "tiny", "huge"])
def test_the_one_pass_over_plain_pairs_equals_the_general_path(kind):
    """Distinct labels say nothing, but send the same pairs along the path for clusters."""
    rng = np.random.default_rng(12)
    factual, twin = rng.normal(size=(2, 20_003)) + rng.normal(size=20_003)
    make = {
        "normal": lambda x: x,
        "offset": lambda x: x + 1e6,
        "float32": lambda x: x.astype(np.float32),
        "whole": lambda x: np.round(3 * x).astype(np.int64),
        "binary": lambda x: (x > 0.3).astype(float),
        "tiny": lambda x: x * 2.0**-520,
        "huge": lambda x: x * 2.0**500,
    }[kind]
    plain = paired(make(factual), make(twin))
    general = paired(make(factual), make(twin), cluster=np.arange(20_003))
    for name in ("estimate", "stderr", "discordance", "rho", "rho_eff", "pvalue"):
        expected = getattr(general, name)
        assert getattr(plain, name) == pytest.approx(expected, rel=1e-9, abs=0), name
    for name in ("discordant", "ties", "num_pairs", "method"):
        assert getattr(plain, name) == getattr(general, name), name
