import math

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.episodes import Group, Task
from twinstats.errors import UsageError

ROOT2 = math.sqrt(2)


@pytest.fixture
def group(leaf):
    first = leaf(1.0, [0.1, 0.9, 0.1], tokens=[1, 2, 1])
    second = leaf(0.0, [0.1], row=1, tokens=[3])
    return Group(Task("task"), [first, second], 0, 0)


def played(tree_world, group, **options):
    """Branches at the surprising turn 1 of the first episode and at turn 0 of the second fail."""
    script = {0: (0.0, [0.2, 0.1], {"tokens": [2, 1]}), 1: (0.0, [0.2], {"tokens": [3]})}
    world = tree_world(lambda fork: script[fork.episode.row])
    options = {"points": 1, "branches": 1} | options
    (credit,) = assign(world, [group], make("treerl", **options))
    return credit, world


def check(credit, shared, won, lost, other):
    first, second, fork, last = credit.values
    np.testing.assert_allclose(first, [shared, won, won])
    np.testing.assert_allclose(second, [other])
    np.testing.assert_allclose(fork, [np.nan, lost, lost])
    np.testing.assert_allclose(last, [other])


@pytest.mark.parametrize(("weighting", "divisor"), [("sqrt", ROOT2), ("count", 2.0)])
@pytest.mark.parametrize(("centring", "mean"), [("none", 0.0), ("token", 1 / 21), ("step", 1 / 6)])
def test_treerl_by_hand(tree_world, group, weighting, divisor, centring, mean):
    """r = 1, -1/3, -1/3, -1/3. S = 2/3 at the shared turn, then 1, 1 and -1/3, -1/3; -1/3; -1/3.

    Tokens 1; 2, 1; 2, 1; 3; 3: sum w S = 2/3 + 3 - 1 - 1 - 1 = 2/3, sum w L = 2 + 3 + 3 + 6 = 14,
    mean 1/21. Steps: sum S = 2/3 + 2 - 2/3 - 2/3 = 4/3, sum L = 2 + 2 + 2 + 2 = 8, mean 1/6.
    """
    credit, world = played(tree_world, group, weighting=weighting, centring=centring)
    assert [(fork.episode.row, fork.turn) for fork in world.calls[0]] == [(0, 1), (1, 0)]
    shared = (2 / 3 - 2 * mean) / divisor
    check(credit, shared, 1 - mean, -1 / 3 - mean, -1 / 3 - mean)
    np.testing.assert_array_equal(credit.share[0], [2, 1, 1])
    np.testing.assert_array_equal(credit.share[2], [np.nan, 1, 1])


def test_the_papers_form_by_hand(tree_world, group):
    """V(root) = 1/4, V(turn 0) = 1/2: (1/4 + 1/4) / sqrt(2). Won: 3/4 + 1/2. Lost: -1/4 - 1/2.

    A turn that nothing branches from takes the parent of the turn before. Other: -1/4 - 1/4.
    """
    credit, _ = played(tree_world, group, weighting="paper")
    check(credit, 0.5 / ROOT2, 1.25, -0.75, -0.5)


def test_centring_leaves_no_mean_over_tokens_and_leaves(tree_world, group):
    """What the loss sums, share times tokens times credit, is 0 once it is weighed by sqrt(L)."""
    credit, _ = played(tree_world, group)
    total = sum(
        turn.num_tokens * value * math.sqrt(share)
        for e, v, s in zip(credit.episodes, credit.values, credit.share, strict=True)
        for turn, value, share in zip(e.turns, v, s, strict=True)
        if not np.isnan(value)
    )
    assert total == pytest.approx(0.0, abs=1e-12)


def test_without_branches_and_centring_treerl_is_rloo(tree_world, leaf):
    group = Group(Task("task"), [leaf(float(r), [0.1, 0.2], row=r) for r in range(3)], 0, 0)
    credit, world = played(tree_world, group, rounds=0, centring="none")
    (expected,) = assign(world, [group], make("rloo"))
    assert [v.tolist() for v in credit.values] == [v.tolist() for v in expected.values]


def test_later_rounds_choose_turns_without_siblings(tree_world, group):
    _, world = played(tree_world, group, rounds=2)
    first, second = world.calls
    assert [(fork.episode.row, fork.turn) for fork in first] == [(0, 1), (1, 0)]
    (fork,) = second  # the other episode's only turn has a sibling
    assert fork.episode.row == 0
    assert fork.turn in (0, 2)


def test_points_and_branches_multiply(tree_world, group):
    _, world = played(tree_world, group, points=2, branches=2)
    asked = sorted((f.episode.row, f.turn, f.alternative) for f in world.calls[0])
    first = [turn for row, turn, _ in asked if row == 0]
    assert first.count(1) == 2 and len(first) == 4
    assert [one[1:] for one in asked if one[0] == 1] == [(0, 0), (0, 1)]


def test_a_single_leaf_is_null_and_failed_leaves_are_left_out(tree_world, leaf):
    for weighting in ("sqrt", "paper"):
        alone, failed = leaf(1.0, [0.1]), leaf(None, [0.1], row=1)
        group = Group(Task("task"), [alone, failed], 0, 0)
        credit, _ = played(tree_world, group, rounds=0, weighting=weighting)
        assert all(np.isnan(v).all() for v in credit.values)
        assert "needs at least 2" in credit.info["reason"]
        credit, world = played(tree_world, group, weighting=weighting)
        assert {fork.episode.row for fork in world.calls[0]} == {0}
        assert not np.isnan(credit.values[0]).any()
        assert len(credit.episodes) == 3


def test_a_turn_without_logprob_is_refused(tree_world, leaf):
    group = Group(Task("task"), [leaf(1.0, [None], entropies=[0.5])], 0, 0)
    with pytest.raises(ValueError, match="'treerl' needs the log-probability .* turn 0 of episode"):
        played(tree_world, group)


def test_wrong_options_are_refused(tree_world, group, unchecked):
    with pytest.raises(ValueError, match="`branches` must be at least 0 and finite, got -2"):
        played(tree_world, group, branches=-2)
    with pytest.raises(UsageError, match="Unknown weighting 'sqr'. Did you mean 'sqrt'"):
        played(tree_world, group, weighting="sqr")
    with pytest.raises(UsageError, match="Unknown centring 'tokens'. Did you mean 'token'"):
        played(tree_world, group, centring="tokens")


def test_it_is_marked_reconstructed():
    assert make("treerl").reconstructed
    assert not make("treerl").estimates_advantage
