import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.episodes import RESAMPLE, Group, Task


@pytest.fixture
def six_sided(tiny):
    """The tiny world with decisions by a die: a key that two histories share has one base."""

    class SixSided(tiny.World):
        def _act(self, stream, step, row, turn, history):
            die = self._draw(stream, step, row, self._slot(turn, history), 6)
            return int(die >= round(6 * (1 - tiny.probability(history))))

    return SixSided


def moments(tiny, world_type, name, rollouts=1):
    """For each (history, action): its probability, sum of errors, sum of squares, exactly."""
    mass, error, square = {}, {}, {}
    for tape in tiny.Tape():
        world = world_type(tape, limit=2)
        episode = world.episode()
        group = Group(Task("tiny"), [episode], 3, 0)
        (credit,) = assign(world, [group], make(name, rollouts=rollouts))
        truth = world.truth(episode)
        for turn, value, exact in zip(episode.turns, credit.values[0], truth, strict=True):
            place = (turn.state, turn.action)
            mass[place] = mass.get(place, 0.0) + tape.weight
            error[place] = error.get(place, 0.0) + tape.weight * (value - exact)
            square[place] = square.get(place, 0.0) + tape.weight * (value - exact) ** 2
    return mass, error, square


def test_coupled_values_are_unbiased_by_enumeration_and_vary_less(tiny, six_sided, unchecked):
    _, error, square = moments(tiny, six_sided, "vine_coupled")
    assert len(error) == 8
    np.testing.assert_allclose(list(error.values()), 0.0, atol=1e-12)
    _, _, independent = moments(tiny, tiny.World, "vine")
    last = [place for place in square if place[0]]  # one value and the outcome: the same law
    np.testing.assert_allclose([square[p] for p in last], [independent[p] for p in last])
    assert sum(square.values()) < sum(independent.values())


def test_sample_j_of_every_turn_has_luck_j(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1, 1)), scripted(0.0, (1,), row=1)], 0, 0)
    world = scripted_world(lambda fork: 0.0)
    assign(world, [group], make("vine_coupled", rollouts=2))
    (asked,) = world.calls
    places = [(0, 0), (0, 1), (0, 2), (1, 0)]
    expected = [(row, turn, luck) for row, turn in places for luck in (1, 2)]
    assert [(f.episode.row, f.turn, f.luck) for f in asked] == expected
    assert {(f.action, f.alternative, f.takes_equal_tail()) for f in asked} == {
        (RESAMPLE, 0, False)
    }


def test_coupled_values_by_hand(scripted, scripted_world):
    """V(s_0) = (0 + 1) / 2, V(s_1) = (1 + 1) / 2, outcome 0: credits 0.5 and -1."""
    group = Group(Task("t"), [scripted(0.0, (0, 1))], 0, 0)
    world = scripted_world(lambda fork: float(fork.turn == 1 or fork.luck == 2))
    (credit,) = assign(world, [group], make("vine_coupled", rollouts=2))
    assert credit.values[0].tolist() == [0.5, -1.0]


def test_equal_outcomes_have_no_credit(scripted, scripted_world):
    group = Group(Task("t"), [scripted(0.1, (0, 1, 1))], 0, 0)
    (credit,) = assign(scripted_world(lambda fork: 0.1), [group], make("vine_coupled"))
    np.testing.assert_allclose(credit.values[0], 0.0, atol=1e-15)
    assert len(credit.info["forks"]) == 3 * 9


def test_failures_are_treated_as_in_vine(scripted, scripted_world):
    group = Group(Task("t"), [scripted(None, (0, 1, 1))], 0, 0)
    world = scripted_world(lambda fork: None if fork.turn == 1 else float(fork.turn))
    (credit,) = assign(world, [group], make("vine_coupled", rollouts=2))
    np.testing.assert_array_equal(credit.values[0], [np.nan, np.nan, np.nan])


def test_no_rollouts_are_refused(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0)], 0, 0)
    with pytest.raises(ValueError, match="`rollouts` must be at least 1, got 0"):
        assign(scripted_world(), [group], make("vine_coupled", rollouts=0))
