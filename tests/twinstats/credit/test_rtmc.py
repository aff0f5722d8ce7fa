import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.episodes import Group, Task


def episode(leaf, outcome, signature, row=0):
    return leaf(outcome, [0.0] * len(signature), row=row, signature=signature)


@pytest.fixture
def group(leaf):
    first = episode(leaf, 1.0, [("s", "a"), ("u", "b")])
    second = episode(leaf, 0.0, [("s", "c"), ("w", "b")], row=1)
    return Group(Task("task"), [first, second], 0, 0)


def credited(tree_world, group, **options):
    (credit,) = assign(tree_world(), [group], make("rtmc", **options))
    return credit


def test_rtmc_by_hand(tree_world, group):
    """V0 = 1/2. At s: Q = 1 and 0, V = (1 + 0 + 1/2) / 3 = 1/2. At u: Q = 1, V = (1 + 1/2) / 2."""
    credit = credited(tree_world, group)
    np.testing.assert_allclose(credit.values[0], [0.5, 0.25])
    np.testing.assert_allclose(credit.values[1], [-0.5, -0.25])


def test_q_counts_first_visits_and_v_counts_all(tree_world, leaf):
    """Returns 1; 1 (again); 0 at the same (s, a). Q = (1 + 0) / 2, V = (1 + 1 + 0 + 1/2) / 4."""
    first = episode(leaf, 1.0, [("s", "a"), ("s", "a")])
    second = episode(leaf, 0.0, [("s", "a")], row=1)
    credit = credited(tree_world, Group(Task("task"), [first, second], 0, 0))
    np.testing.assert_allclose(np.concatenate(credit.values), [0.5 - 0.625] * 3)


def test_returns_are_to_go_and_may_be_discounted(tree_world, leaf):
    """Return-to-go 0.5 * 1 at turn 0 and 1 at turn 1; V0 = 1/2; prior 0: Q = V for single visits.

    At s: Q(a) = 1/2, Q(c) = 0, V = 1/4.
    """
    first = episode(leaf, 1.0, [("s", "a"), ("u", "b")])
    second = episode(leaf, 0.0, [("s", "c")], row=1)
    group = Group(Task("task"), [first, second], 0, 0)
    credit = credited(tree_world, group, discount=0.5, prior=0.0)
    np.testing.assert_allclose(credit.values[0], [0.25, 0.0])
    np.testing.assert_allclose(credit.values[1], [-0.25])


def test_the_prior_decides_for_states_visited_once(tree_world, leaf):
    """prior / (1 + prior) * (G - V0); without a prior exactly 0, with a huge one G - V0."""
    group = Group(
        Task("task"), [episode(leaf, float(r), [(r, "a")], row=r) for r in range(3)], 0, 0
    )
    for prior, factor in ((0.0, 0.0), (1.0, 0.5), (3.0, 0.75), (1e12, 1.0)):
        found = np.concatenate(credited(tree_world, group, prior=prior).values)
        np.testing.assert_allclose(found, factor * np.array([-1.0, 0.0, 1.0]), atol=1e-9)


def test_one_signature_for_all_with_a_huge_prior_is_the_action_mean(tree_world, leaf):
    """Everything in one state: V0 is the group mean, Q the mean outcome of those who did so."""
    outcomes = [1.0, 0.0, 0.0, 1.0, 1.0]
    actions = "aabbb"
    group = Group(
        Task("task"),
        [
            episode(leaf, r, [("s", a)], row=k)
            for k, (r, a) in enumerate(zip(outcomes, actions, strict=True))
        ],
        0,
        0,
    )
    for prior in (0.0, 1.0, 5.0):  # V = V0 whatever the prior: all returns are in s
        found = np.concatenate(credited(tree_world, group, prior=prior).values)
        np.testing.assert_allclose(found, [0.5 - 0.6] * 2 + [2 / 3 - 0.6] * 3)


def test_equal_outcomes_have_no_credit(tree_world, leaf):
    group = Group(
        Task("task"), [episode(leaf, 0.1, [("s", "a"), (r, "b")], row=r) for r in range(3)], 0, 0
    )
    for prior in (0.0, 1.0, 0.7):
        credit = credited(tree_world, group, prior=prior)
        assert all((v == 0.0).all() for v in credit.values)
    assert credit.info["zero_variance"]


def test_failed_episodes_are_not_visited_and_one_alone_has_no_signal(tree_world, leaf, group):
    failed = episode(leaf, None, [("s", "a"), ("u", "b")], row=2)
    credit = credited(tree_world, Group(group.task, [*group.episodes, failed], 0, 0))
    np.testing.assert_allclose(credit.values[0], [0.5, 0.25])
    assert np.isnan(credit.values[2]).all()
    credit = credited(tree_world, Group(group.task, [group.episodes[0], failed], 0, 0))
    assert credit.values[0].tolist() == [0.0, 0.0]
    assert np.isnan(credit.values[1]).all()
    assert "needs at least 2" in credit.info["reason"]
    with pytest.raises(ValueError, match="all groups have size 1"):
        credited(tree_world, Group(group.task, group.episodes[:1], 0, 0))


def test_nothing_is_forked_by_default(tree_world, group):
    world = tree_world()
    assign(world, [group], make("rtmc"))
    assert world.calls == []


def test_expansions_count_and_are_trained_from_their_own_turn(tree_world, group):
    """A fork of the first episode at turn 1 visits u once more: V(u) = (1 + 0 + 1/2) / 3 there.

    At turn 0 it visits s a third time: V(s) = (1 + 0 + 0 + 1/2) / 4.
    """
    seen = set()
    for seed in range(30):
        again = Group(group.task, [group.episodes[0], group.episodes[1]], seed, 0)
        world = tree_world(
            lambda fork: (0.0, [0.0] * (2 - fork.turn)),
            lambda need, e: [("s", "d"), ("u", "e")][: e.num_turns],
        )
        (credit,) = assign(world, [again], make("rtmc", expansions=1))
        forks = {e.row: (e, v) for e, v in zip(credit.episodes[2:], credit.values[2:], strict=True)}
        turns = [forks[row][0].fork.turn for row in (0, 1)]
        if turns == [1, 1]:
            fork, values = forks[0]
            np.testing.assert_array_equal(np.isnan(values), [True, False])
            # u: returns 1 and, from both forks, 0 and 0: V = (1 + 1/2) / 4; s as before
            np.testing.assert_allclose(credit.values[0], [0.5, 1 - 1.5 / 4])
            np.testing.assert_allclose(values[1], -1.5 / 4)
        seen.add(tuple(turns))
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_missing_input_is_one_sentence(tree_world, leaf):
    group = Group(Task("task"), [leaf(1.0, [0.0]), leaf(0.0, [0.0], row=1)], 0, 0)
    with pytest.raises(ValueError, match="Method 'rtmc' needs 'signature'"):
        credited(tree_world, group)


def test_wrong_options_are_refused(tree_world, group):
    with pytest.raises(ValueError, match="`prior` must be at least 0 and finite, got -1.0"):
        credited(tree_world, group, prior=-1.0)
    with pytest.raises(ValueError, match=r"`discount` must be in \[0, 1\], got 2.0"):
        credited(tree_world, group, discount=2.0)


def test_it_is_marked_reconstructed():
    assert make("rtmc").reconstructed
    assert make("rtmc").estimates_advantage
