import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.craft import craft
from twinstats.episodes import Group, Task

A = 1 / np.sqrt(2)
LOG3 = np.log(3.0)


def group_of(*episodes):
    return Group(Task("task"), list(episodes), 0, 0)


def test_craft_by_hand(gapped, given_world):
    # turn 0: d = log 3, 0, so w = 3/4, 1/4; A = a, -a with a = 1 / sqrt 2
    # CTI = 3/4 a - 1/4 a - 0 = a/2; n w - 1 = 1/2, -1/2
    # turn 1 of the first has no sibling: A alone
    group = group_of(gapped(1.0, [[LOG3 + 1, LOG3 - 1], [5.0, 1.0]]), gapped(0.0, [[0.0]], row=1))
    (credit,) = assign(given_world(), [group], make("craft", epsilon=0.0))
    np.testing.assert_allclose(credit.values[0], [A + 0.5 * A / 4, A])
    np.testing.assert_allclose(credit.values[1], [-A - 0.5 * A / 4])
    np.testing.assert_allclose(credit.info["change"], [A / 2, 0.0], atol=1e-15)
    # praise, and the teacher is right: odds e^2 for the token that she prefers
    odds = np.exp(2.0)
    np.testing.assert_allclose(credit.weights[0][0], [2 * odds / (1 + odds), 2 / (1 + odds)])
    assert credit.weights[0][1].tolist() == [1.0, 1.0]


def test_the_change_is_the_reweighted_mean_minus_the_mean(gapped):
    rng = np.random.default_rng(2)
    episodes = [gapped(rng.normal(), [rng.normal(size=2)], row=row) for row in range(5)]
    credit = craft(group_of(*episodes), beta=2.0, weight=0.0)
    gaps = np.array([episode.info["teacher_gap"][0].mean() for episode in episodes])
    parts = np.exp(2 * gaps) / np.exp(2 * gaps).sum()
    advantages = np.concatenate(credit.values)
    np.testing.assert_allclose(credit.info["change"], [parts @ advantages - advantages.mean()])


def test_the_second_term_adds_up_to_nothing_over_siblings(gapped):
    rng = np.random.default_rng(3)
    episodes = [gapped(rng.normal(), rng.normal(size=(2, 3)), row=row) for row in range(5)]
    credit = craft(group_of(*episodes), weight=3.0)
    np.testing.assert_allclose(np.sum(credit.values, axis=0), 0.0, atol=1e-12)
    assert np.ptp([values[0] - values[1] for values in credit.values]) > 0.01


def test_a_misleading_teacher_is_turned_round(gapped):
    # she prefers the failure's turn: CTI < 0, and the failure still loses, the success gains
    group = group_of(gapped(1.0, [[0.0, -2.0]]), gapped(0.0, [[3.0, 1.0]], row=1))
    credit, plain = craft(group), make("grpo")(group)
    assert credit.info["change"][0] < 0
    assert credit.values[0][0] > plain.values[0][0] > 0 > plain.values[1][0] > credit.values[1][0]
    assert np.argmax(credit.weights[0][0]) == 1  # praise goes to what she would not have said
    assert np.argmax(credit.weights[1][0]) == 0


def test_blame_goes_to_what_a_teacher_who_is_right_would_not_say(gapped):
    group = group_of(gapped(1.0, [[3.0]]), gapped(0.0, [[0.5, -0.5]], row=1))
    credit = craft(group)
    assert credit.info["change"][0] > 0
    assert credit.weights[1][0][1] > 1 > credit.weights[1][0][0]


def test_no_weight_leaves_grpos_values(gapped):
    group = group_of(gapped(1.0, [[3.0]]), gapped(0.0, [[0.5, -0.5]], row=1))
    found, grpo = craft(group, weight=0.0).values, make("grpo")(group).values
    assert [v.tolist() for v in found] == [v.tolist() for v in grpo]


def test_equal_preferences_are_grpo(gapped):
    group = group_of(*(gapped(row == 0, [[0.1, 0.3]], row=row) for row in range(3)))
    credit, grpo = craft(group), make("grpo")(group)
    assert [v.tolist() for v in credit.values] == [v.tolist() for v in grpo.values]
    assert all(turn.tolist() == [1.0, 1.0] for own in credit.weights for turn in own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, "`weight` must be at least 0 and finite, got -1.0"),
        ({"beta": -1.0}, "`beta` must be"),
        ({"temperature": 0.0}, "`temperature` must be positive"),
        ({"high": 0.5}, "`high` must be at least 1, got 0.5"),
    ],
)
def test_options_out_of_range_are_refused(gapped, options, message):
    with pytest.raises(ValueError, match=message):
        craft(group_of(gapped(1.0, [[3.0]])), **options)
