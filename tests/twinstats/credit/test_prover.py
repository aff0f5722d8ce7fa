import math

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.episodes import FRESH, RESAMPLE, Group, Task

Z = math.sqrt(0.5)


def group_of(leaf, *segments, outcome=1.0):
    first = leaf(outcome, [0.0] * 3, segments=list(segments))
    second = leaf(0.0, [0.0] * 3, row=1, segments=[])
    return Group(Task("task"), [first, second], 0, 0)


def played(tree_world, group, outcome, **options):
    """`outcome((turn, number))` of the plays from a state of the first episode."""
    world = tree_world(lambda fork: (outcome((fork.turn, fork.alternative)), [0.0]))
    (credit,) = assign(world, [group], make("prover", **options))
    return credit, world


def one_of_two(place):
    """All plays from turn 1 fail; from turn 2 the first of two succeeds."""
    turn, number = place
    return float(turn == 2 and number % 2 == 0)


def test_prover_by_hand(tree_world, leaf):
    """GRPO +-sqrt(1/2). From turn 1: 0, 0; from turn 2: 1, 0. d = 1/2, SE = sqrt(0 + 0.5 / 2).

    |d| = SE = 1/2: refused at threshold 1, accepted at 0.9.
    """
    group = group_of(leaf, (1, 1, 1))
    credit, _ = played(tree_world, group, one_of_two, rollouts=2, threshold=0.9)
    np.testing.assert_allclose(credit.values[0], [Z, Z + 0.5, Z], atol=1e-5)
    np.testing.assert_allclose(credit.values[1], [-Z] * 3, atol=1e-5)
    assert (credit.info["proposed"], credit.info["accepted"]) == (1, 1)
    credit, _ = played(tree_world, group, one_of_two, rollouts=2)
    (grpo,) = assign(tree_world(), [group], make("grpo"))
    assert [v.tolist() for v in credit.values] == [v.tolist() for v in grpo.values]
    assert (credit.info["proposed"], credit.info["accepted"]) == (1, 0)


def test_an_effect_of_the_other_sign_is_refused(tree_world, leaf):
    group = group_of(leaf, (1, 1, -1))
    credit, _ = played(tree_world, group, one_of_two, rollouts=2, threshold=0.0)
    assert credit.info["accepted"] == 0
    credit, _ = played(tree_world, group, lambda place: float(place[0] == 1), weight=2.0)
    np.testing.assert_allclose(credit.values[0], [Z, Z - 2.0, Z], atol=1e-5)


def test_after_the_last_turn_stands_the_outcome(tree_world, leaf):
    """Segment 1 to 2: S(after) = 1 with no play; four plays from turn 1: 1/2 on average.

    var = 1/3, SE = sqrt(1/12) = 0.29 < 1/2.
    """
    group = group_of(leaf, (1, 2, 1))
    credit, world = played(tree_world, group, lambda place: float(place[1] % 2))
    assert [(f.turn, f.alternative) for f in world.calls[0]] == [(1, k) for k in range(4)]
    assert {(f.action, f.luck) for f in world.calls[0]} == {(RESAMPLE, FRESH)}
    np.testing.assert_allclose(credit.values[0], [Z, Z + 0.5, Z + 0.5], atol=1e-5)


def test_states_that_segments_share_are_played_once_and_effects_add_up(tree_world, leaf):
    """d = 1 over turn 0 and d = 1 over turns 0 to 1: turn 0 gets 2, turn 1 gets 1."""
    group = group_of(leaf, (0, 0, 1), (0, 1, 1), (1, 1, 1))
    credit, world = played(tree_world, group, lambda place: float(place[0] > 0), rollouts=3)
    assert [fork.turn for fork in world.calls[0]] == [0] * 3 + [1] * 3 + [2] * 3
    np.testing.assert_allclose(credit.values[0], [Z + 2, Z + 1, Z], atol=1e-5)
    assert (credit.info["proposed"], credit.info["accepted"]) == (3, 2)


def test_a_sequential_test_stops_once_its_sign_is_wrong(tree_world, leaf):
    def script(place):
        return float(place > (1, 1))

    group = group_of(leaf, (0, 0, -1), (1, 1, 1))
    full, world = played(tree_world, group, script, rollouts=6)
    assert len(world.calls) == 1
    early, rounds = played(tree_world, group, script, rollouts=6, sequential=True)
    # from turn 0: 0, 0, ...; from turn 1: 0, 0, 1, ...: d = 0 after two a side, not negative
    turns = [[fork.turn for fork in call] for call in rounds.calls]
    assert turns == [[0, 1, 2]] * 2 + [[1, 2]] * 4
    assert [v.tolist() for v in early.values] == [v.tolist() for v in full.values]


def test_a_sequential_test_accepts_nothing_that_the_full_one_refuses(tree_world, leaf):
    rng = np.random.default_rng(5)
    accepted = []
    for _ in range(60):
        table = rng.integers(0, 2, size=(3, 5)).astype(float)
        group = group_of(leaf, (0, 0, 1), (0, 1, 1), (1, 1, -1))
        full, early = (
            played(tree_world, group, table.__getitem__, rollouts=5, sequential=sequential)[0]
            for sequential in (False, True)
        )
        accepted.append([full.info["accepted"], early.info["accepted"]])
        assert len(early.info["forks"]) <= len(full.info["forks"])
    accepted = np.array(accepted)
    assert (accepted[:, 1] <= accepted[:, 0]).all()
    assert accepted[:, 1].sum() > 0


def test_equal_outcomes_have_no_credit(tree_world, leaf):
    group = group_of(leaf, (0, 1, 1), (2, 2, -1), outcome=0.0)
    credit, _ = played(tree_world, group, lambda place: 0.0)
    assert all((v == 0.0).all() for v in credit.values)
    assert credit.info["zero_variance"]


def test_failures(tree_world, leaf):
    """A failed episode is not tested; with one play left on a side nothing is accepted."""
    group = group_of(leaf, (1, 1, 1), outcome=None)
    credit, world = played(tree_world, group, one_of_two)
    assert world.calls == []
    assert np.isnan(credit.values[0]).all()
    group = group_of(leaf, (1, 1, 1))
    for sequential in (False, True):
        credit, _ = played(
            tree_world,
            group,
            lambda place: None if place[0] == 1 and place[1] else float(place[0]),
            sequential=sequential,
        )
        assert credit.info["accepted"] == 0


def test_a_group_of_one_is_refused_or_null_with_a_reason(tree_world, leaf):
    alone = Group(Task("task"), group_of(leaf, (1, 1, 1)).episodes[:1], 0, 0)
    with pytest.raises(ValueError, match="all groups have size 1"):
        played(tree_world, alone, one_of_two)
    world = tree_world(lambda fork: (float(fork.turn), [0.0]))
    credit, _ = assign(world, [alone, group_of(leaf)], make("prover"))
    assert np.isnan(credit.values[0]).all()
    assert "needs at least 2" in credit.info["reason"]


def test_a_missing_or_malformed_input_is_one_sentence(tree_world, leaf):
    for segment in ((2, 1, 1), (0, 3, 1), (-1, 0, 1), (0, 0, 0)):
        with pytest.raises(ValueError, match="'segments' of episode 0/0 must be .* sign 1 or -1"):
            played(tree_world, group_of(leaf, segment), one_of_two)
    group = Group(Task("task"), [leaf(1.0, [0.0]), leaf(0.0, [0.0], row=1)], 0, 0)
    with pytest.raises(ValueError, match="Method 'prover' needs 'segments'"):
        played(tree_world, group, one_of_two)


def test_wrong_options_are_refused(tree_world, leaf):
    with pytest.raises(ValueError, match="`rollouts` must be at least 2 for a standard error"):
        played(tree_world, group_of(leaf), one_of_two, rollouts=1)
    with pytest.raises(ValueError, match="`threshold` must be at least 0 and finite, got -1.0"):
        played(tree_world, group_of(leaf), one_of_two, threshold=-1.0)


def test_it_is_marked_reconstructed():
    assert make("prover").reconstructed
    assert not make("prover").estimates_advantage
