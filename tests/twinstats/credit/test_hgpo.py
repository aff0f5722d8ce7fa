import inspect

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.gigpo import gigpo
from twinstats.credit.hgpo import hgpo
from twinstats.episodes import Group, Task


@pytest.fixture
def group(walk):
    episodes = [walk(4.0, "AB"), walk(1.0, "AB", row=1), walk(1.0, "CB", row=2)]
    return Group(Task("task"), episodes, 0, 0)


PLAIN = {"discount": 1.0, "history": 1, "mode": "mean_norm"}


def test_hgpo_by_hand(group, scripted_world):
    (credit,) = assign(scripted_world(), [group], make("hgpo", **PLAIN))
    # A, k=1: returns 4, 1 -> +-1.5.  B, k=1: 4, 1, 1 -> 2, -1, -1.  (A, B), k=2: +-1.5.
    # weights 2 and 3: (2 * 2 + 3 * 1.5) / 5 = 1.7, (-2 - 4.5) / 5 = -1.3; CB came once: -1
    np.testing.assert_allclose(credit.values, [[1.5, 1.7], [-1.5, -1.3], [0.0, -1.0]])


def test_alpha_zero_weighs_all_histories_alike(group):
    credit = hgpo(group, alpha=0.0, **PLAIN)
    np.testing.assert_allclose(credit.values[0], [1.5, 1.75])


def test_the_episodes_term_may_join_as_k_zero(group):
    credit = hgpo(group, base=True, **PLAIN)
    # A_E = 4 - 2 = 2 with weight 1: (2 + 2 * 1.5) / 3, (2 + 2 * 2 + 3 * 1.5) / 6; C: A_E alone
    np.testing.assert_allclose(credit.values[0], [5 / 3, 10.5 / 6])
    np.testing.assert_allclose(credit.values[2], [-1.0, (-1.0 - 2.0) / 3])


def test_the_deviation_is_the_populations(group):
    credit = hgpo(group, discount=1.0, history=0, epsilon=0.0)
    # A: 4, 1 has deviation 1.5; B: 4, 1, 1 has sqrt((4 + 1 + 1) / 3) = sqrt(2)
    np.testing.assert_allclose(credit.values[0], [1.0, np.sqrt(2)])


def test_a_term_of_zero_takes_no_weight(walk):
    episodes = [walk(2.0, "AB"), walk(2.0, "AB", row=1), walk(5.0, "CB", row=2)]
    credit = hgpo(Group(Task("t"), episodes, 0, 0), **PLAIN)
    # (A, B): 2, 2 -> 0 is left out; B: 2, 2, 5 -> -1, -1, 2
    assert [v[1] for v in credit.values] == [-1.0, -1.0, 2.0]


def test_without_history_it_is_the_step_term_of_gigpo(walk):
    rng = np.random.default_rng(3)
    episodes = [walk(float(rng.normal()), rng.integers(0, 3, 5).tolist(), row=r) for r in range(4)]
    group = Group(Task("t"), episodes, 0, 0)
    found = hgpo(group, history=0, mode="mean_norm").values
    whole = gigpo(group).values
    episode = gigpo(group, weight=0.0).values
    for own, both, outer in zip(found, whole, episode, strict=True):
        np.testing.assert_allclose(own, both - outer, atol=1e-12)


@pytest.mark.parametrize("history", [5, 10**12])
def test_only_whole_histories_are_compared(walk, history):
    # both B have A before them, but only the first has Z before that
    episodes = [walk(1.0, "ZAB"), walk(0.0, "AB", row=1)]
    credit = hgpo(Group(Task("t"), episodes, 0, 0), discount=1.0, history=history, mode="mean_norm")
    np.testing.assert_allclose(credit.values[0], [0.0, 0.5, 0.5])
    np.testing.assert_allclose(credit.values[1], [-0.5, -0.5])


def test_a_history_does_not_reach_into_the_episode_before(walk):
    episodes = [walk(outcome, "AB", row=row) for row, outcome in enumerate([5.0, 1.0, 0.0])]
    credit = hgpo(Group(Task("t"), episodes, 0, 0), **PLAIN)
    assert [v[0] for v in credit.values] == [3.0, -1.0, -2.0]


def test_the_published_defaults():
    options = {n: p.default for n, p in inspect.signature(hgpo).parameters.items() if n != "group"}
    assert options == {
        "discount": 0.95,
        "history": 2,
        "alpha": 1.0,
        "mode": "mean_std_norm",
        "base": False,
        "epsilon": 1e-6,
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"discount": -0.1}, r"`discount` must be in \[0, 1\], got -0.1"),
        ({"history": -1}, "`history` must be at least 0 and finite, got -1"),
        ({"alpha": np.inf}, "`alpha` must be at least 0 and finite, got inf"),
        ({"mode": "std"}, "Unknown mode 'std'"),
    ],
)
def test_options_out_of_range_are_refused(group, unchecked, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        hgpo(group, **options)
