import math

import numpy as np
import pytest
from scipy.stats import binom

from twinstats.credit import assign, make
from twinstats.episodes import FRESH, RESAMPLE, Group, Task
from twinstats.errors import UsageError


def flat(need, episode):
    """Entropies that never change."""
    return [0.5] * episode.num_turns


@pytest.fixture
def group(leaf):
    return Group(Task("task"), [leaf(1.0, [0.0] * 3), leaf(0.0, [0.0] * 3, row=1)], 0, 0)


def played(tree_world, group, inputs=flat, **options):
    world = tree_world(lambda fork: (0.0, [0.0] * (3 - fork.turn)), inputs)
    (credit,) = assign(world, [group], make("arpo", **options))
    asked = [[(f.episode.name, f.turn) for f in call] for call in world.calls]
    return credit, asked


def test_arpo_by_hand(tree_world, group):
    """Both episodes branch at turn 1. Outcomes 1, 0, 0, 0: mean 1/4, std 1/2: z = 1.5 and -0.5."""
    credit, asked = played(tree_world, group, leaves=4, base=1.0)
    assert [sorted(call) for call in asked] == [[("0/0", 1), ("0/1", 1)]]
    np.testing.assert_allclose(credit.values[0], [1.5] * 3, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(credit.values[1:]), [-0.5] * 9, atol=1e-5)
    assert credit.share is None


def test_hard_sharing_gives_a_shared_turn_the_mean_once(tree_world, group):
    """Turn 0 of the first episode is in the leaves with 1.5 and -0.5: 0.5, twice."""
    credit, _ = played(tree_world, group, leaves=4, base=1.0, sharing="hard")
    rows = {(e.row, e.fork is None): k for k, e in enumerate(credit.episodes)}
    first, fork = rows[0, True], rows[0, False]
    np.testing.assert_allclose(credit.values[first], [0.5, 1.5, 1.5], atol=1e-5)
    np.testing.assert_allclose(credit.values[fork], [np.nan, -0.5, -0.5], atol=1e-5)
    assert credit.share[first].tolist() == [2, 1, 1]
    soft, _ = played(tree_world, group, leaves=4, base=1.0)
    once = sum(np.nansum(v * s) for v, s in zip(credit.values, credit.share, strict=True))
    assert once == pytest.approx(sum(v.sum() for v in soft.values))


def test_branches_branch_again_at_later_turns(tree_world, group):
    _, asked = played(tree_world, group, leaves=100, base=1.0)
    assert [len(call) for call in asked[:2]] == [2, 4]
    forked = {name for name, turn in asked[1]}
    assert {name.count("/") for name in forked} == {1, 2}
    assert all(turn == 2 for _, turn in asked[1])


def test_entropy_gained_since_the_first_turn_decides(tree_world, group):
    """With weight 100 a gain of 0.1 always branches, a loss of 0.1 never does."""

    def inputs(need, episode):
        return [0.5, 0.6 if episode.row else 0.4, 0.0]

    _, asked = played(tree_world, group, inputs, leaves=4, weight=100.0)
    assert asked == [[("0/1", 1)], [("0/0", 0)]]


def test_branching_has_the_stated_probability(tree_world, leaf):
    """P = 0.5 + 0.2 * 0.5 = 0.6, over 1,000 keyed coins."""
    episodes = [leaf(0.0, [0.0] * 2, row=row) for row in range(1000)]
    group = Group(Task("task"), episodes, 0, 0)
    world = tree_world(lambda fork: (0.0, [0.0]), lambda need, e: [0.25, 0.75])
    assign(world, [group], make("arpo", leaves=5000))
    low, high = binom.interval(1 - 1e-6, 1000, 0.6)
    branched = sum(fork.turn == 1 for fork in world.calls[0])
    assert low <= branched <= high


def test_a_larger_beam_has_more_coins(tree_world, group):
    _, asked = played(tree_world, group, leaves=6, base=1.0, beam=3)
    assert sorted(asked[0]) == [("0/0", 1)] * 2 + [("0/1", 1)] * 2
    _, asked = played(tree_world, group, leaves=3, base=1.0, beam=1)
    assert asked == [[("0/0", 0)]]  # no coin: only what is missing at the end


def test_what_is_too_much_is_left_out_by_coin(tree_world, group):
    chosen = set()
    for seed in range(20):
        again = Group(group.task, group.episodes, seed, 0)
        credit, asked = played(tree_world, again, leaves=3, base=1.0)
        assert credit.info["leaves"] == 3
        chosen.add(asked[0][0][0])
    assert chosen == {"0/0", "0/1"}


def test_missing_leaves_are_plays_from_the_start(tree_world, group):
    credit, asked = played(tree_world, group, leaves=5, base=0.0)
    assert asked == [[("0/0", 0), ("0/1", 0), ("0/0", 0)]]
    forks = [e.fork for e in credit.episodes if e.fork]
    assert [fork.alternative for fork in forks] == [0, 0, 1]
    assert {(fork.action, fork.luck) for fork in forks} == {(RESAMPLE, FRESH)}


def test_the_published_defaults_make_sixteen_leaves_of_eight(tree_world, leaf):
    group = Group(Task("task"), [leaf(0.0, [0.0] * 3, row=row) for row in range(8)], 0, 0)
    credit, _ = played(tree_world, group)
    assert credit.info["leaves"] == 16


def test_a_full_group_is_grpo(tree_world, group):
    credit, asked = played(tree_world, group, leaves=2)
    (expected,) = assign(tree_world(), [group], make("grpo"))
    assert [v.tolist() for v in credit.values] == [v.tolist() for v in expected.values]
    assert asked == []


@pytest.mark.parametrize("sharing", ["soft", "hard"])
def test_failed_leaves_are_left_out_and_a_single_one_is_null(tree_world, leaf, sharing):
    alone, failed = leaf(1.0, [0.0] * 3), leaf(None, [0.0] * 3, row=1)
    credit, asked = played(
        tree_world, Group(Task("task"), [alone, failed], 0, 0), base=1.0, leaves=3, sharing=sharing
    )
    assert asked == [[("0/0", 1)]]
    z = math.sqrt(0.5)
    np.testing.assert_allclose(credit.values[0][1:], [z] * 2, atol=1e-5)
    assert np.isnan(credit.values[1]).all()
    credit, _ = played(tree_world, Group(Task("task"), [alone], 0, 0), leaves=1, sharing=sharing)
    assert np.isnan(credit.values[0]).all()
    assert "needs at least 2" in credit.info["reason"]
    credit, asked = played(tree_world, Group(Task("task"), [failed], 0, 0), sharing=sharing)
    assert asked == []
    assert np.isnan(credit.values[0]).all()


def test_a_missing_input_is_one_sentence(tree_world, group):
    with pytest.raises(ValueError, match="Method 'arpo' needs 'first_entropy'"):
        played(tree_world, group, inputs=None)


def test_wrong_options_are_refused(tree_world, group, unchecked):
    with pytest.raises(ValueError, match="`leaves` must be at least 1, got 0"):
        played(tree_world, group, leaves=0)
    with pytest.raises(ValueError, match=r"`base` must be in \[0, 1\], got 1.5"):
        played(tree_world, group, base=1.5)
    with pytest.raises(ValueError, match="`weight` must be at least 0 and finite, got -0.2"):
        played(tree_world, group, weight=-0.2)
    with pytest.raises(UsageError, match="Unknown sharing 'harder'. Did you mean 'hard'"):
        played(tree_world, group, sharing="harder")
