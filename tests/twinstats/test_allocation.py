import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

from twinstats.allocation import DiscordancePredictor, sqrt_allocation

VARIANCE, COST = (0.25, 0.09, 0.01, 0.16), (1.0, 4.0, 1.0, 2.0)


def value_of(counts, variance, weights=1.0, objective=np.sum):
    counts, loss = np.asarray(counts, float), np.asarray(weights) ** 2 * np.asarray(variance)
    return float(objective(loss[loss > 0] / counts[loss > 0]))


def every_count(cost, budget, minimum=1):
    """All whole-number allocations under a budget, each arm at least `minimum`."""
    ranges = [range(minimum, int(budget / c + 1e-9) + 1) for c in cost]
    for counts in product(*ranges):
        if np.dot(counts, cost) <= budget + 1e-9:
            yield counts


def test_reference_allocation():
    found = sqrt_allocation(VARIANCE, COST, budget=100)
    expected = [28.31761496, 8.4952845, 5.663522992, 16.0188620]
    np.testing.assert_allclose(found.counts, expected, rtol=1e-8)
    assert found.value == pytest.approx(0.0311764502, rel=1e-8)
    assert found.spent == pytest.approx(100) and found.gap == 0
    assert found.bound == pytest.approx(found.value)


def test_value_is_the_cauchy_schwarz_bound():
    rng = np.random.default_rng(0)
    variance, cost, weights = rng.random(7), rng.random(7) + 0.1, rng.normal(size=7)
    found = sqrt_allocation(variance, cost, budget=13.0, weights=weights)
    bound = (np.abs(weights) * np.sqrt(variance * cost)).sum() ** 2 / 13
    assert found.value == pytest.approx(bound, rel=1e-12)


def test_marginal_gains_per_cost_are_equal():
    counts = sqrt_allocation(VARIANCE, COST, budget=60).counts
    gain = np.array(VARIANCE) / (np.array(COST) * counts**2)
    np.testing.assert_allclose(gain, gain[0])


def test_weighted_reference():
    found = sqrt_allocation(VARIANCE, COST, budget=100, weights=(0.4, 0.3, 0.2, 0.1))
    assert found.value == pytest.approx(0.002084548, abs=1e-9)


def test_minimax_reference():
    found = sqrt_allocation(VARIANCE, COST, budget=100, objective="minimax")
    expected = [26.59574, 9.574468, 1.063830, 17.02128]
    np.testing.assert_allclose(found.counts, expected, rtol=1e-6)
    assert found.value == pytest.approx(0.0094)


def test_boxed_reference():
    found = sqrt_allocation(
        VARIANCE, COST, budget=100, minimum=2, maximum=[20, np.inf, np.inf, np.inf]
    )
    expected = [20, 9.48102883, 6.32068588, 17.8775994]
    np.testing.assert_allclose(found.counts, expected, rtol=1e-8)
    assert found.value == pytest.approx(0.03252449494, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("objective", ["sum", "minimax"])
def test_boxes_agree_with_a_numerical_optimiser(seed, objective):
    rng = np.random.default_rng(seed)
    variance, cost = rng.random(5), rng.random(5) + 0.2
    low, high = rng.random(5) * 2, 3 + rng.random(5) * 8
    budget = float(cost @ low + rng.random() * (cost @ (high - low)))
    found = sqrt_allocation(
        variance, cost, budget=budget, minimum=low, maximum=high, objective=objective
    )
    assert np.all(found.counts >= low - 1e-12) and np.all(found.counts <= high + 1e-12)
    assert found.spent <= budget * (1 + 1e-12)
    assert found.value == pytest.approx(
        slsqp(variance, cost, budget, low, high, objective), rel=1e-5
    )


def slsqp(variance, cost, budget, low, high, objective):
    """The smallest value, with the largest term as a variable of its own for minimax."""
    start = low + (budget - cost @ low) / (cost @ (high - low)) * (high - low)
    spend = {"type": "ineq", "fun": lambda x: budget - cost @ x[:5]}
    if objective == "sum":
        goal, x0, bounds, limits = (
            lambda x: np.sum(variance / x),
            start,
            list(zip(low, high, strict=True)),
            [spend],
        )
    else:
        goal, x0 = lambda x: x[5], np.append(start, np.max(variance / start))
        bounds = [*zip(low, high, strict=True), (0, None)]
        limits = [spend, {"type": "ineq", "fun": lambda x: x[5] * x[:5] - variance}]
    options = {"maxiter": 500, "ftol": 1e-12}
    return minimize(
        goal, x0, bounds=bounds, constraints=limits, method="SLSQP", options=options
    ).fun


@pytest.mark.parametrize("objective", ["sum", "minimax"])
def test_target_is_the_dual_of_the_budget(objective):
    limits = {"minimum": [1, 1, 12, 1], "maximum": [20, 50, 50, 50], "objective": objective}
    by_budget = sqrt_allocation(VARIANCE, COST, budget=100, **limits)
    by_target = sqrt_allocation(VARIANCE, COST, target_stderr=np.sqrt(by_budget.value), **limits)
    assert by_target.value == pytest.approx(by_budget.value, rel=1e-9)
    assert by_target.spent <= by_budget.spent * (1 + 1e-9)
    if objective == "sum":
        np.testing.assert_allclose(by_target.counts, by_budget.counts, rtol=1e-7)


def test_target_costs_the_closed_form():
    found = sqrt_allocation(VARIANCE, COST, target_stderr=0.1)
    total = np.sqrt(np.multiply(VARIANCE, COST)).sum()
    assert found.spent == pytest.approx(total**2 / 0.01)
    np.testing.assert_allclose(found.counts, np.sqrt(np.divide(VARIANCE, COST)) * total / 0.01)


def test_integer_references():
    twenty = sqrt_allocation(VARIANCE, 1, budget=20, integer=True)
    assert twenty.counts.tolist() == [7, 5, 2, 6]
    assert twenty.value == pytest.approx(0.0853810, abs=1e-7)
    eleven = sqrt_allocation(VARIANCE, 1, budget=11, integer=True)
    assert eleven.counts.tolist() == [4, 3, 1, 3]
    assert eleven.value == pytest.approx(0.1558333333)


@pytest.mark.parametrize("seed", range(25))
def test_equal_costs_are_optimal(seed):
    rng = np.random.default_rng(seed)
    variance = rng.random(3) ** 3
    budget = int(rng.integers(3, 20))
    found = sqrt_allocation(variance, 1, budget=budget, integer=True)
    best = min(value_of(counts, variance) for counts in every_count((1, 1, 1), budget))
    assert found.value == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(25))
def test_unequal_costs_are_optimal_on_small_problems(seed):
    rng = np.random.default_rng(seed)
    variance, cost = rng.random(3) * 3, rng.integers(1, 10, 3) / 2
    budget = float(cost.sum() + rng.integers(0, 20) / 2)
    found = sqrt_allocation(variance, cost, budget=budget, integer=True)
    best = min(value_of(counts, variance) for counts in every_count(cost, budget))
    assert found.value == pytest.approx(best, rel=1e-12)
    assert found.spent <= budget * (1 + 1e-9)
    assert found.bound <= best * (1 + 1e-12)
    assert found.gap == pytest.approx(best / found.bound - 1)


def test_the_problem_on_which_greedy_fails_is_solved():
    found = sqrt_allocation((2.121, 1.007, 0.352), (2, 3, 4), budget=14, integer=True)
    assert found.counts.tolist() == [2, 2, 1]


def test_prices_without_a_common_unit_stay_near_the_bound():
    variance, cost = (2.121, 1.007, 0.352), (2 * np.pi / 3, np.e, np.sqrt(17))
    found = sqrt_allocation(variance, cost, budget=200.0, integer=True)
    assert found.spent <= 200 and 0 <= found.gap < 0.01


@pytest.mark.parametrize("seed", range(15))
def test_a_target_without_a_common_unit_buys_nothing_to_spare(seed):
    rng = np.random.default_rng(seed)
    variance, cost = rng.random(3), rng.random(3) * np.pi + 0.5
    counts = sqrt_allocation(variance, cost, target_stderr=0.8, integer=True).counts
    assert value_of(counts, variance) <= 0.64 * (1 + 1e-9)
    for arm in np.flatnonzero(counts > 1):
        assert value_of(counts - np.eye(3)[arm], variance) > 0.64


@pytest.mark.parametrize("seed", range(15))
def test_integer_minimax_is_optimal(seed):
    rng = np.random.default_rng(seed)
    variance, cost = rng.random(3), rng.integers(1, 5, 3).astype(float)
    budget = float(cost.sum() + rng.integers(0, 15))
    found = sqrt_allocation(variance, cost, budget=budget, integer=True, objective="minimax")
    best = min(value_of(c, variance, objective=np.max) for c in every_count(cost, budget))
    assert found.value == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("objective", ["sum", "minimax"])
def test_integer_targets_are_cheapest(seed, objective):
    rng = np.random.default_rng(seed)
    variance, cost = rng.random(3), rng.integers(1, 4, 3).astype(float)
    stderr = float(np.sqrt(rng.uniform(0.3, 1.5)))
    found = sqrt_allocation(variance, cost, target_stderr=stderr, integer=True, objective=objective)
    assert found.value <= stderr**2 * (1 + 1e-9)
    measure = np.sum if objective == "sum" else np.max
    cheapest = min(
        np.dot(counts, cost)
        for counts in every_count(cost, found.spent)
        if value_of(counts, variance, objective=measure) <= stderr**2
    )
    assert found.spent == pytest.approx(cheapest)


def test_large_integer_problems_equal_plain_greedy():
    rng = np.random.default_rng(5)
    variance = rng.random(20)
    counts = np.ones(20)
    for _ in range(3_000 - 20):
        counts[np.argmax(variance / (counts * (counts + 1)))] += 1
    found = sqrt_allocation(variance, 1, budget=3_000, integer=True)
    assert found.counts.tolist() == counts.tolist()


def test_integer_limits_hold():
    found = sqrt_allocation(
        VARIANCE, 1, budget=20, integer=True, minimum=[0, 0, 4, 0], maximum=[5, 20, 20, 20]
    )
    assert found.counts[2] == 4 and found.counts[0] == 5 and found.counts.sum() == 20


def test_more_budget_than_limits_allow_stays_unspent():
    found = sqrt_allocation(VARIANCE, COST, budget=1e6, maximum=3)
    assert found.counts.tolist() == [3] * 4 and found.spent == 24


def test_zero_variance_gets_nothing_but_its_floor():
    assert sqrt_allocation([1, 0], 1, budget=10).counts.tolist() == [10, 0]
    assert sqrt_allocation([1, 0], 1, budget=10, minimum=2).counts.tolist() == [8, 2]
    assert sqrt_allocation([1, 0], 1, budget=10, integer=True, minimum=2).counts.tolist() == [8, 2]
    nothing = sqrt_allocation([0, 0], 1, budget=10)
    assert nothing.counts.tolist() == [0, 0] and nothing.value == 0 and nothing.gap == 0


def test_scale_of_variance_and_cost_does_not_matter():
    base = sqrt_allocation(VARIANCE, COST, budget=100).counts
    for factor in (1e-12, 1e9):
        scaled = sqrt_allocation(
            np.multiply(VARIANCE, factor), np.multiply(COST, factor), budget=100 * factor
        )
        np.testing.assert_allclose(scaled.counts, base, rtol=1e-9)


def test_result_is_strict_json():
    found = sqrt_allocation(VARIANCE, 1, budget=20, integer=True)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["counts"] == [7, 5, 2, 6] and "spent 20" in str(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Exactly one of `budget` and `target_stderr`"),
        ({"budget": 1, "target_stderr": 1}, "Exactly one of"),
        ({"budget": 0}, "`budget` must be finite, positive"),
        ({"budget": np.nan}, "`budget` must be finite, positive"),
        ({"budget": 5, "minimum": 1}, "at least 8, what the smallest allowed counts cost"),
        ({"budget": 7, "integer": True}, "at least 8, what the smallest allowed counts cost"),
        ({"budget": 9, "cost": [1, 2, 0, 1]}, "`cost` must be positive everywhere"),
        ({"budget": 9, "cost": [1, 2]}, "`cost` must have one entry an arm"),
        ({"budget": 9, "variance": [1, -1, 1, 1]}, "`variance` must be finite and at least 0"),
        ({"budget": 9, "variance": [1, np.nan, 1, 1]}, "`variance` must be finite"),
        ({"budget": 9, "weights": [1, np.inf, 1, 1]}, "`weights` must be finite"),
        ({"budget": 9, "maximum": 1, "minimum": 2}, "`maximum` must be at least `minimum`"),
        ({"budget": 9, "maximum": 0}, "`maximum` must be positive where the variance is"),
        ({"budget": 9, "minimum": -1}, "`minimum` must be finite and at least 0"),
        ({"budget": 9, "objective": "mean"}, "Unknown objective 'mean'.* minimax, sum"),
        ({"target_stderr": 0}, "`target_stderr` must be positive"),
        ({"target_stderr": 0.1, "maximum": 4}, "`target_stderr` must be at least 0.357"),
    ],
)
def test_wrong_input_is_refused(options, message):
    variance, cost = options.pop("variance", VARIANCE), options.pop("cost", COST)
    with pytest.raises(ValueError, match=message):
        sqrt_allocation(variance, cost, **options)


def test_predictor_is_the_beta_binomial_mean():
    predictor = DiscordancePredictor(["turn", "kind"], prior=(1, 3))
    turns = [SimpleNamespace(turn=t, kind="a") for t in (0, 0, 1, 0)]
    predictor.update(turns, [1, 0, 1, 1])
    found = predictor.predict([turns[0], turns[2]])
    np.testing.assert_allclose(found, [(1 + 2) / (4 + 3), (1 + 1) / (4 + 1)])


def test_predictor_backs_off_to_the_pooled_rate_then_the_prior():
    predictor = DiscordancePredictor(lambda turn: turn)
    np.testing.assert_allclose(predictor.predict(["new"]), [0.5])
    predictor.update(["a", "a", "b"], [True, True, True])
    np.testing.assert_allclose(predictor.predict(["new"]), [3.5 / 4])


def test_predictor_comes_back_from_json():
    predictor = DiscordancePredictor(lambda turn: (turn["t"], turn["kind"]))
    turns = [{"t": np.int64(2), "kind": "a"}, {"t": 1, "kind": None}, {"t": 2, "kind": "a"}]
    predictor.update(turns, [1, 0, 0])
    state = json.loads(json.dumps(predictor.state(), allow_nan=False))
    other = DiscordancePredictor(lambda turn: (turn["t"], turn["kind"]), prior=(9, 9))
    other.load(state)
    asked = [*turns, {"t": 7, "kind": "z"}]
    np.testing.assert_array_equal(other.predict(asked), predictor.predict(asked))
    assert other.state() == predictor.state()


def test_predictor_state_does_not_depend_on_the_order_of_updates():
    first, second = (DiscordancePredictor(lambda turn: turn) for _ in range(2))
    first.update(["a", "b", "a"], [1, 0, 0])
    second.update(["b", "a", "a"], [0, 0, 1])
    assert first.state() == second.state()


def test_predictor_without_turns_predicts_nothing():
    predictor = DiscordancePredictor(["t"])
    predictor.update([], [])
    assert predictor.predict([]).shape == (0,)


def test_predictor_refuses_and_keeps_its_counts():
    predictor = DiscordancePredictor(["t"])
    with pytest.raises(ValueError, match="`discordant` must have one entry a turn"):
        predictor.update([{"t": 1}], [1, 0])
    with pytest.raises(ValueError, match="`discordant` must be true or false"):
        predictor.update([{"t": 1}], [0.5])
    with pytest.raises(ValueError, match="`features` must give text"):
        predictor.update([{"t": 1}, {"t": object()}], [1, 0])
    assert predictor.state()["cells"] == []


def test_predictor_refuses_wrong_options():
    with pytest.raises(ValueError, match="`prior` must be two positive numbers"):
        DiscordancePredictor(["t"], prior=(0, 1))
    with pytest.raises(ValueError, match="`features` must be a function or a list of names"):
        DiscordancePredictor("turn")


# --- learning where twins differ ----------------------------------------------------------------

DISCORDANCE = np.array([0.5, 0.3, 0.1, 0.05, 0.02, 0.4])


def excess_over_oracle(num_steps, *, seed, cost=(1, 1, 2, 4, 1, 2), budget=60):
    """The oracle's sum of variances over steps, and that of allocations by learned discordance.

    Each step spends the budget on the cells by what was predicted before it, then sees one coin a
    twin. Counts are mixed whole numbers, as in credit: the floor and a coin for the rest.
    """
    rng = np.random.default_rng(seed)
    cells = list(range(len(DISCORDANCE)))
    predictor = DiscordancePredictor(lambda turn: turn)
    best = sqrt_allocation(DISCORDANCE, cost, budget=budget).value
    ratios = []
    for _ in range(num_steps):
        counts = sqrt_allocation(predictor.predict(cells), cost, budget=budget).counts
        ratios.append(float((DISCORDANCE / counts).sum()) / best)
        whole = np.floor(counts + rng.random(len(cells))).astype(int)
        turns = np.repeat(cells, whole)
        predictor.update(turns.tolist(), rng.random(len(turns)) < DISCORDANCE[turns])
    return np.array(ratios)


def test_learned_allocation_approaches_the_oracle():
    """Ratios of the sum of variances to the oracle's; equal predictions cost 1.26 times it."""
    ratios = np.array([excess_over_oracle(100, seed=seed) for seed in range(12)])
    first = sqrt_allocation(np.ones(6), (1, 1, 2, 4, 1, 2), budget=60).counts
    ignorant = float((DISCORDANCE / first).sum())
    ignorant /= sqrt_allocation(DISCORDANCE, (1, 1, 2, 4, 1, 2), budget=60).value
    np.testing.assert_allclose(ratios[:, 0], ignorant)
    assert ratios.min() >= 1 - 1e-12
    assert ratios[:, -1].max() <= 1.02
    excess = ratios.mean(axis=0) - 1
    assert excess[10:20].mean() <= 0.3 * excess[0]
    assert excess[80:].mean() <= 0.35 * excess[10:20].mean()  # falls like one over the steps


def test_the_excess_is_the_chi_square_distance_of_the_shares():
    """Allocating by w instead of v costs 1 + chi2(p || q), p and q the shares of spending."""
    guess, cost = np.array([0.2, 0.2, 0.02, 0.1]), np.array(COST)
    found = sqrt_allocation(guess, cost, budget=100)
    p, q = np.sqrt(np.multiply(VARIANCE, cost)), np.sqrt(guess * cost)
    p, q = p / p.sum(), q / q.sum()
    ratio = value_of(found.counts, VARIANCE) / sqrt_allocation(VARIANCE, cost, budget=100).value
    assert ratio == pytest.approx(1 + float(((p - q) ** 2 / q).sum()), rel=1e-12)


def test_weights_whose_squares_overflow_are_refused():
    with pytest.raises(ValueError, match="`weights` squared times `variance` must be finite"):
        sqrt_allocation([1, 1], [1, 1], budget=4, weights=[1e200, 1])


def test_the_predictors_interval_covers_and_narrows():
    """Of 2,000 cells with discordances from the prior itself, 95% lie within their intervals."""
    rng = np.random.default_rng(3)
    truth = rng.beta(0.5, 0.5, size=2000)
    predictor = DiscordancePredictor(lambda cell: cell)
    cells = np.repeat(np.arange(2000), 12).tolist()
    predictor.update(cells, rng.random(len(cells)) < np.repeat(truth, 12))
    low, high = predictor.interval(list(range(2000))).T
    covered = int(((low <= truth) & (truth <= high)).sum())
    bounds = stats.binom.interval(1 - 1e-6, 2000, 0.95)
    assert bounds[0] <= covered <= bounds[1]
    unseen = predictor.interval([-1])[0]
    assert (high - low).max() < unseen[1] - unseen[0]
    np.testing.assert_allclose(unseen, stats.beta.ppf([0.025, 0.975], 0.5, 0.5))
    with pytest.raises(ValueError, match="`confidence` must be in"):
        predictor.interval([1], confidence=95)


def test_more_units_than_can_be_counted_are_refused():
    for limit in ({"budget": 1e300}, {"target_stderr": 1e-8}):
        with pytest.raises(ValueError, match="with `integer` at most 2\\*\\*53 can be counted"):
            sqrt_allocation([1.0, 2.0], [1.0, 1.0], integer=True, **limit)
    for target in (1e-300, 1e300):
        with pytest.raises(ValueError, match="`target_stderr` must be positive and finite"):
            sqrt_allocation([1.0, 2.0], [1.0, 1.0], target_stderr=target)
