import numpy as np

from twinstats.credit import assign, make
from twinstats.episodes import Group, Task


def credit_of(world, *episodes):
    (credit,) = assign(world, [Group(Task("t"), list(episodes), 0, 0)], make("dr_grpo"))
    return credit


def test_dr_grpo_by_hand(scripted, scripted_world):
    episodes = [scripted(3.0, (0, 1)), scripted(0.0, (0,)), scripted(0.0, (1, 1, 1))]
    credit = credit_of(scripted_world(), *episodes)
    # mean 1: 3 - 1, 0 - 1, 0 - 1
    assert [values.tolist() for values in credit.values] == [[2.0, 2.0], [-1.0], [-1.0] * 3]


def test_it_is_rloo_shortened_by_the_group_size(scripted, scripted_world):
    group = Group(Task("t"), [scripted(r, row=i) for i, r in enumerate((0.3, 1.0, 0.0))], 0, 0)
    found, loo = (
        assign(scripted_world(), [group], make(name))[0].values for name in ("dr_grpo", "rloo")
    )
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(loo) * 2 / 3)


def test_its_policy_gradient_is_exact_but_for_the_length_by_enumeration(tiny):
    """With two episodes: half of sum_t A * score in expectation, at every state."""
    gradient, exact = {}, {}
    for tape in tiny.Tape():
        world = tiny.World(tape)
        episodes = [world.episode(row=row) for row in (0, 1)]
        credit = credit_of(world, *episodes)
        for value, truth, turn in zip(
            credit.values[0], world.truth(episodes[0]), episodes[0].turns, strict=True
        ):
            score = (turn.action - tiny.probability(turn.state)) * tape.weight
            gradient[turn.state] = gradient.get(turn.state, 0.0) + value * score
            exact[turn.state] = exact.get(turn.state, 0.0) + truth * score
    assert len(exact) == 4
    for state in exact:
        np.testing.assert_allclose(gradient[state], exact[state] / 2, atol=1e-12)


def test_a_failed_member_is_null_and_in_no_mean(scripted, scripted_world):
    credit = credit_of(scripted_world(), scripted(3.0), scripted(None, (0, 0)), scripted(1.0))
    np.testing.assert_array_equal(np.concatenate(credit.values), [1.0, np.nan, np.nan, -1.0])


def test_one_scored_member_has_no_signal_and_a_group_of_one_no_credit(scripted, scripted_world):
    credit = credit_of(scripted_world(), scripted(0.7), scripted(None))
    np.testing.assert_array_equal(np.concatenate(credit.values), [0.0, np.nan])
    groups = [
        Group(Task(name), [scripted(0.7)] * size, 0, 0) for name, size in (("a", 1), ("b", 2))
    ]
    alone, both = assign(scripted_world(), groups, make("dr_grpo"))
    assert np.isnan(alone.values[0]).all()
    assert "needs at least 2" in alone.info["reason"]
    assert np.concatenate(both.values).tolist() == [0.0, 0.0]


def test_its_unit_is_the_advantages():
    assert make("dr_grpo").estimates_advantage
    assert make("dr_grpo").compares_members
