import json

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit._neighbours import Neighbours
from twinstats.credit.registry import Need
from twinstats.credit.t2spo import t2spo
from twinstats.episodes import Group
from twinstats.errors import UsageError


@pytest.fixture
def featured(scripted):
    def build(outcome, features, *, row=0, task="task"):
        actions = (0,) * (len(features) - 1)
        info = {"features": np.array(features, float).reshape(len(features), -1)}
        return scripted(outcome, actions, row=row, task=task, info=info)

    return build


def group_of(*episodes):
    return Group(episodes[0].task, list(episodes), 0, 0)


class Linear:
    """A regressor that says what the first feature is, and remembers what it was shown."""

    def __init__(self):
        self.shown = []

    def fit(self, X, y):  # noqa: N803
        self.shown.append((X.copy(), y.copy()))
        return self

    def predict(self, X):  # noqa: N803
        return X[:, 0]


@pytest.fixture
def groups(featured):
    return [
        group_of(featured(1.0, [0.5, 0.75, 9.0]), featured(0.0, [0.5, 9.0], row=1)),
        group_of(
            featured(1.0, [0.25, 9.0], row=2, task="other"),
            featured(1.0, [0.125, 9.0], row=3, task="other"),
        ),
    ]


def test_t2spo_by_hand(groups, given_world):
    method = make("t2spo", regressor=Linear(), epsilon=0.0)
    first, second = assign(given_world(), groups, method)
    # predictions .5, .75, outcome 1: steps .25, .25; and .5, outcome 0: step -.5
    # mean 0, squares .0625 + .0625 + .25 = .375 over 2: deviation sqrt .1875
    spread = np.sqrt(0.1875)
    grpo = 1 / np.sqrt(2)
    np.testing.assert_allclose(first.values[0], [grpo + 0.25 / spread] * 2)
    np.testing.assert_allclose(first.values[1], [-grpo - 0.5 / spread])
    # equal outcomes: A = 0; steps .75, .875
    np.testing.assert_allclose(np.concatenate(second.values), [-grpo, grpo])
    assert method.needs == (Need("features"),)
    assert "pending" not in first.info


def test_steps_may_be_compared_at_one_turn_index(groups, given_world):
    method = make("t2spo", regressor=Linear(), scope="turn", weight=2.0, epsilon=0.0)
    first, _ = assign(given_world(), groups, method)
    grpo = 1 / np.sqrt(2)
    # turn 0: steps .25, -.5 become +-grpo; turn 1 has one member
    np.testing.assert_allclose(first.values[0], [3 * grpo, grpo])
    np.testing.assert_allclose(first.values[1], [-3 * grpo])


def test_a_group_is_never_in_its_own_context(groups, given_world):
    regressor = Linear()
    method = make("t2spo", regressor=regressor)
    credits = assign(given_world(), groups, method)
    (shown, ends), (other, other_ends) = regressor.shown
    assert (shown[:, 0].tolist(), ends.tolist()) == ([0.25, 0.125], [1.0, 1.0])
    assert (other[:, 0].tolist(), other_ends.tolist()) == ([0.5, 0.75, 0.5], [1.0, 1.0, 0.0])
    method.observe(0, credits)
    assign(given_world(), groups[:1], method)
    assert regressor.shown[-1][0][:, 0].tolist() == [0.5, 0.75, 0.5, 0.25, 0.125]  # earlier steps


def test_its_own_outcomes_do_not_move_its_predictions(featured, given_world):
    def second_terms(outcome):
        other = group_of(*(featured(float(r % 2), [r, 2 * r, 0], row=r) for r in range(2, 8)))
        scored = group_of(
            featured(outcome, [1.0, 5.0, 0.0], task="mine"),
            featured(0.5, [3.0, 4.0, 0.0], row=1, task="mine"),
        )
        regressor = Neighbours(3)
        assign(given_world(), [scored, other], make("t2spo", regressor=regressor))[0]
        regressor.fit(
            np.concatenate([e.info["features"][:-1] for e in other.episodes]),
            np.repeat([e.outcome for e in other.episodes], 2),
        )
        return regressor.predict(np.array([[1.0], [5.0]])).tolist()

    assert second_terms(0.0) == second_terms(1.0)


def test_without_a_context_grpo_is_left_and_a_reason(groups, given_world):
    (credit,) = assign(given_world(), groups[:1], make("t2spo"))
    grpo = make("grpo")(groups[0])
    assert [v.tolist() for v in credit.values] == [v.tolist() for v in grpo.values]
    assert credit.info["context_turns"] == 0
    assert "no turn of another group is known yet" in credit.info["reason"]


def test_no_weight_is_grpo(groups, given_world):
    for credit, group in zip(
        assign(given_world(), groups, make("t2spo", weight=0.0)), groups, strict=True
    ):
        found = [v.tolist() for v in make("grpo")(group).values]
        assert [v.tolist() for v in credit.values] == found
        assert credit.info["context_turns"] > 0


def test_equal_steps_add_nothing(featured, given_world):
    group = group_of(featured(0.5, [0.1, 0.1, 9.0]), featured(0.5, [0.1, 0.1, 9.0], row=1))
    other = group_of(featured(0.5, [0.1, 9.0], row=2, task="other"))
    credit, _ = assign(given_world(), [group, other], make("t2spo"))
    assert np.concatenate(credit.values).tolist() == [0.0] * 4


def test_a_failed_episode_is_in_nobodys_context(featured, scripted, given_world):
    regressor = Linear()
    mine = group_of(
        featured(1.0, [0.5, 9.0]),
        featured(0.0, [0.25, 9.0], row=1),
        scripted(None, (0, 0), row=2, info={"features": None}),  # nobody reads them
    )
    other = group_of(
        featured(1.0, [0.7, 9.0], row=3, task="other"),
        scripted(None, row=4, info={"features": None}),
    )
    method = make("t2spo", regressor=regressor)
    first, second = assign(given_world(), [mine, other], make("t2spo", weight=0.0))
    np.testing.assert_array_equal(first.values[2], [np.nan, np.nan])
    np.testing.assert_array_equal(np.concatenate(second.values), [0.0, np.nan])
    first, _ = assign(given_world(), [mine, other], method)
    assert [len(ends) for _, ends in regressor.shown] == [1]  # and one scored is not compared
    assert np.isfinite(np.concatenate(first.values[:2])).all()


def test_a_group_of_one_is_null_and_still_teaches(featured, given_world):
    regressor = Linear()
    lonely = group_of(featured(1.0, [0.5, 9.0], row=9, task="lonely"))
    pair = group_of(featured(1.0, [0.5, 9.0]), featured(0.0, [0.25, 9.0], row=1))
    one, _ = assign(given_world(), [lonely, pair], make("t2spo", regressor=regressor))
    np.testing.assert_array_equal(one.values[0], [np.nan])
    assert "needs at least 2" in one.info["reason"]
    assert regressor.shown[0][1].tolist() == [1.0]


def test_missing_or_misshapen_features_are_refused(featured, scripted, given_world):
    with pytest.raises(ValueError, match="'t2spo' needs 'features'"):
        assign(given_world(), [group_of(scripted(1.0), scripted(0.0, row=1))], make("t2spo"))
    pair = group_of(featured(1.0, [0.5, np.nan]), featured(0.0, [0.5, 1.0], row=1))
    with pytest.raises(ValueError, match="'features' of episode 0/0 must be finite"):
        assign(given_world(), [pair], make("t2spo"))
    pair.episodes[0].info["features"] = [[0.5], [0.5, 1.0]]
    with pytest.raises(ValueError, match="'features' of episode 0/0 must have one length"):
        assign(given_world(), [pair], make("t2spo"))
    wide = [
        group_of(featured(1.0, [[0.5, 1.0], [9.0, 1.0]], row=row, task=str(row))) for row in (5, 6)
    ]
    narrow = group_of(featured(1.0, [0.5, 9.0]), featured(0.0, [0.5, 9.0], row=1))
    with pytest.raises(ValueError, match="'features' must have one length everywhere, got .1, 2."):
        assign(given_world(), [wide[0], narrow, group_of(*narrow.episodes)], make("t2spo"))


def test_memory_survives_json_and_forgets_the_oldest(groups, given_world):
    method = make("t2spo", context=4)
    for step in range(2):
        method.observe(step, assign(given_world(), groups, method))
    state = json.loads(json.dumps(method.state(), allow_nan=False))
    kept = [(rows, outcome) for rows, outcome in state["earlier"]]
    assert kept == [([[0.5]], 0.0), ([[0.25]], 1.0), ([[0.125]], 1.0)]  # whole episodes
    other = make("t2spo", context=4)
    other.load(state)
    one, two = (assign(given_world(), groups[:1], m) for m in (method, other))
    assert [v.tobytes() for v in one[0].values] == [v.tobytes() for v in two[0].values]


def test_the_order_of_groups_and_members_changes_no_bit(featured, given_world):
    rng = np.random.default_rng(1)
    groups = [
        [
            featured(rng.normal(), rng.normal(size=(4, 2)), row=4 * g + r, task=str(g))
            for r in range(4)
        ]
        for g in range(3)
    ]

    def values(order, members):
        asked = [group_of(*(groups[g][m] for m in members)) for g in order]
        credits = assign(given_world(), asked, make("t2spo", regressor=Neighbours(2)))
        return {
            e.row: v.tobytes() for c in credits for e, v in zip(c.episodes, c.values, strict=True)
        }

    assert values([0, 1, 2], [0, 1, 2, 3]) == values([2, 0, 1], [3, 1, 0, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, "`weight` must be at least 0"),
        ({"regressor": 3}, "`regressor` must have fit.X, y. and predict.X., got 3"),
    ],
)
def test_options_out_of_range_are_refused(groups, options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        t2spo(groups[0], **options)


def test_a_context_of_nothing_and_an_unknown_scope_are_refused(groups, unchecked):
    with pytest.raises(ValueError, match="`context` must be at least 1, got 0"):
        make("t2spo", context=0)
    with pytest.raises(UsageError, match="Unknown scope 'step'"):
        t2spo(groups[0], scope="step")


def test_neighbours_by_hand():
    model = Neighbours(2).fit(np.array([[0.0], [1.0], [4.0]]), np.array([1.0, 0.0, 0.5]))
    np.testing.assert_allclose(model.predict(np.array([[0.2], [4.0]])), [0.5, 0.25])
    with pytest.raises(ValueError, match="`neighbours` must be at least 1, got 0"):
        Neighbours(0)


def test_equal_rows_are_taken_together_whatever_their_outcomes():
    rows, ends = np.zeros((100, 1)), np.arange(100.0)
    rows[99] = 1.0
    model = Neighbours(5).fit(rows, ends)
    np.testing.assert_allclose(model.predict(np.array([[0.1]])), [49.0])  # mean of 0 to 98
    np.testing.assert_allclose(model.predict(np.array([[1.0]])), [49.5])  # one is not five


def test_neighbours_do_not_depend_on_the_unit_of_a_feature():
    rng = np.random.default_rng(0)
    rows, ends = rng.normal(size=(50, 3)), rng.normal(size=50)
    asked = rng.normal(size=(9, 3))
    scale = np.array([1.0, 1024.0, 2.0**-20])
    plain = Neighbours().fit(rows, ends).predict(asked)
    assert Neighbours().fit(rows * scale, ends).predict(asked * scale).tolist() == plain.tolist()
    constant = np.column_stack([rows, np.full(50, 0.1)])
    beside = np.column_stack([asked, np.full(9, 77.0)])
    assert Neighbours().fit(constant, ends).predict(beside).tolist() == plain.tolist()


def test_neighbours_against_a_naive_search():
    rng = np.random.default_rng(5)
    rows, ends = rng.normal(size=(60, 2)), rng.normal(size=60)
    asked = rng.normal(size=(7, 2))
    scaled = (asked[:, None] - rows) / rows.std(axis=0)
    nearest = np.argsort((scaled**2).sum(axis=2), axis=1)[:, :16]
    np.testing.assert_allclose(
        Neighbours().fit(rows, ends).predict(asked), ends[nearest].mean(axis=1)
    )


def test_the_scale_is_not_the_advantages():
    assert not make("t2spo").estimates_advantage
    assert make("t2spo").reconstructed
