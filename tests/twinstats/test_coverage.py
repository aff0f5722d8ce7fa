"""Coverage and type I error by adding up all tables (b, c), and by simulation in clusters.

An interval or p-value is worked out once for each table, by the public names; the law of the
tables is trinomial. Bars that hold nowhere near everywhere are stated with where they hold, and
the worst case beside them.
"""

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy import special, stats

from twinstats.pairs import paired
from twinstats.sequential import PairedSequence, log_wealth

ALPHA = 0.05
ROUNDING = 1e-12


@cache
def tables(n):
    """All b and c of n pairs."""
    b, c = np.divmod(np.arange((n + 1) ** 2), n + 1)
    return b[b + c <= n], c[b + c <= n]


def law(n, discordance, effect):
    """The probability of each table."""
    b, c = tables(n)
    ties = n - b - c
    logs = special.gammaln(n + 1) - special.gammaln(np.stack([b, c, ties]) + 1).sum(axis=0)
    logs += special.xlogy(b, (discordance + effect) / 2)
    logs += special.xlogy(c, (discordance - effect) / 2)
    return np.exp(logs + special.xlogy(ties, 1 - discordance))


def result_of(b, c, n, **options):
    factual, twin = np.zeros(n), np.zeros(n)
    factual[:b], twin[b : b + c] = 1, 1
    return paired(factual, twin, **options)


@cache
def bounds(n, method):
    """Lower and upper ends of the interval of each table; those of (c, b) are mirrored."""
    low, high = np.empty((n + 1, n + 1)), np.empty((n + 1, n + 1))
    for b, c in zip(*tables(n), strict=True):
        if b >= c:
            low[b, c], high[b, c] = result_of(b, c, n).confidence_interval(method=method)
            low[c, b], high[c, b] = -high[b, c], -low[b, c]
    return low[tables(n)], high[tables(n)]


@cache
def rejections(n, test):
    """Whether each table is rejected at 5% against both sides."""
    found = np.zeros((n + 1, n + 1), bool)
    for b, c in zip(*tables(n), strict=True):
        if b >= c:
            pvalue = result_of(b, c, n, test=test).pvalue
            found[b, c] = found[c, b] = pvalue is not None and pvalue <= ALPHA
    return found[tables(n)]


def coverage(n, discordance, effect, method="tango"):
    low, high = bounds(n, method)
    covered = (low <= effect + ROUNDING) & (effect - ROUNDING <= high)
    return float(law(n, discordance, effect) @ covered)


def coverages(sizes, discordances, shares, method="tango"):
    """(coverage, n, discordance, effect) over a grid; effect is a share of the discordance."""
    return [
        (coverage(n, d, share * d, method), n, d, share * d)
        for n, d, share in product(sizes, discordances, shares)
    ]


def worst_size(test, sizes, discordances):
    """The largest type I error and where it is."""
    return max(
        (float(law(n, d, 0.0) @ rejections(n, test)), n, d) for n, d in product(sizes, discordances)
    )


# --- coverage of the intervals ----------------------------------------------------------------

DISCORDANCES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MODERATE = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
ANY = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)


def check_tango(sizes):
    """At least .94 for effects up to a quarter of the discordance, .92 below discordance 1."""
    assert min(coverages(sizes, DISCORDANCES, MODERATE))[0] >= 0.94
    everywhere = coverages(sizes, (*DISCORDANCES, 0.95, 1.0), ANY)
    assert min(everywhere)[0] >= 0.89
    assert min(entry for entry in everywhere if entry[2] < 1)[0] >= 0.924
    below = [found for found in everywhere if found[0] < 0.94]
    assert len(below) <= 0.05 * len(everywhere)
    for found, n, discordance, effect in everywhere:
        if n * discordance >= 10 and discordance < 1 and effect <= 0.95 * discordance:
            assert found <= 0.975, (n, discordance, effect)


def test_tango_covers():
    check_tango((20, 30, 50))


def test_tango_covers_rare_monotone_effects():
    """Discordance = effect = .05, so only b matters; it dips below .94 from n = 79 on."""
    for n in range(20, 79):
        b = np.arange(n + 1)
        chance = stats.binom.pmf(b, n, 0.05)
        likely = b[chance > 1e-7]
        ends = [result_of(k, 0, n).confidence_interval() for k in likely]
        covered = [low - ROUNDING <= 0.05 <= high + ROUNDING for low, high in ends]
        assert chance[likely] @ covered >= 0.94 - 1e-6, n
        if n == 50:
            assert chance[likely] @ covered == pytest.approx(0.9882, abs=1e-4)


@pytest.mark.slow
def test_tango_covers_on_the_large_grid():
    check_tango((*range(20, 51, 2), 60, 80, 120))


@pytest.mark.parametrize(
    ("method", "least", "rare"), [("bonett-price", 0.928, 0.999), ("t", 0.64, 0.64)]
)
def test_other_intervals_cover_as_the_docs_say(method, least, rare):
    """Bonett-Price stays near; t falls with the number of discordant pairs that are expected."""
    found = coverages((20, 50), DISCORDANCES, ANY, method)
    common = [entry for entry in found if entry[1] * entry[2] >= 10]
    assert min(found)[0] >= (least if method == "bonett-price" else 0.18)
    assert min(common)[0] >= least
    assert coverage(20, 0.05, 0.05, method) == pytest.approx(rare, abs=2e-3)


def test_bonett_price_holds_its_counts_one_off():
    """The closed form at every table of 20 pairs, beside the naive formula."""
    low, high = bounds(20, "bonett-price")
    b, c = tables(20)
    up, down = (b + 1) / 22, (c + 1) / 22
    width = stats.norm.isf(0.025) * np.sqrt((up + down - (up - down) ** 2) / 22)
    np.testing.assert_allclose(low, np.maximum(up - down - width, -1), atol=1e-12)
    np.testing.assert_allclose(high, np.minimum(up - down + width, 1), atol=1e-12)


def test_tango_interval_is_where_the_score_stays_within_its_bound():
    """Membership at each table of 30 pairs, against the score written out anew."""
    n = 30
    b, c = tables(n)
    low, high = bounds(n, "tango")
    for effect in (-0.9, -0.3, 0.0, 0.05, 0.3, 0.77):
        linear = -b - c + (2 * n - b + c) * effect
        root = np.sqrt(np.maximum(linear**2 + 8 * n * c * effect * (1 - effect), 0))
        variance = (root - linear) / (2 * n) + effect * (1 - effect)
        score = (b - c - n * effect) / np.sqrt(n * np.maximum(variance, 1e-300))
        inside = np.abs(score) <= stats.norm.isf(0.025)
        np.testing.assert_array_equal((low <= effect) & (effect <= high), inside)


# --- type I error -----------------------------------------------------------------------------

RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95)
SMALL = (2, 3, 5, 6, 7, 8, 12, 16, 17, 20)


def check_sizes(sizes, rates):
    most = max(sizes)
    assert worst_size("exact", sizes, (*rates, 1.0))[0] <= ALPHA
    assert worst_size("midp", sizes, rates)[0] <= 0.075
    moderate = tuple(n for n in sizes if n >= 5)
    assert worst_size("t", moderate, rates)[0] <= 0.09
    assert worst_size("tango", moderate, rates)[0] <= 0.08  # at margin 0 Connor's score
    assert most >= 20


def test_type_one_errors():
    check_sizes(SMALL, RATES)


def test_type_one_errors_where_every_pair_differs():
    """Discordance 1 leaves n tosses of a coin: the worst of all, for all tests but the exact."""
    assert worst_size("midp", (16,), (1.0,))[0] == pytest.approx(0.0768127, abs=1e-6)
    assert worst_size("t", (7,), (1.0,))[0] == pytest.approx(0.109375, abs=1e-6)
    assert worst_size("tango", (4,), (1.0,))[0] == pytest.approx(0.125, abs=1e-6)
    assert worst_size("exact", (17,), (1.0,))[0] == pytest.approx(0.0490417, abs=1e-6)


@pytest.mark.slow
def test_type_one_errors_on_the_large_grid():
    check_sizes((*range(2, 41), 60, 80), (*np.arange(0.01, 0.95, 0.02), 0.95))


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize("sizes", [(1, 2, 3, 4, 5, 6, 7, 8), (1, 1, 1, 1, 1, 1, 1, 1), (5, 1, 1)])
def test_sign_flips_never_exceed_their_level(sizes, alternative):
    """All sign vectors of given magnitudes: P(p <= a) <= a for every a, hence for every mixture."""
    options = {"test": "signflip", "alternative": alternative}
    found = [
        paired(np.array(signs) * sizes, np.zeros(len(sizes)), **options).pvalue
        for signs in product((-1.0, 1.0), repeat=len(sizes))
    ]
    for level in set(found):
        assert np.mean(np.array(found) <= level) <= level + ROUNDING


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_the_anytime_test_never_exceeds_its_level(alpha):
    """Discordant pairs are fair tosses under the null; the walk stops where the sequence does."""
    alive, stopped = np.ones(1), 0.0
    for count in range(1, 400):
        grown = np.append(alive / 2, 0.0)
        grown[1:] += alive / 2
        wins = np.arange(count + 1)
        over = log_wealth(wins, count - wins) >= -math.log(alpha)
        stopped += grown[over].sum()
        alive = np.where(over, 0.0, grown)
    assert 0.3 * alpha <= stopped <= alpha


def test_the_sequence_stops_on_the_edge_of_that_walk():
    for signs in product((-1, 1), repeat=9):
        sequence, edge = PairedSequence(0.2), False
        for count, sign in enumerate(signs, start=1):
            sequence.update(sign)
            wins = (count + sum(signs[:count])) // 2
            edge = edge or float(log_wealth(wins, count - wins)) >= math.log(5)
            assert sequence.rejected == edge


# --- clusters and more twins than one ---------------------------------------------------------


def clustered_pairs(rng, num_clusters=40, size=5):
    """Binary pairs whose direction a cluster mostly shares; no effect on average."""
    direction = rng.choice((-1, 1), num_clusters)[:, None]
    sign = np.where(rng.random((num_clusters, size)) < 0.9, direction, -direction)
    sign = np.where(rng.random((num_clusters, size)) < 0.5, sign, 0).ravel()
    cluster = np.repeat(np.arange(num_clusters), size)
    return (sign > 0) * 1, (sign < 0) * 1, {"cluster": cluster}


def many_twins(rng, num_rows=40, num_twins=5):
    """Each factual outcome is shared by its twins."""
    return rng.integers(0, 2, num_rows), rng.integers(0, 2, (num_rows, num_twins)), {}


def few_clusters(rng, num_clusters=8, size=4):
    """Continuous differences with a common part in each of few clusters."""
    shared = np.repeat(rng.normal(size=num_clusters), size)
    cluster = np.repeat(np.arange(num_clusters), size)
    return shared + rng.normal(size=len(shared)), np.zeros(len(shared)), {"cluster": cluster}


def rejected_share(draw, method, runs):
    """Rejections of the default test, and of exact McNemar that takes pairs for independent."""
    rng = np.random.default_rng(17)
    hits, naive = 0, 0
    for _ in range(runs):
        factual, twin, options = draw(rng)
        result = paired(factual, twin, **options)
        assert result.method == method
        hits += result.pvalue <= ALPHA
        b, c = result.discordant
        naive += 2 * special.bdtr(float(min(b, c)), b + c, 0.5) <= ALPHA
    return hits, naive


CLUSTERED = [
    (clustered_pairs, "t", ALPHA),
    (many_twins, "t", ALPHA),
    (few_clusters, "signflip", 6 / 128),  # the level that 8 clusters attain
]


def check_clustered(draw, method, level, runs):
    hits, naive = rejected_share(draw, method, runs)
    low, high = stats.binom.interval(1 - 1e-6, runs, level)
    assert low <= hits <= high
    if method == "t":  # on binary pairs
        assert naive / runs > 0.12


@pytest.mark.parametrize(("draw", "method", "level"), CLUSTERED)
def test_the_default_test_keeps_its_level_in_clusters(draw, method, level):
    check_clustered(draw, method, level, 600)


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "method", "level"), CLUSTERED)
def test_the_default_test_keeps_its_level_in_clusters_in_many_runs(draw, method, level):
    check_clustered(draw, method, level, 10_000)


@pytest.mark.parametrize("test", ["exact", "midp", "tango"])
def test_tests_of_counts_are_refused_in_clusters_and_with_more_twins(test):
    """Also when clusters and pairs are as many but one label repeats."""
    with pytest.raises(ValueError, match=f"`test` '{test}' needs binary, unweighted"):
        paired([1, 0, 1], [0, 0, 1], cluster=[0, 0, 1], test=test)
    with pytest.raises(ValueError, match=f"`test` '{test}' needs binary, unweighted"):
        paired([1, 0, 1], [[0, 0], [1, 0], [0, 1]], test=test)
    assert paired([1, 0, 1], [0, 0, 1], cluster=[0, 0, 1]).method != "exact"
    assert paired([1, 0, 1], [[0, 0], [1, 0], [0, 1]]).method == "t"
