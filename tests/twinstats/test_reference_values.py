"""Every row of the table of reference values that has inputs and a public name, to 1e-8.

The values were worked out apart from this library (STATISTICS.md, section 9). Row 54 is printed
there with an error of 3e-8. Five rows are not here: 12 (Fisher's z), 16 (Miettinen's n) and the
continuity-corrected half of 60 are formulas that the library leaves out because they mislead; 42
(a CR0 standard error) and 58 (Gumbels of a 64-bit Philox block, whose sibling of 32 bits the
library uses) do not give their inputs.
"""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import brentq

from twinstats import (
    PairedSequence,
    agreement,
    disagreement_bounds,
    fit_exponent,
    joint,
    paired,
    paired_power,
    pairs_needed,
    sqrt_allocation,
    variance_account,
)
from twinstats.sequential import log_wealth

VARIANCE, COST = [0.25, 0.09, 0.01, 0.16], [1, 4, 1, 2]


def exactly(value):
    return pytest.approx(value, rel=1e-8, abs=0)


def rows_of(table):
    """The pairs of a 2x2 table: both succeed, factual only, twin only, neither."""
    both, higher, lower, neither = table
    factual = [1] * both + [1] * higher + [0] * lower + [0] * neither
    twin = [1] * both + [0] * higher + [1] * lower + [0] * neither
    return factual, twin


def needed(effect, power=0.8, **options):
    """The real-valued number of pairs, read off the power at a design effect that yields it."""
    whole = pairs_needed(effect, power=power, **options)

    def excess(icc):
        return paired_power(effect, whole, cluster_size=2, icc=icc, **options) - power

    return whole / (1 + brentq(excess, -0.99, 1.0, xtol=1e-15, rtol=1e-15))


# --- one 2x2 table (rows 2 to 10) -------------------------------------------------------------


def test_rows_2_to_10_of_the_fifty_pairs():
    result = paired(*rows_of((20, 12, 2, 16)), test="midp")
    assert result.discordance == exactly(0.28)
    assert result.stderr == exactly(0.06998542122)
    assert result.confidence_interval(method="t")[1] == exactly(0.3406409694)
    assert result.rho_eff == exactly(0.4966442953)
    assert result.pvalue == exactly(0.007385253906)
    assert variance_account(*rows_of((20, 12, 2, 16))).rho_eff == exactly(0.4966442953)


# --- sample sizes and power (rows 14 to 24, 40, 52) -------------------------------------------


def test_row_14_connors_number_of_pairs():
    options = {"discordance": 0.5, "test": "connor"}
    assert needed(0.4, alpha=0.025, alternative="greater", **options) == exactly(22.01132443)
    assert pairs_needed(0.45 - 0.05, **options) == 23


def test_rows_18_and_24_exact_powers():
    assert paired_power(0.2, 40, discordance=0.3) == exactly(0.5673794537)
    assert paired_power(2 * 0.75 - 1, 20, discordance=1.0) == exactly(0.6171764674)


def test_rows_20_and_22_exact_numbers_of_pairs():
    assert pairs_needed(0.2, discordance=0.3) == 61
    assert pairs_needed(0.05, discordance=0.05) == 157


def test_row_40_pairs_in_clusters_count_for_fewer():
    options = {"discordance": 0.3, "test": "wald"}
    plain = paired_power(0.2, 100, **options)
    assert paired_power(0.2, 220, cluster_size=5, icc=0.3, **options) == exactly(plain)
    assert pairs_needed(0.2, discordance=0.3, cluster_size=5, icc=0.3) == -(-61 * 22 // 10)


def test_row_52_power_of_the_paired_t_test():
    assert paired_power(0.474341649, 25, sd=1.0) == exactly(0.6240614253)


@pytest.mark.parametrize(
    ("discordance", "effect", "connor", "wald"),
    [
        (0.5, 0.4, 22.0113, 16.6789),
        (0.3, 0.2, 56.4497, 51.0177),
        (0.2, 0.1, 154.599, 149.129),
        (0.4, 0.1, 311.587, 306.106),
        (0.1, 0.1, 76.0875, 70.6399),
        (0.05, 0.05, 154.599, 149.129),
    ],
)
def test_normal_numbers_of_pairs_of_section_3(discordance, effect, connor, wald):
    options = {"discordance": discordance, "alpha": 0.025, "alternative": "greater"}
    assert needed(effect, test="connor", **options) == pytest.approx(connor, rel=5e-6)
    assert needed(effect, test="wald", **options) == pytest.approx(wald, rel=5e-6)


# --- couplings (rows 26, 28) ------------------------------------------------------------------


def test_rows_26_and_28_gumbel_coupling():
    p, q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
    assert joint(p, q)[0, 1] == exactly(0.08181818182)
    assert 1 - agreement([0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1]) == exactly(0.675)


def test_couplings_of_section_4():
    p, q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
    law = joint(p, q)
    assert 1 - agreement(p, q) == exactly(13 / 110)
    assert [law[0, 1], law[0, 2], law[2, 1]] == exactly([9 / 110, 1 / 55, 1 / 55])
    assert 1 - agreement(p, q, "independent") == exactly(0.64)
    assert disagreement_bounds(p, q) == exactly((0.1, 0.2 / 1.1))
    assert disagreement_bounds([0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1]) == exactly((0.6, 0.75))
    assert 1 - agreement([0.3, 0.0, 0.7], [0.0, 0.3, 0.7]) == exactly(6 / 13)


# --- allocation (rows 30 to 36, 62) -----------------------------------------------------------


def test_rows_30_32_and_34_square_root_allocation():
    found = sqrt_allocation(VARIANCE, COST, budget=100)
    assert found.counts[0] == exactly(28.31761496)
    assert found.counts[2] == exactly(5.663522992)
    assert found.value == exactly(0.0311764502)


def test_row_36_whole_numbers():
    found = sqrt_allocation(VARIANCE, 1, budget=11, integer=True)
    assert found.counts.tolist() == [4, 3, 1, 3]
    assert found.value == exactly(0.1558333333)


def test_row_62_limits():
    maximum = [20, np.inf, np.inf, np.inf]
    found = sqrt_allocation(VARIANCE, COST, budget=100, minimum=2, maximum=maximum)
    assert found.counts.tolist() == exactly([20, 9.48102883, 6.32068588, 17.8775994])
    assert found.value == exactly(0.03252449494)


def test_allocations_of_section_6():
    weighted = sqrt_allocation(VARIANCE, COST, budget=100, weights=[0.4, 0.3, 0.2, 0.1])
    assert weighted.value == pytest.approx(0.002084548, abs=5e-10)
    minimax = sqrt_allocation(VARIANCE, COST, budget=100, objective="minimax")
    assert minimax.value == exactly(0.0094)
    guess = sqrt_allocation([0.2, 0.2, 0.02, 0.1], 1, budget=100).counts
    best = sqrt_allocation(VARIANCE, 1, budget=100).value
    assert np.sum(VARIANCE / guess) / best == pytest.approx(1.0696109, abs=5e-8)
    knapsack = sqrt_allocation([2.121, 1.007, 0.352], [2, 3, 4], budget=14, integer=True)
    assert knapsack.counts.tolist() == [2, 2, 1]


# --- variances (rows 38, 46, 48) --------------------------------------------------------------


@pytest.fixture(scope="module")
def four_alike():
    """25,000 rows of a factual and three twins: means .7, all correlations exactly .6."""
    rows, counts = [], []
    for row in product((0, 1), repeat=4):
        alone = np.prod([0.7 if value else 0.3 for value in row])
        together = 0.7 * all(row) + 0.3 * (not any(row))
        rows.append(row)
        counts.append(round(25_000 * (0.4 * alone + 0.6 * together)))
    assert sum(counts) == 25_000
    data = np.repeat(rows, counts, axis=0)
    return data[:, 0], data[:, 1:]


def test_row_38_three_twins_of_one_factual(four_alike):
    last = 24_999  # both divide by one less than the number of factuals
    assert paired(*four_alike).stderr ** 2 * last == exactly(0.112)
    account = variance_account(*four_alike)
    assert account.variance_mean_twin * last / (last + 1) == exactly(0.112)
    assert account.variance_one_more * last / (last + 1) == exactly(0.105)
    assert account.variance_many * last / (last + 1) == exactly(0.084)


def test_row_46_two_chains_under_the_same_luck():
    """Four turns; the state becomes 1 if the turn's uniform is below .8 from 1, or .2 from 0."""
    luck = np.array(list(product((0.1, 0.3, 0.5, 0.7, 0.9), repeat=4)))
    factual, twin = np.ones(len(luck)), np.zeros(len(luck))
    for u in luck.T:
        factual, twin = (np.where(state == 1, u < 0.8, u < 0.2) * 1.0 for state in (factual, twin))
    result = paired(factual, twin)
    assert result.estimate == exactly(0.6**4)
    assert result.stderr**2 * (len(luck) - 1) == exactly(0.11280384)


def test_row_48_a_branch_that_turns_luck_round():
    u = (np.arange(20) + 0.5) / 20
    factual, twin = (u < 0.5) * 1, (u >= 0.45) * 1
    account = variance_account(factual, twin)
    assert account.rho == exactly(-0.9045340337)
    assert account.discordance == exactly(0.95)
    assert paired(factual, twin).stderr ** 2 * 19 == exactly(0.9475)


def test_couplings_of_six_luck_points_of_section_1():
    """Shared, independent and reversed luck: one mean, three variances."""
    p, q = np.arange(6) < 3, np.arange(6) < 2  # two margins of a six-point luck
    shared = paired(p * 1, q * 1)
    pairs = np.array(list(product(p * 1, q * 1)))
    independent, adverse = paired(pairs[:, 0], pairs[:, 1]), paired(p * 1, q[::-1] * 1)
    means = [result.estimate for result in (shared, independent, adverse)]
    assert means == exactly([1 / 6] * 3)
    sizes = (5, 35, 5)
    found = [r.stderr**2 * n for r, n in zip((shared, independent, adverse), sizes, strict=True)]
    assert found == exactly([5 / 36, 17 / 36, 29 / 36])


# --- anytime, exponents, intervals (rows 44, 50, 54, 56, 60) ----------------------------------


def test_row_44_wealth_of_eight_wins():
    sequence = PairedSequence()
    sequence.update([1] * 8)
    assert sequence.log_wealth == exactly(3.347952867)
    assert float(log_wealth(8, 0)) == exactly(3.347952867)


def test_row_50_local_exponent_of_a_mixture():
    effect = 0.1 * np.exp([1e-5, 0.0, -1e-5])
    found = fit_exponent(effect, (0.02 + effect - effect**2) / effect**2)
    assert found.slope == exactly(-1.272727273)
    assert found.slope == exactly(-14 / 11)


@pytest.mark.parametrize(("favourable", "expected"), [(0.75, 33.870765555174666), (1.0, 8.0)])
def test_row_54_discordant_pairs_until_the_anytime_test_stops(favourable, expected):
    """The table has 33.87076656; integer thresholds in long double give the value here."""
    alive, mean = np.ones(1), 0.0
    for count in range(1, 600):
        mean += alive.sum()
        grown = np.append((1 - favourable) * alive, 0.0)
        grown[1:] += favourable * alive
        wins = np.arange(count + 1)
        alive = np.where(log_wealth(wins, count - wins) >= np.log(20), 0.0, grown)
    assert mean == exactly(expected)


def test_row_56_bonett_price():
    found = paired(*rows_of((0, 9, 1, 40))).confidence_interval(method="bonett-price")
    assert found == exactly((0.03015544196, 0.2775368657))


def test_row_60_mcnemar_of_a_published_table():
    """1434, 18, 33, 51; R prints seven digits of the score test, the exact one is rational."""
    data = rows_of((1434, 18, 33, 51))
    assert paired(*data, test="tango").pvalue == pytest.approx(0.0356919, abs=5e-8)
    choose, tail = 1, 1
    for k in range(1, 19):
        choose = choose * (52 - k) // k
        tail += choose
    assert paired(*data).pvalue == exactly(2 * tail / 2**51)
    assert paired(*data).pvalue == pytest.approx(0.0488739, abs=5e-8)


@pytest.mark.parametrize(
    ("counts", "method", "ends"),
    [
        ((9, 1), "tango", (0.0445087, 0.2929364)),
        ((9, 1), "t", (0.0401110, 0.2798890)),
        ((5, 0), "tango", (0.0215176, 0.2136023)),  # printed there as .2136024
        ((0, 0), "tango", (-0.0713476, 0.0713476)),
        ((0, 0), "bonett-price", (-0.0533040, 0.0533040)),
    ],
)
def test_intervals_of_section_3(counts, method, ends):
    data = rows_of((0, *counts, 50 - sum(counts)))
    assert paired(*data).confidence_interval(method=method) == pytest.approx(ends, abs=5e-8)


def test_tango_without_losses_ends_where_wilson_does():
    z2, n, b = 3.841458820694124, 50, 5
    wilson = (b + z2 / 2 + np.sqrt(z2 * (b * (n - b) / n + z2 / 4))) / (n + z2)
    assert paired(*rows_of((0, 5, 0, 45))).confidence_interval()[1] == exactly(wilson)


def test_section_2_floor_at_full_correlation():
    luck = np.array([-1.0, 1.0])
    account = variance_account(luck, 0.5 * luck)
    assert account.rho == exactly(1.0)
    assert account.variance_paired / account.variance_independent == exactly(0.2)
    assert account.rho_eff == exactly(0.8)
