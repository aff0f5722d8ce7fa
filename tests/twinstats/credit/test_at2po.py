import math

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit._tree import turn_entropies
from twinstats.episodes import Group, Task
from twinstats.errors import UsageError

UP, DOWN = math.sqrt(2), -math.sqrt(0.5)


@pytest.fixture
def group(leaf):
    first = leaf(1.0, [None] * 3, entropies=[0.1, 0.9, 0.1])
    second = leaf(0.0, [None], row=1, entropies=[0.1])
    return Group(Task("task"), [first, second], 0, 0)


def played(tree_world, group, **options):
    """One expansion: turn 1 of the first episode, at entropy 0.9 - log 2, ends in 0."""
    entropies = [0.9 - math.log(2), 0.1]
    world = tree_world(lambda fork: (0.0, [None] * 2, {"entropies": entropies}))
    options = {"beam": 1, "rounds": 1} | options
    (credit,) = assign(world, [group], make("at2po", **options))
    return credit, world


def test_at2po_by_hand(tree_world, group):
    """Outcomes 1, 0, 0: mean 1/3, population std sqrt(2)/3: z = sqrt(2), -sqrt(1/2), -sqrt(1/2).

    Turn 0 of the first episode has two children with exp(entropy) in the ratio 2 to 1:
    V = (2 sqrt(2) - sqrt(1/2)) / 3 = sqrt(1/2). The root's two children are equally unsure.
    """
    credit, world = played(tree_world, group)
    assert [(fork.episode.row, fork.turn) for fork in world.calls[0]] == [(0, 1)]
    first, second, fork = credit.values
    np.testing.assert_allclose(first, [-DOWN, UP, UP], atol=1e-5)
    np.testing.assert_allclose(second, [DOWN], atol=1e-5)
    np.testing.assert_allclose(fork, [np.nan, DOWN, DOWN], atol=1e-5)


def test_a_shared_turn_stands_once_with_its_number_of_leaves(tree_world, group):
    """The gradient of training both leaves' whole paths: 2 V(turn 0) + the rest."""
    credit, _ = played(tree_world, group)
    np.testing.assert_array_equal(credit.share[0], [2, 1, 1])
    np.testing.assert_array_equal(credit.share[2], [np.nan, 1, 1])
    once = sum(np.nansum(v * s) for v, s in zip(credit.values, credit.share, strict=True))
    each = (-DOWN + UP + UP) + DOWN + (-DOWN + DOWN + DOWN)
    assert once == pytest.approx(each, abs=1e-4)


@pytest.mark.parametrize(
    ("advantage", "first", "fork"),
    [
        ("diff_parent", [-DOWN, -DOWN, 0.0], [np.nan, -UP, 0.0]),
        ("diff_global", [-DOWN, UP, UP], [np.nan, DOWN, DOWN]),
        ("diff_localglobal", [UP, UP - DOWN, UP], [np.nan, DOWN - UP, DOWN]),
    ],
)
def test_differences_by_hand(tree_world, group, advantage, first, fork):
    """V(root) = (sqrt(1/2) - sqrt(1/2)) / 2 = 0."""
    credit, _ = played(tree_world, group, advantage=advantage)
    np.testing.assert_allclose(credit.values[0], first, atol=1e-5)
    np.testing.assert_allclose(credit.values[2], fork, atol=1e-5)


@pytest.mark.parametrize(
    ("node_value", "shared", "root"),
    [("child_mean", UP / 4, (UP / 4 + DOWN) / 2), ("leaf_mean", UP / 4, 0.0)],
)
def test_plain_means_by_hand(tree_world, group, node_value, shared, root):
    """(sqrt(2) - sqrt(1/2)) / 2 = sqrt(2) / 4; the mean of all z is 0."""
    credit, _ = played(tree_world, group, node_value=node_value)
    np.testing.assert_allclose(credit.values[0], [shared, UP, UP], atol=1e-5)
    credit, _ = played(tree_world, group, node_value=node_value, advantage="diff_global")
    np.testing.assert_allclose(credit.values[0], np.array([shared, UP, UP]) - root, atol=1e-5)


def test_siblings_are_penalised_and_last_turns_left_alone(tree_world, leaf):
    """Two episodes are siblings at turn 0: 0.5 - 0.05 < 0.47. Last turns are surest to be asked."""
    first = leaf(1.0, [None] * 3, entropies=[0.5, 0.47, 9.0])
    second = leaf(0.0, [None], row=1, entropies=[9.0])
    group = Group(Task("task"), [first, second], 0, 0)
    _, world = played(tree_world, group)
    assert [(fork.episode.row, fork.turn) for fork in world.calls[0]] == [(0, 1)]
    _, world = played(tree_world, group, penalty=0.0)
    assert [(fork.episode.row, fork.turn) for fork in world.calls[0]] == [(0, 0)]


def test_a_short_list_is_gone_through_again(tree_world, group):
    _, world = played(tree_world, group, beam=3)
    assert [(fork.turn, fork.alternative) for fork in world.calls[0]] == [(1, 0), (0, 0), (1, 1)]


def test_a_forks_own_turn_is_sampled_anew_from_its_parent(tree_world, group):
    """In round 2 the fork's turn 1 (0.9 - log 2 - 0.05) is less sure than its sibling (0.85)."""
    _, world = played(tree_world, group, rounds=2, beam=3)
    assert all(fork.episode.fork is None for call in world.calls for fork in call)
    numbers = [fork.alternative for call in world.calls for fork in call if fork.turn == 1]
    assert numbers == list(range(len(numbers)))


def test_defaults_are_the_published_ones(tree_world, group):
    credit, world = played(tree_world, group, beam=6, rounds=2)
    (plain,) = assign(world, [group], make("at2po"))
    assert plain.info["leaves"] == credit.info["leaves"] == 2 + 12


def test_unknown_entropies_are_mean_surprisals(leaf):
    episode = leaf(1.0, [0.25, 0.5], entropies=[None, 0.75], tokens=[4, 2])
    assert turn_entropies("at2po", episode).tolist() == [0.25, 0.75]


def test_a_turn_without_either_is_refused(tree_world, leaf):
    group = Group(Task("task"), [leaf(1.0, [0.5, None])], 0, 0)
    with pytest.raises(
        ValueError, match="'at2po' needs the entropy .* turn 1 of episode 0/0 lacks"
    ):
        played(tree_world, group)


def test_a_single_leaf_is_null_and_failed_leaves_are_left_out(tree_world, leaf):
    alone = leaf(1.0, [0.1, 0.1])
    credit, _ = played(tree_world, Group(Task("task"), [alone], 0, 0), rounds=0)
    assert np.isnan(credit.values[0]).all()
    assert "needs at least 2" in credit.info["reason"]
    failed = leaf(None, [0.1, 0.1], row=1)
    credit, _ = played(tree_world, Group(Task("task"), [alone, failed], 0, 0), rounds=0)
    assert credit.values[0].tolist() == [0.0, 0.0]
    assert np.isnan(credit.values[1]).all()
    credit, world = played(tree_world, Group(Task("task"), [failed], 0, 0), rounds=2)
    assert world.calls == []
    assert np.isnan(credit.values[0]).all()


def test_wrong_options_are_refused(tree_world, group, unchecked):
    with pytest.raises(ValueError, match="`beam` must be at least 0 and finite, got -1"):
        played(tree_world, group, beam=-1)
    with pytest.raises(UsageError, match="Unknown node_value 'leaf_means'. Did you mean"):
        played(tree_world, group, node_value="leaf_means")
    with pytest.raises(UsageError, match="Unknown advantage 'diff'"):
        played(tree_world, group, advantage="diff")
