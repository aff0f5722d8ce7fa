import inspect
import math

import numpy as np
import pytest

from twinstats.credit import make
from twinstats.credit.spader import spader
from twinstats.episodes import Group, Task


def grouped(*episodes, step=1000, targets=("x", "y")):
    return Group(Task("task", {"entities": targets}), list(episodes), 0, step)


def searching(walk, outcome, *found, row=0, calls=None):
    """An episode that has found these targets in each of its states."""
    episode = walk(outcome, range(len(found) - 1), row=row)
    episode.info["entities"] = [set(state) for state in found]
    for turn, number in zip(episode.turns, calls or (), strict=False):
        turn.info["calls"] = number
    return episode


def test_spader_by_hand(walk):
    group = grouped(
        searching(walk, 1.0, "", "x", "x"),
        searching(walk, 0.0, "", "", row=1),
        searching(walk, 0.0, "", "", "y", row=2),
    )
    credit = spader(group, discount=0.5)
    # first episode: (1 + 4 - .01) / 2 = 2.495, then the outcome 1: returns 2.995, 1
    # second: 0.  third: -.01 / 2 = -.005, then 5 / 2: returns 1.245, 2.5
    for index, returns in enumerate([[2.995, 0.0, 1.245], [1.0, 0.0, 2.5]]):
        deviation = np.sqrt(np.var(returns) + 1e-6)
        expected = (np.array(returns) - np.mean(returns)) / deviation
        found = [credit.values[row][index] for row in (0, 2)]
        np.testing.assert_allclose(found, expected[[0, 2]])
    assert [len(values) for values in credit.values] == [2, 1, 2]
    first = [2.995, 0.0, 1.245]
    np.testing.assert_allclose(credit.values[1], -np.mean(first) / np.sqrt(np.var(first) + 1e-6))


def single(credit):
    """The return of the first of two members whose other has return 0, from its credit."""
    # +-g/2 over sqrt(g^2 / 4 + 1e-6)
    share = credit.values[0][0]
    return 2 * math.sqrt(1e-6 * share**2 / (1 - share**2))


def test_a_target_that_many_found_is_worth_less(walk):
    both = grouped(searching(walk, 0.0, "", "xy"), searching(walk, 0.0, "", "x", row=1))
    credit = spader(both, alpha=0.0, beta=1e-3, decay=2.0)
    # y alone 1, x shared exp(-2): the two differ by y's 1e-3 / 2 in all
    rewards = 1e-3 * np.array([1 + math.exp(-2), math.exp(-2)]) / 2
    expected = (rewards - rewards.mean()) / np.sqrt(rewards.var() + 1e-6)
    np.testing.assert_allclose(np.concatenate(credit.values), expected)


@pytest.mark.parametrize(
    ("step", "share"), [(0, 0.0), (99, 0.0), (100, 0.0), (150, 0.5), (200, 1.0), (999, 1.0)]
)
def test_the_cost_is_free_and_then_grows(walk, step, share):
    group = grouped(
        searching(walk, 0.0, "", "x", "x"), searching(walk, 0.0, "", "", row=1), step=step
    )
    credit = spader(group, alpha=1e-3, beta=0.0, cost=1e-3)
    assert single(credit) == pytest.approx(1e-3 * (1 - share) / 2, abs=1e-12)


def test_calls_may_be_counted_by_the_world(walk):
    group = grouped(searching(walk, 0.0, "", "x", calls=[3]), searching(walk, 0.0, "", "", row=1))
    assert single(spader(group, alpha=1e-2, beta=0.0, cost=1e-3)) == pytest.approx(7e-3 / 2)


def test_only_targets_that_are_new_count(walk):
    group = grouped(
        searching(walk, 0.0, "x", "xyz", "y", "xy"), searching(walk, 0.0, "x", "x", row=1)
    )
    # x was there from the start, z is no target, and x comes back: y alone is found, once
    credit = spader(group, alpha=1e-3, beta=0.0, cost=0.0)
    assert single(credit) == pytest.approx(5e-4)
    assert credit.values[0][1:].tolist() == [0.0, 0.0]


def test_members_that_have_ended_count_with_return_zero(walk):
    group = grouped(searching(walk, 2.0, "", "", ""), searching(walk, 9.0, "", "", row=1))
    credit = spader(group, cost=0.0)
    # at the second turn: 2 and 0
    np.testing.assert_allclose(credit.values[0][1], 1 / np.sqrt(1 + 1e-6))


def test_discoveries_count_without_success(walk):
    group = grouped(searching(walk, 0.0, "", "x"), searching(walk, 0.0, "", "", row=1))
    assert spader(group).values[0][0] > 0.9
    assert not np.concatenate(spader(grouped(*group.episodes, targets=())).values).any()


def test_missing_entities_are_refused(walk):
    group = grouped(walk(1.0, "A"), walk(0.0, "A", row=1))
    with pytest.raises(ValueError, match=r"Method 'spader' needs 'entities' \(the target entities"):
        make("spader")(group)
    with pytest.raises(ValueError, match=r"needs `task.info\['entities'\]` \(the target entities"):
        spader(Group(Task("t"), group.episodes, 0, 0))
    assert [need.name for need in make("spader").needs] == ["entities"]


def test_the_published_defaults():
    known = inspect.signature(spader).parameters
    assert {name: p.default for name, p in known.items() if name != "group"} == {
        "discount": 0.9,
        "alpha": 1.0,
        "beta": 4.0,
        "decay": 1.0,
        "cost": 0.01,
        "free_steps": 100,
        "ramp_steps": 100,
        "final_weight": 1.0,
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"discount": 2.0}, r"`discount` must be in \[0, 1\], got 2.0"),
        ({"beta": -1.0}, "`beta` must be at least 0 and finite, got -1.0"),
        ({"ramp_steps": -1}, "`ramp_steps` must be at least 0 and finite, got -1"),
    ],
)
def test_options_out_of_range_are_refused(walk, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        spader(grouped(walk(1.0, "A"), walk(0.0, "A", row=1)), **options)
