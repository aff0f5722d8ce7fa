import inspect

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.dr_grpo import dr_grpo
from twinstats.credit.gigpo import gigpo
from twinstats.credit.grpo import grpo
from twinstats.episodes import Group, Task


def grouped(*episodes):
    return Group(Task("task"), list(episodes), 0, 0)


def test_gigpo_by_hand(walk, scripted_world):
    group = grouped(walk(1.0, "AB"), walk(0.0, "AC", row=1))
    (credit,) = assign(scripted_world(), [group], make("gigpo"))
    # A_E = +-1/2; at A the returns are .95 * 1 and 0, so A_S = +-.475; B and C came once
    np.testing.assert_allclose(credit.values, [[0.975, 0.5], [-0.975, -0.5]])


def test_the_published_defaults():
    options = {n: p.default for n, p in inspect.signature(gigpo).parameters.items() if n != "group"}
    assert options == {
        "discount": 0.95,
        "weight": 1.0,
        "mode": "mean_norm",
        "similarity": None,
        "cross_steps": True,
        "epsilon": 1e-6,
    }


def test_standard_deviations_divide_both_terms(walk):
    group = grouped(walk(1.0, "ABC"), walk(0.0, "A", row=1))
    credit = gigpo(group, discount=1.0, mode="mean_std_norm", epsilon=0.0)
    # A_E over 1,1,1,0: mean 3/4, squares 3/16 + 9/16 = 3/4, over 3: std 1/2 -> 1/2, -3/2
    # A_S at A over 1,0: +-1/2 over std 1/sqrt(2)
    root = np.sqrt(0.5)
    np.testing.assert_allclose(credit.values[0], [0.5 + root, 0.5, 0.5])
    np.testing.assert_allclose(credit.values[1], [-1.5 - root])


def test_step_rewards_count_from_their_turn_on(walk):
    group = grouped(walk(0.9, "AA", rewards=[-0.1, 0.0]), walk(0.0, "B", row=1))
    credit = gigpo(group, discount=0.5, cross_steps=False)
    # returns of the two visits to A: -.1 + .5 * 1 = .4 and 1, mean .7; A_E = +-.45
    np.testing.assert_allclose(credit.values[0], [0.45 - 0.3, 0.45 + 0.3])


def test_weight_zero_is_dr_grpo_and_with_deviation_grpo(walk):
    group = grouped(walk(1.0, "AB"), walk(0.0, "A", row=1), walk(0.5, "BA", row=2))
    for found, expected in (
        (gigpo(group, weight=0.0, cross_steps=False), dr_grpo(group)),
        (gigpo(group, weight=0.0, cross_steps=False, mode="mean_std_norm"), grpo(group)),
    ):
        assert [v.tobytes() for v in found.values] == [v.tobytes() for v in expected.values]


def test_without_repeated_states_there_is_no_step_term(walk):
    group = grouped(walk(1.0, "AB"), walk(0.0, "CD", row=1))
    assert [v.tolist() for v in gigpo(group).values] == [[0.5, 0.5], [-0.5, -0.5]]


def test_similar_texts_share_a_state(walk):
    group = grouped(walk(1.0, ["a lamp on"]), walk(0.0, ["a lamp off"], row=1))
    # 2 * 8 common letters / 19 = .84
    assert [v.tolist() for v in gigpo(group, similarity=0.9).values] == [[0.5], [-0.5]]
    assert [v.tolist() for v in gigpo(group, similarity=0.8).values] == [[1.0], [-1.0]]


def test_no_success_is_no_special_case(walk):
    group = grouped(walk(-1.0, "A"), walk(-3.0, "A", row=1))
    assert [v.tolist() for v in gigpo(group).values] == [[2.0], [-2.0]]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"discount": 1.5}, r"`discount` must be in \[0, 1\], got 1.5"),
        ({"weight": -1.0}, "`weight` must be at least 0 and finite, got -1.0"),
        ({"similarity": 2.0}, r"`similarity` must be in \[0, 1\], got 2.0"),
        ({"mode": "std"}, "Unknown mode 'std'"),
        ({"epsilon": -1.0}, "`epsilon` must be at least 0"),
    ],
)
def test_options_out_of_range_are_refused(walk, unchecked, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        gigpo(grouped(walk(1.0, "A"), walk(0.0, "A", row=1)), **options)
