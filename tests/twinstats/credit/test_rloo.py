import numpy as np

from twinstats.credit import assign, make
from twinstats.episodes import Group, Task


def test_rloo_by_hand(scripted, scripted_world):
    episodes = [scripted(3.0, (0, 1)), scripted(1.0, (0,)), scripted(0.0, (1, 1, 1))]
    (credit,) = assign(scripted_world(), [Group(Task("t"), episodes, 0, 0)], make("rloo"))
    assert [values.tolist() for values in credit.values] == [[2.5, 2.5], [-0.5], [-2.0] * 3]
    assert credit.info["forks"] == []


def test_a_failed_member_is_null_and_no_ones_baseline(scripted, scripted_world):
    episodes = [scripted(3.0), scripted(None, (0, 0)), scripted(1.0)]
    (credit,) = assign(scripted_world(), [Group(Task("t"), episodes, 0, 0)], make("rloo"))
    np.testing.assert_array_equal(credit.values[1], [np.nan, np.nan])
    assert (credit.values[0].tolist(), credit.values[2].tolist()) == ([2.0], [-2.0])
    assert credit.info["unscored"] == 1


def test_rloo_is_unbiased_for_the_policy_gradient_by_enumeration(tiny):
    """sum_t credit * score equals sum_t A * score in expectation, at every state."""
    gradient, exact = {}, {}
    for tape in tiny.Tape():
        world = tiny.World(tape)
        episodes = [world.episode(row=row) for row in (0, 1)]
        (credit,) = assign(world, [Group(Task("tiny"), episodes, 0, 0)], make("rloo"))
        for value, truth, turn in zip(
            credit.values[0], world.truth(episodes[0]), episodes[0].turns, strict=True
        ):
            score = (turn.action - tiny.probability(turn.state)) * tape.weight
            gradient[turn.state] = gradient.get(turn.state, 0.0) + value * score
            exact[turn.state] = exact.get(turn.state, 0.0) + truth * score
    assert len(exact) == 4
    for state in exact:
        np.testing.assert_allclose(gradient[state], exact[state], atol=1e-12)
