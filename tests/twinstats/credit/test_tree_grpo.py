import math

import numpy as np
import pytest
from scipy.stats import binom

from twinstats.credit import assign, make
from twinstats.episodes import FRESH, RESAMPLE, Group, Task
from twinstats.errors import UsageError

HALF = math.sqrt(0.5)


@pytest.fixture
def group(leaf):
    return Group(Task("task"), [leaf(1.0, [0.0, 0.0]), leaf(0.0, [0.0], row=1)], 0, 0)


def played(tree_world, group, **options):
    world = tree_world(lambda fork: (0.0, [0.0] * (fork.episode.num_turns - fork.turn)))
    (credit,) = assign(world, [group], make("tree_grpo", **options))
    return credit, world


def test_tree_grpo_by_hand(tree_world, group):
    """Leaves 1, 0 and 0, 0.

    Among all: mean 1/4, squares 9/16 + 3/16 = 3/4, over 3: std 1/2, so z = 1.5, -0.5, -0.5, -0.5.
    Inside the first tree: mean 1/2, std sqrt(1/2), so z = sqrt(1/2) and -sqrt(1/2); second: 0.
    """
    credit, _ = played(tree_world, group, expansions=1)
    first, second, fork, other = credit.values
    np.testing.assert_allclose(first, [1.5 + HALF] * 2, atol=1e-5)
    np.testing.assert_allclose(second, [-0.5], atol=1e-5)
    np.testing.assert_allclose(fork, [-0.5 - HALF] * 2, atol=1e-5)
    np.testing.assert_allclose(other, [-0.5], atol=1e-5)
    assert [e.fork is None for e in credit.episodes] == [True, True, False, False]
    assert credit.share is None
    assert credit.info["leaves"] == 4


def test_a_shared_turn_is_trained_once_with_each_leaf(tree_world, group):
    """Turn 0 of the first episode is in two leaves, and stands in both rows."""
    for seed in range(50):
        again = Group(group.task, group.episodes, seed, 0)
        credit, _ = played(tree_world, again, expansions=1)
        fork = credit.episodes[2]
        if fork.fork.turn == 1:
            assert fork.owner(0) is group.episodes[0]
            assert not np.isnan(credit.values[0][0] + credit.values[2][0])
            return
    raise AssertionError("no fork at turn 1 in 50 draws")


@pytest.mark.parametrize(
    ("norm", "expected"),
    [("tree_inner", [HALF, 0.0, -HALF, 0.0]), ("tree_2norm", [HALF, 0.0, -HALF, 0.0])],
)
def test_other_norms_by_hand(tree_world, group, norm, expected):
    """Inside a tree z of (1, 0), and z of (1.5, -0.5), is +-sqrt(1/2); equal leaves give 0."""
    credit, _ = played(tree_world, group, expansions=1, norm=norm)
    np.testing.assert_allclose([v[0] for v in credit.values], expected, atol=1e-5)
    assert credit.values[1].tolist() == [0.0]


@pytest.mark.parametrize("norm", ["tree", "tree_2norm"])
def test_without_expansions_tree_grpo_is_grpo(tree_world, group, norm):
    credit, world = played(tree_world, group, expansions=0, norm=norm)
    (expected,) = assign(world, [group], make("grpo"))
    assert [v.tolist() for v in credit.values] == [v.tolist() for v in expected.values]
    assert world.calls == []


def test_the_published_sizes_make_six_leaves_of_two_chains(tree_world, group):
    credit, world = played(tree_world, group)
    assert credit.info["leaves"] == 6
    assert len(world.calls) == 1
    kinds = {(f.action, f.luck, f.takes_equal_tail()) for f in world.calls[0]}
    assert kinds == {(RESAMPLE, FRESH, False)}


def test_states_are_drawn_uniformly_and_later_rounds_go_on_from_forks(tree_world, leaf):
    episodes = [leaf(0.0, [0.0] * 3, row=row) for row in range(300)]
    world = tree_world(lambda fork: (0.0, [0.0] * (3 - fork.turn)))
    group = Group(Task("task"), episodes, 0, 0)
    assign(world, [group], make("tree_grpo", expansions=1, rounds=2))
    first, second = world.calls
    turns = np.bincount([fork.turn for fork in first], minlength=3)
    assert (abs(turns - 100) < 40).all()
    nested = [fork for fork in second if fork.episode.fork is not None]
    assert len(nested) > 20
    assert all(fork.turn > fork.episode.fork.turn for fork in nested)


def test_a_state_that_leaves_share_is_drawn_once(tree_world, leaf):
    """After a fork at turn 0 there are three states: the root, and one behind each first turn."""
    episodes = [leaf(0.0, [0.0] * 2, row=row) for row in range(600)]
    world = tree_world(lambda fork: (0.0, [0.0] * (2 - fork.turn)))
    group = Group(Task("task"), episodes, 0, 0)
    assign(world, [group], make("tree_grpo", expansions=1, rounds=2))
    first, second = world.calls
    again = [two.turn for one, two in zip(first, second, strict=True) if one.turn == 0]
    low, high = binom.interval(1 - 1e-6, len(again), 1 / 3)
    assert low <= again.count(0) <= high


def test_a_tree_of_failures_is_null_and_left_out(tree_world, leaf):
    group = Group(Task("task"), [leaf(None, [0.0]), leaf(1.0, [0.0], row=1)], 0, 0)
    world = tree_world(lambda fork: (0.0, [0.0]) if fork.alternative else (None, [0.0]))
    (credit,) = assign(world, [group], make("tree_grpo"))
    assert {fork.episode.row for fork in world.calls[0]} == {1}
    np.testing.assert_allclose(
        [v[0] for v in credit.values], [np.nan, 2 * HALF, -2 * HALF], atol=1e-5
    )
    assert credit.info["unscored"] == 2


def test_a_single_leaf_is_null_with_a_reason(tree_world, leaf):
    group = Group(Task("task"), [leaf(1.0, [0.0])], 0, 0)
    credit, _ = played(tree_world, group, expansions=0)
    assert np.isnan(credit.values[0]).all()
    assert "needs at least 2" in credit.info["reason"]


def test_one_episode_with_forks_is_a_tree(tree_world, leaf):
    group = Group(Task("task"), [leaf(1.0, [0.0])], 0, 0)
    credit, _ = played(tree_world, group, expansions=1)
    np.testing.assert_allclose([v[0] for v in credit.values], [2 * HALF, -2 * HALF], atol=1e-5)


def test_wrong_options_are_refused(tree_world, group, unchecked):
    with pytest.raises(ValueError, match="`expansions` must be at least 0 and finite, got -1"):
        played(tree_world, group, expansions=-1)
    with pytest.raises(ValueError, match="`rounds` must be at least 1, got 0"):
        played(tree_world, group, rounds=0)
    with pytest.raises(UsageError, match="Unknown norm 'inner'. Did you mean 'tree_inner'"):
        played(tree_world, group, norm="inner")


def test_the_scale_is_not_the_advantages():
    method = make("tree_grpo")
    assert not method.estimates_advantage
    assert not method.reconstructed
    assert not method.compares_members
