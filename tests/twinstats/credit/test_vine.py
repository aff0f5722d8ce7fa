import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.episodes import FRESH, RESAMPLE, Group, Task


def test_vine_is_unbiased_for_the_advantage_by_enumeration(tiny, unchecked):
    total, mass = {}, {}
    for tape in tiny.Tape():
        world = tiny.World(tape, limit=2)
        episode = world.episode()
        group = Group(Task("tiny"), [episode], 3, 0)
        (credit,) = assign(world, [group], make("vine", rollouts=1))
        truth = world.truth(episode)
        for turn, value, exact in zip(episode.turns, credit.values[0], truth, strict=True):
            place = (turn.state, turn.action)
            total[place] = total.get(place, 0.0) + tape.weight * (value - exact)
            mass[place] = mass.get(place, 0.0) + tape.weight
    assert len(total) == 8
    np.testing.assert_allclose(list(total.values()), 0.0, atol=1e-12)


def test_vine_by_hand(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1, 1)), scripted(0.0, (1,), row=1)], 0, 0)
    values = {(0, 0): (0.0, 0.5), (0, 1): (1.0, 1.0), (0, 2): (0.5, 1.0), (1, 0): (0.5, 0.5)}
    world = scripted_world(lambda fork: values[(fork.episode.row, fork.turn)][fork.alternative])
    (credit,) = assign(world, [group], make("vine", rollouts=2))
    assert [v.tolist() for v in credit.values] == [[0.75, -0.25, 0.25], [-0.5]]
    assert len(world.calls) == 1
    kinds = {(f.action, f.luck, f.takes_equal_tail()) for f in world.calls[0]}
    assert kinds == {(RESAMPLE, FRESH, False)}


def test_credits_of_an_episode_add_up_to_outcome_minus_first_value(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1, 1, 0))], 0, 0)
    (credit,) = assign(scripted_world(lambda fork: 0.3 / (1 + fork.turn)), [group], make("vine"))
    np.testing.assert_allclose(credit.values[0].sum(), 1.0 - 0.3)
    assert len(credit.info["forks"]) == 4 * 9


def test_a_state_without_a_value_makes_two_turns_null(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1, 1, 0))], 0, 0)
    world = scripted_world(
        lambda fork: None if fork.turn == 2 or fork.alternative == 0 else float(fork.turn)
    )
    (credit,) = assign(world, [group], make("vine", rollouts=2))
    np.testing.assert_array_equal(credit.values[0], [1.0, np.nan, np.nan, -2.0])


def test_a_failed_factual_has_no_last_credit(scripted, scripted_world):
    group = Group(Task("t"), [scripted(None, (0, 1))], 0, 0)
    (credit,) = assign(scripted_world(lambda fork: float(fork.turn)), [group], make("vine"))
    np.testing.assert_array_equal(credit.values[0], [1.0, np.nan])


def test_no_rollouts_are_refused(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0)], 0, 0)
    with pytest.raises(ValueError, match="`rollouts` must be at least 1, got 0"):
        assign(scripted_world(), [group], make("vine", rollouts=0))
