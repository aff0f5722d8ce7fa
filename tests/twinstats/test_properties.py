"""What must hold whatever the data: invariances and orders, on examples that hypothesis picks."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from twinstats import (
    DiscordancePredictor,
    NoiseKey,
    PairedSequence,
    agreement,
    detectable_effect,
    disagreement_bounds,
    fit_exponent,
    joint,
    paired,
    paired_power,
    pairs_needed,
    posterior_gumbel,
    regime,
    sqrt_allocation,
    variance_account,
)

bounded = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

dyadic = st.integers(-512, 512).map(lambda k: k / 64)  # sums of these are exact
outcome = st.one_of(dyadic, st.integers(0, 1).map(float))


def pairs_of(values, least=2, most=25):
    return st.lists(st.tuples(values, values), min_size=least, max_size=most).map(
        lambda rows: tuple(np.array(column) for column in zip(*rows, strict=True))
    )


any_pairs = st.one_of(pairs_of(outcome), pairs_of(st.integers(0, 1)))
binary_pairs = pairs_of(st.integers(0, 1), least=1)
real_pairs = pairs_of(dyadic)
tests = st.sampled_from(["auto", "t", "signflip"])
alternatives = st.sampled_from(["two-sided", "greater", "less"])
methods = st.sampled_from(["auto", "t"])


def same(value):
    """`value` but for rounding."""
    if value is None or isinstance(value, str):
        return value
    return pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=False)


def numbers_of(result):
    """The public fields that are one number, null or a pair of numbers."""
    return {
        name: value
        for name, value in result.to_dict().items()
        if isinstance(value, (int, float, list)) and name not in ("warnings", "intervals")
    }


def agree(first, second):
    one, other = numbers_of(first), numbers_of(second)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert other[name] == same(value), name


# --- paired -----------------------------------------------------------------------------------


@bounded
@given(any_pairs, st.randoms(use_true_random=False), tests, methods, st.booleans())
def test_the_order_of_pairs_does_not_matter(data, random, test, method, clustered):
    factual, twin = data
    order = list(range(len(factual)))
    random.shuffle(order)
    cluster = np.arange(len(factual)) // 2 if clustered else None
    first = paired(factual, twin, cluster=cluster, test=test)
    moved = None if cluster is None else cluster[order]
    second = paired(factual[order], twin[order], cluster=moved, test=test)
    agree(first, second)
    assert first.confidence_interval(method=method) == same(
        second.confidence_interval(method=method)
    )


@bounded
@given(any_pairs, tests, methods, alternatives)
def test_swapping_the_arms_changes_the_sign(data, test, method, alternative):
    mirror = {"two-sided": "two-sided", "greater": "less", "less": "greater"}
    first = paired(*data, test=test, alternative=alternative)
    second = paired(*data[::-1], test=test, alternative=mirror[alternative])
    assert second.estimate == -first.estimate
    assert second.discordant == first.discordant[::-1]
    for name in ("stderr", "pvalue", "rho", "rho_eff", "ties", "discordance", "method"):
        assert getattr(second, name) == same(getattr(first, name)), name
    low, high = first.confidence_interval(method=method)
    assert second.confidence_interval(method=method) == same((-high, -low))


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_random_sign_flips_do_not_depend_on_the_order_or_the_arms(alternative):
    """More clusters than are enumerated."""
    rng = np.random.default_rng(4)
    factual, twin = rng.integers(-9, 12, 40) / 4, rng.integers(-9, 10, 40) / 4
    options = {"test": "signflip", "alternative": alternative}
    first = paired(factual, twin, **options).pvalue
    order = rng.permutation(40)
    assert paired(factual[order], twin[order], **options).pvalue == first
    mirror = {"two-sided": "two-sided", "greater": "less", "less": "greater"}
    swapped = {"test": "signflip", "alternative": mirror[alternative]}
    assert paired(twin, factual, **swapped).pvalue == first


@bounded
@given(any_pairs, st.lists(st.integers(0, 4), min_size=25, max_size=25))
def test_names_of_clusters_do_not_matter(data, labels):
    cluster = labels[: len(data[0])]
    first = paired(*data, cluster=cluster)
    names = ["e", "a", "d", "b", "c"]
    second = paired(*data, cluster=[names[label] for label in cluster])
    third = paired(*data, cluster=[(0, label) for label in cluster])
    assert first.to_dict() == second.to_dict() == third.to_dict()


@bounded
@given(real_pairs, st.integers(-600, 600), st.sampled_from(["t", "signflip"]))
def test_powers_of_two_change_only_the_unit(data, power, test):
    first = paired(*data, test=test)
    second = paired(*(np.ldexp(column, power) for column in data), test=test)
    assert second.estimate == math.ldexp(first.estimate, power)
    assert second.stderr == math.ldexp(first.stderr, power)
    for name in ("pvalue", "rho", "rho_eff", "discordant", "ties", "discordance", "num_clusters"):
        assert getattr(second, name) == getattr(first, name), name
    low, high = first.confidence_interval(method="t")
    scaled = math.ldexp(low, power), math.ldexp(high, power)
    assert second.confidence_interval(method="t") in (scaled, same(scaled))


@bounded
@given(binary_pairs, st.integers(1, 30), st.integers(0, 1), st.sampled_from(["exact", "midp"]))
def test_ties_say_nothing_to_mcnemar(data, num_ties, value, test):
    more = [np.append(column, [value] * num_ties) for column in data]
    first, second = paired(*data, test=test), paired(*more, test=test)
    assert second.pvalue == first.pvalue and second.discordant == first.discordant
    assert second.ties == first.ties + num_ties
    assert second.estimate * len(more[0]) == same(first.estimate * len(data[0]))


@bounded
@given(real_pairs, dyadic, dyadic, st.sampled_from(["t", "signflip"]))
def test_translation(data, shift, margin, test):
    """Both arms: nothing happens. One arm with its margin: the test is the same."""
    factual, twin = data
    first = paired(factual, twin, test=test, margin=margin)
    agree(first, paired(factual + shift, twin + shift, test=test, margin=margin))
    moved = paired(factual + shift, twin, test=test, margin=margin + shift)
    assert moved.estimate == same(first.estimate + shift)
    assert moved.stderr == same(first.stderr)
    assert moved.pvalue == same(first.pvalue)


@bounded
@given(any_pairs, tests, alternatives)
def test_one_column_is_one_twin(data, test, alternative):
    first = paired(*data, test=test, alternative=alternative)
    second = paired(data[0], data[1][:, None], test=test, alternative=alternative)
    assert first.to_dict() == second.to_dict()
    assert first.confidence_interval() == second.confidence_interval()


@bounded
@given(any_pairs, st.sampled_from(["t", "signflip"]), st.sampled_from([1.0, 0.25, 3.0, 1e9, 1e-9]))
def test_equal_weights_are_no_weights(data, test, weight):
    first = paired(*data, test=test)
    second = paired(*data, test=test, weights=np.full(len(data[0]), weight))
    agree(first, second)
    assert second.confidence_interval(method="t") == same(first.confidence_interval(method="t"))


@bounded
@given(any_pairs, st.integers(2, 4))
def test_whole_weights_are_copies_in_one_cluster(data, copies):
    """A pair of weight k is k copies of it that share a cluster."""
    factual, twin = data
    weights = np.arange(len(factual)) % copies + 1
    first = paired(factual, twin, weights=weights, test="t")
    rows = np.repeat(np.arange(len(factual)), weights)
    second = paired(factual[rows], twin[rows], cluster=rows, test="t")
    for name in ("estimate", "stderr", "pvalue", "rho", "rho_eff", "discordance"):
        assert getattr(second, name) == same(getattr(first, name)), name


@bounded
@given(any_pairs, st.floats(0.05, 0.9), st.floats(0.01, 0.09))
def test_intervals_hold_the_estimate_and_grow_with_confidence(data, confidence, more):
    result = paired(*data)
    names = ["t"] + (["tango", "bonett-price"] if result.method == "exact" else [])
    for method in names:
        low, high = result.confidence_interval(confidence, method)
        assert low <= high
        if method != "bonett-price":
            assert low - 1e-12 <= result.estimate <= high + 1e-12
        wide = result.confidence_interval(confidence + more, method)
        assert wide[0] <= low + 1e-12 and high <= wide[1] + 1e-12


@bounded
@given(binary_pairs)
def test_ordinary_bonett_price_intervals_hold_the_estimate(data):
    result = paired(*data)
    low, high = result.confidence_interval(method="bonett-price")
    assert -1 <= low <= result.estimate <= high <= 1


@bounded
@given(st.lists(st.tuples(*[st.one_of(st.none(), outcome)] * 2), min_size=1, max_size=12), tests)
def test_every_result_is_strict_json_and_every_null_has_a_reason(rows, test):
    factual, twin = (list(column) for column in zip(*rows, strict=True))
    for result in (paired(factual, twin, test=test), variance_account(factual, twin)):
        plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert plain["num_pairs"] + plain["num_missing"] == len(rows)
        assert str(result) and "nan" not in str(result).lower()
        if any(plain[name] is None for name in ("estimate", "stderr", "pvalue") if name in plain):
            assert plain["warnings"]


@bounded
@given(st.lists(st.tuples(*[st.one_of(st.none(), st.integers(0, 1))] * 2), min_size=1, max_size=9))
def test_missing_bounds_hold_the_estimate_that_any_outcomes_would_give(rows):
    factual, twin = (list(column) for column in zip(*rows, strict=True))
    assume(any(value is not None for row in rows for value in row))
    low, high = paired(factual, twin).missing_bounds
    for fill in (0, 1):
        filled = [[fill if v is None else v for v in column] for column in (factual, twin)]
        assert low - 1e-12 <= paired(*filled).estimate <= high + 1e-12


# --- variance ---------------------------------------------------------------------------------


@bounded
@given(real_pairs)
def test_variance_adds_up(data):
    account = variance_account(*data)
    parts = account.variance_factual + account.variance_twin
    assert account.variance_independent == same(parts)
    assert account.variance_paired == same(parts - 2 * account.covariance)
    if account.rho_eff is not None:
        assert account.variance_paired == same((1 - account.rho_eff) * parts)
        assert -1 - 1e-12 <= account.rho_eff <= 1 + 1e-12
    if account.rho is not None:
        assert -1 <= account.rho <= account.rho_max + 1e-12 <= 1 + 2e-12
        assert abs(account.rho_eff) <= abs(account.rho) + 1e-12
    assert account.effect == same(paired(*data).estimate)
    swapped = variance_account(*data[::-1])
    for name in ("covariance", "variance_paired", "rho", "rho_max", "rho_eff", "discordance"):
        assert getattr(swapped, name) == same(getattr(account, name)), name


@settings(bounded, max_examples=15)
@given(real_pairs, st.integers(-500, 500))
def test_variances_scale_with_the_square(data, power):
    first = variance_account(*data)
    second = variance_account(*(np.ldexp(column, power) for column in data))
    for name in ("variance_factual", "variance_twin", "variance_paired"):
        assert getattr(second, name) == math.ldexp(getattr(first, name), 2 * power), name
    for name in ("rho", "rho_eff", "rho_max", "discordance"):
        assert getattr(second, name) == getattr(first, name), name


# --- power ------------------------------------------------------------------------------------


@bounded
@given(
    st.floats(0.05, 1.0),
    st.floats(0.2, 1.0),
    st.floats(0.1, 0.95),
    st.sampled_from(["exact", "midp", "connor", "wald", "t"]),
    st.sampled_from(["two-sided", "greater"]),
)
def test_the_number_needed_is_the_smallest_that_has_the_power(
    discordance, share, power, test, alternative
):
    options = {"discordance": discordance, "test": test, "alternative": alternative}
    effect = share * discordance
    found = pairs_needed(effect, power=power, **options)
    assert paired_power(effect, found, **options) >= power - 1e-9
    if found > 1:
        assert paired_power(effect, found - 1, **options) < power + 1e-9


@bounded
@given(st.integers(20, 3000), st.floats(0.1, 1.0), st.floats(0.2, 0.9))
def test_detectable_effects_have_their_power(num_pairs, discordance, power):
    for test in ("exact", "wald"):
        options = {"discordance": discordance, "test": test}
        if paired_power(discordance, num_pairs, **options) <= power:
            continue
        found = detectable_effect(num_pairs, power=power, **options)
        assert 0 < found <= discordance
        assert paired_power(found, num_pairs, **options) == pytest.approx(power, abs=1e-7)


@bounded
@given(st.floats(0.05, 1.0), st.integers(-64, 64).map(lambda k: k / 64), st.integers(1, 400))
@example(0.953125, 1.0, 193)  # the terms add up to 1 + 2e-16
def test_power_mirrors_with_the_effect(discordance, share, num_pairs):
    effect = share * discordance
    up = paired_power(effect, num_pairs, discordance=discordance, alternative="greater")
    down = paired_power(-effect, num_pairs, discordance=discordance, alternative="less")
    assert up == same(down)
    assert 0 <= up <= 1


# --- couplings --------------------------------------------------------------------------------

couplings = st.sampled_from(["gumbel", "maximal", "independent"])
masses = st.lists(
    st.tuples(*[st.one_of(st.just(0.0), st.floats(1e-6, 1.0))] * 2), min_size=1, max_size=8
)


def two_laws(rows):
    p, q = (np.array(column) for column in zip(*rows, strict=True))
    assume(p.sum() > 0 and q.sum() > 0)
    return p / p.sum(), q / q.sum()


@bounded
@given(masses, couplings)
def test_joint_laws_have_their_margins(rows, coupling):
    p, q = two_laws(rows)
    law = joint(p, q, coupling)
    assert law.min() >= -1e-15
    np.testing.assert_allclose(law.sum(axis=1), p, atol=1e-12)
    np.testing.assert_allclose(law.sum(axis=0), q, atol=1e-12)
    assert np.trace(law) == pytest.approx(agreement(p, q, coupling), abs=1e-12)


@bounded
@given(masses, couplings, st.randoms(use_true_random=False))
def test_agreement_is_symmetric_and_within_its_bounds(rows, coupling, random):
    p, q = two_laws(rows)
    value = agreement(p, q, coupling)
    order = list(range(len(p)))
    random.shuffle(order)
    assert value == same(agreement(q, p, coupling))
    assert value == same(agreement(p[order], q[order], coupling))
    low, high = disagreement_bounds(p, q)
    assert low == same(1 - agreement(p, q, "maximal"))
    assert 1 - value >= low - 1e-12
    if coupling == "gumbel":
        assert 1 - value <= high + 1e-12
        assert value >= agreement(p, q, "independent") - 1e-12


@bounded
@given(st.lists(st.floats(-40, 40), min_size=1, max_size=9), st.integers(0, 8), st.floats(0.05, 20))
def test_posterior_noise_explains_its_token(logits, index, temperature):
    index %= len(logits)
    noise = posterior_gumbel(logits, index, NoiseKey(1, 2, 3, 4), 5, temperature)
    assert np.isfinite(noise).all()
    assert int(np.argmax(np.array(logits) / temperature + noise)) == index


# --- allocation -------------------------------------------------------------------------------

arms = st.lists(
    st.tuples(st.one_of(st.just(0.0), st.floats(1e-4, 10)), st.floats(0.1, 10), st.floats(0.1, 3)),
    min_size=1,
    max_size=6,
)


def loss_of(counts, variance, weights, objective):
    terms = weights**2 * variance
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(terms > 0, terms / counts, 0.0)
    return float(terms.sum() if objective == "sum" else terms.max())


@bounded
@given(
    arms,
    st.floats(5, 500),
    st.sampled_from(["sum", "minimax"]),
    st.lists(st.floats(0.01, 1), min_size=6, max_size=6),
)
def test_allocations_spend_the_budget_and_no_other_is_better(rows, budget, objective, other):
    variance, cost, weights = (np.array(column) for column in zip(*rows, strict=True))
    assume(variance.max() > 0)
    found = sqrt_allocation(variance, cost, budget=budget, weights=weights, objective=objective)
    assert found.spent == same(budget)
    assert found.spent == same(float(cost @ found.counts))
    assert found.value == same(loss_of(found.counts, variance, weights, objective))
    assert found.gap == 0 and found.bound == same(found.value)
    rival = np.array(other[: len(cost)])
    rival *= budget / float(cost @ rival)
    assert found.value <= loss_of(rival, variance, weights, objective) * (1 + 1e-9)
    used = variance > 0
    counts = found.counts[used]
    levels = (weights**2 * variance)[used] / counts
    if objective == "sum":  # equal gains per cost, else equal terms
        levels = levels / counts / cost[used]
    np.testing.assert_allclose(levels, levels[0], rtol=1e-9)


@bounded
@given(arms, st.floats(1, 60), st.sampled_from(["sum", "minimax"]))
def test_whole_allocations_stay_within_budget_limits_and_their_certificate(rows, extra, objective):
    variance, cost, weights = (np.array(column) for column in zip(*rows, strict=True))
    budget = float(cost.sum()) + extra
    found = sqrt_allocation(
        variance,
        cost,
        budget=budget,
        weights=weights,
        objective=objective,
        minimum=1,
        maximum=9,
        integer=True,
    )
    assert found.spent <= budget * (1 + 1e-9)
    assert found.counts.dtype == np.int64
    assert ((found.counts >= 1) & (found.counts <= 9)).all()
    assert found.value >= found.bound * (1 - 1e-9) and found.gap >= 0


@bounded
@given(arms, st.floats(0.01, 3))
def test_a_target_costs_what_a_budget_of_that_size_reaches(rows, target):
    variance, cost, weights = (np.array(column) for column in zip(*rows, strict=True))
    assume(variance.max() > 0)
    found = sqrt_allocation(variance, cost, target_stderr=target, weights=weights)
    assert found.value == same(target**2)
    back = sqrt_allocation(variance, cost, budget=found.spent, weights=weights)
    assert back.value == same(target**2)


@bounded
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_predictors_forget_the_order_and_survive_json(rows, random):
    first, second = (DiscordancePredictor(lambda turn: turn) for _ in range(2))
    first.update([turn for turn, _ in rows], [differs for _, differs in rows])
    random.shuffle(rows)
    for turn, differs in rows:
        second.update([turn], [differs])
    third = DiscordancePredictor(lambda turn: turn)
    third.load(json.loads(json.dumps(second.state(), allow_nan=False)))
    found = first.predict(list(range(6)))
    assert ((found > 0) & (found < 1)).all()
    assert found.tolist() == second.predict(list(range(6))).tolist()
    assert found.tolist() == third.predict(list(range(6))).tolist()


# --- sequences --------------------------------------------------------------------------------

unit = st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=40)
within = st.lists(st.floats(-1, 1), min_size=1, max_size=25)


def fed(values, alpha=0.05):
    sequence = PairedSequence(alpha)
    sequence.update(values)
    return sequence


@bounded
@given(st.one_of(unit, within), st.randoms(use_true_random=False))
def test_wealth_does_not_depend_on_the_order(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    assert fed(shuffled).log_wealth == pytest.approx(fed(values).log_wealth, abs=1e-9)
    one_by_one = PairedSequence()
    for value in values:
        one_by_one.update(value)
    assert one_by_one.log_wealth == pytest.approx(fed(values).log_wealth, abs=1e-9)
    assert one_by_one.rejected == fed(values).rejected
    assert one_by_one.confidence_interval() == pytest.approx(
        fed(values).confidence_interval(), abs=1e-9
    )


@bounded
@given(st.one_of(unit, within))
def test_sequences_mirror_and_their_intervals_nest(values):
    first, second = fed(values), fed([-value for value in values])
    low, high = first.confidence_interval()
    assert second.log_wealth == pytest.approx(first.log_wealth, abs=1e-9)
    assert second.confidence_interval() == pytest.approx((-high, -low), abs=1e-9)
    wide = fed(values, alpha=0.01).confidence_interval()
    assert wide[0] <= low + 1e-9 and high <= wide[1] + 1e-9
    assert -1 <= low <= high <= 1


@bounded
@given(within)
def test_wealth_is_a_fair_game(values):
    """Whatever came before: the mean over a fair +-1 is the wealth itself."""
    start = fed(values).log_wealth
    after = [math.exp(fed([*values, sign]).log_wealth - start) for sign in (-1, 1)]
    assert sum(after) / 2 == pytest.approx(1.0, abs=1e-9)


# --- exponents --------------------------------------------------------------------------------


@bounded
@given(
    st.lists(st.floats(0.01, 0.5), min_size=4, max_size=8, unique=True),
    st.floats(-2.5, -0.5),
    st.floats(0.1, 1e6),
    st.randoms(use_true_random=False),
)
def test_exponents_ignore_units_and_the_order_of_rows(effects, exponent, factor, random):
    assume(max(effects) > 1.2 * min(effects))
    effect = np.array(effects)
    pairs = factor * effect**exponent
    found = fit_exponent(effect, pairs)
    assert found.slope == pytest.approx(exponent, abs=1e-9)
    order = list(range(len(effects)))
    random.shuffle(order)
    moved = fit_exponent(100 * effect[order], 7 * pairs[order])
    assert moved.slope == pytest.approx(exponent, abs=1e-9)
    json.dumps(found.to_dict(), allow_nan=False)


@settings(bounded, max_examples=8)
@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=8, max_size=40).map(lambda d: d + d[::-1]))
def test_regime_mirrors_and_is_strict_json(differences):
    fork = np.arange(len(differences)) // 2
    luck = np.arange(len(differences)) % 2
    zero = np.zeros(len(differences))
    first = regime(differences, zero, fork=fork, luck=luck)
    second = regime(zero, differences, fork=fork, luck=luck)
    assert first.to_dict() == second.to_dict()
    plain = json.loads(json.dumps(first.to_dict(), allow_nan=False))
    assert plain["law"] in ("linear", "quadratic", "undecided")
    assert plain["law"] != "undecided" or plain["reason"]
