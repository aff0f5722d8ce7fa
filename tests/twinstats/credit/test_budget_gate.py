import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit

from twinstats.credit import assign, make
from twinstats.credit._budget_model import BudgetModel, turn_features
from twinstats.credit._gate import sparsemax, sparsemax_weights, top_weights
from twinstats.credit.budget_gate import budget_gate
from twinstats.episodes import Group, Task, Turn
from twinstats.errors import UsageError

A = 1 / np.sqrt(2)


def group_of(*episodes):
    return Group(Task("task"), list(episodes), 0, 0)


def with_turns(episode, **fields):
    return replace(episode, turns=[replace(turn, **fields) for turn in episode.turns])


@pytest.fixture
def pair(gapped):
    importance = [0.8, 0.5, 0.2, 0.6, 0.1]  # of five tokens
    return group_of(gapped(1.0, [logit(importance), [0.0]]), gapped(0.0, [[3.0, -1.0]], row=1))


def test_budget_gate_by_hand(pair, given_world):
    (credit,) = assign(given_world(), [pair], make("budget_gate"))
    # a new model gives the target, .4, to every turn; k = ceil(.4 * 5) = 2 tokens are open
    np.testing.assert_allclose(credit.values[0], [0.4 * A, 0.4 * A], rtol=2e-6)
    # .8 and .6 share 5: 5 * .8 / 1.4, 5 * .6 / 1.4
    np.testing.assert_allclose(credit.weights[0][0], [4 / 1.4, 0, 0, 3 / 1.4, 0])
    assert credit.weights[0][1].tolist() == [1.0]
    np.testing.assert_allclose(credit.info["budgets"][0], [0.4, 0.4])


def test_negative_credit_is_never_gated_away(pair, gapped):
    credit, plain = budget_gate(pair), make("grpo")(pair)
    assert credit.values[1].tolist() == plain.values[1].tolist()
    assert credit.weights[1][0].tolist() == [1.0, 1.0]
    mean = budget_gate(pair, gate="sparsemax", temperature=0.01, top=1)
    assert mean.weights[1][0].tolist() == [1.0, 1.0]


def test_a_turn_s_credit_is_advantage_times_coefficient_over_its_tokens(pair):
    credit = budget_gate(pair)
    for values, weights in zip(credit.values, credit.weights, strict=True):
        spread = [(value * w).mean() for value, w in zip(values, weights, strict=True)]
        np.testing.assert_allclose(spread, values)


def test_a_stated_number_of_tokens_may_be_open(pair):
    found = budget_gate(pair, top=1).weights[0][0]
    assert found.tolist() == [5.0, 0.0, 0.0, 0.0, 0.0]
    assert (budget_gate(pair, top=9).weights[0][0] > 0).all()


def test_the_larger_the_budget_the_more_tokens_are_open(pair):
    num_open = [
        int((budget_gate(pair, target=target).weights[0][0] > 0).sum())
        for target in (0.01, 0.21, 0.41, 0.61, 0.81, 0.99)
    ]
    assert num_open == [1, 2, 3, 4, 5, 5]


def test_sparsemax_opens_by_the_gaps(gapped):
    group = group_of(gapped(1.0, [[1.0, 0.5, -1.0]]), gapped(0.0, [[0.0]], row=1))
    found = budget_gate(group, gate="sparsemax").weights[0][0]
    np.testing.assert_allclose(found, [2.25, 0.75, 0.0])  # parts .75, .25, 0
    wide = budget_gate(group, gate="sparsemax", temperature=100.0).weights[0][0]
    assert (wide > 0.9).all()


def test_rare_turns_keep_a_floor_in_budget_and_in_every_token(gapped):
    won = gapped(1.0, [[1.0, 0.0, -1.0, -2.0]])
    lost = gapped(0.0, [[0.0]], row=1)
    rare = with_turns(won, logprob=4 * np.log(0.09))  # .09 a token: below .1
    common = with_turns(won, logprob=4 * np.log(0.11))
    options = {"target": 0.01, "floor": 0.25}
    found = budget_gate(group_of(rare, lost), **options)
    np.testing.assert_allclose(found.values[0], [0.25 * A], rtol=2e-6)
    np.testing.assert_allclose(found.weights[0][0], [0.25 + 0.75 * 4, 0.25, 0.25, 0.25])
    plain = budget_gate(group_of(common, lost), **options)
    np.testing.assert_allclose(plain.values[0], [0.01 * A], rtol=2e-6)
    assert plain.weights[0][0].tolist() == [4.0, 0.0, 0.0, 0.0]
    assert found.info["unknown_logprobs"] == 1  # the other episode's turn
    unknown = budget_gate(group_of(won, lost), **options)
    np.testing.assert_allclose(unknown.values[0], plain.values[0])
    assert unknown.info["unknown_logprobs"] == 2
    assert budget_gate(group_of(rare, lost), rare=0.0, **options).values[0] < 0.011


def test_features_are_known_before_the_action(gapped):
    turns = [
        Turn(0, None, None, 1, "s"),
        Turn(1, -3.0, 0.5, 1, "r"),
        Turn(0, -1.0, 0.0, 1, "s"),
    ]
    found = turn_features(replace(gapped(1.0, [[0.0]]), turns=turns))
    expected = [
        [1, 0, 0, 1, 0],
        [1, np.log(2), np.log(1.5), 0, 0],
        [1, np.log(3), 0, 0, 1],
    ]
    np.testing.assert_allclose(found, expected)


def objective(weights, rows, gains, strength, target):
    budgets = expit(rows @ weights)
    return (budgets * gains).mean() - strength * (budgets.mean() - target) ** 2


def test_the_model_climbs_the_stated_gradient(gapped, given_world):
    rng = np.random.default_rng(0)
    episodes = [
        with_turns(gapped(rng.normal(), [[0.0]] * (r + 1), row=r), entropy=float(rng.uniform()))
        for r in range(4)
    ]
    group = group_of(*episodes)
    ratios = [[rng.uniform(0.5, 2.0, size=e.num_turns) for e in episodes]]
    options = {"target": 0.3, "regulariser": 0.7, "decay": 0.5, "rate": 1e-3}
    method = make("budget_gate", **options)
    credits = assign(given_world(), [group], method)
    advantages = np.concatenate(make("grpo")(group).values)
    rows = np.concatenate([turn_features(e) for e in episodes])
    weights = np.array([logit(0.3), 0, 0, 0, 0])
    for step in range(2):
        method.observe(step, credits, ratios)
        gains = advantages * np.concatenate(ratios[0])
        strength = 0.7 * 0.5**step
        slope = np.zeros(5)
        for place in range(5):
            nudge = np.eye(5)[place] * 1e-6
            up, down = (
                objective(weights + sign * nudge, rows, gains, strength, 0.3) for sign in (1, -1)
            )
            slope[place] = (up - down) / 2e-6
        weights = weights + 1e-3 * slope
        np.testing.assert_allclose(method.state()["weights"], weights, rtol=1e-8, atol=1e-11)


def test_budgets_rise_where_praise_grows_likelier(gapped, given_world):
    # turns of high entropy carry the successes
    episodes = [
        with_turns(gapped(row % 2, [[0.0]], row=row), entropy=2.0 * (row % 2)) for row in range(8)
    ]
    group = group_of(*episodes)
    method = make("budget_gate", rate=1.0)
    for step in range(50):
        credits = assign(given_world(), [group], method)
        method.observe(step, credits, [[np.ones(1)] * 8])
    found = np.concatenate(credits[0].info["budgets"])
    assert found[1] > 0.6 > 0.4 > found[0]


def test_the_regulariser_holds_the_mean_and_lets_go_in_time(gapped):
    episodes = [gapped(0.5, [[0.0]], row=row) for row in range(2)]
    credit = make("budget_gate")(group_of(*episodes))
    model = BudgetModel(target=0.4, regulariser=1.0, decay=0.5, rate=1.0)
    model.load({"weights": [2.0, 0, 0, 0, 0], "num_steps": 0})
    starts = [model.coefficient(np.eye(5)[0])]
    for _ in range(30):
        model.observe([credit])
        starts.append(model.coefficient(np.eye(5)[0]))
    assert starts[0] > starts[1] > starts[2] > 0.4
    assert starts[-2] - starts[-1] < 1e-9


def test_unknown_ratios_count_as_one_and_null_ones_teach_nothing(pair, given_world):
    known, unknown, null = (make("budget_gate") for _ in range(3))
    credits = assign(given_world(), [pair], known)
    known.observe(0, credits, [[np.ones(2), np.ones(1)]])
    unknown.observe(0, credits)
    assert known.state() == unknown.state()
    null.observe(0, credits, [[np.full(2, np.nan), np.full(1, np.nan)]])
    assert null.state() == make("budget_gate").state() | {"num_steps": 1}


def test_memory_survives_json(pair, given_world):
    method, other = make("budget_gate"), make("budget_gate")
    for step in range(3):
        method.observe(step, assign(given_world(), [pair], method))
    state = json.loads(json.dumps(method.state(), allow_nan=False))
    assert state["num_steps"] == 3
    other.load(state)
    one, two = (assign(given_world(), [pair], m)[0] for m in (method, other))
    assert [v.tobytes() for v in one.values] == [v.tobytes() for v in two.values]
    assert one.values[0].tolist() != budget_gate(pair).values[0].tolist()


def test_outcomes_stay_as_they_are(pair):
    before = [episode.outcome for episode in pair.episodes]
    budget_gate(pair)
    assert [episode.outcome for episode in pair.episodes] == before


def test_ties_go_to_the_earlier_token():
    assert top_weights(np.full(4, 0.5), 2).tolist() == [2.0, 2.0, 0.0, 0.0]


def test_sparsemax_is_the_nearest_point_of_the_simplex():
    rng = np.random.default_rng(1)
    for _ in range(5):
        scores = rng.normal(size=4)
        found = sparsemax(scores)
        nearest = minimize(
            lambda p, s=scores: ((p - s) ** 2).sum(),
            np.full(4, 0.25),
            bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
            tol=1e-12,
        )
        np.testing.assert_allclose(found, nearest.x, atol=1e-6)
    assert sparsemax_weights(np.full(3, 0.1)).tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 1.0}, "`target` must be between 0 and 1, got 1.0"),
        ({"regulariser": -1.0}, "`regulariser` must be at least 0"),
        ({"rate": -1.0}, "`rate` must be at least 0"),
        ({"decay": 1.5}, "`decay` must be in .0, 1., got 1.5"),
    ],
)
def test_a_budget_model_that_means_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make("budget_gate", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "`top` must be at least 1, got 0"),
        ({"temperature": 0.0}, "`temperature` must be positive"),
        ({"floor": 2.0}, "`floor` must be in .0, 1., got 2.0"),
        ({"rare": -0.5}, "`rare` must be in .0, 1., got -0.5"),
    ],
)
def test_options_out_of_range_are_refused(pair, options, message):
    with pytest.raises(ValueError, match=message):
        budget_gate(pair, **options)


def test_an_unknown_gate_is_refused(pair, unchecked):
    with pytest.raises(UsageError, match="Unknown gate 'top'. Did you mean 'topk'"):
        budget_gate(pair, gate="top")
