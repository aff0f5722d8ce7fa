import inspect

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.graphgpo import graphgpo
from twinstats.credit.grpo import grpo
from twinstats.episodes import Group, Task

ROOT = np.sqrt(0.5)
GRAPH = {"episode_weight": 0.0, "epsilon": 0.0}


def grouped(*episodes):
    return Group(Task("task"), list(episodes), 0, 0)


def test_graphgpo_by_hand(walk, scripted_world):
    group = grouped(
        walk(1.0, "A", success=True),
        walk(1.0, "AB", row=1, success=True),
        walk(0.0, "A", row=2, success=False),
    )
    (credit,) = assign(scripted_world(), [group], make("graphgpo", **GRAPH))
    # from A to SUCCESS, to B (one edge away), to nowhere (max 1, so 2): 10 * .1^d = 10, 1, .1
    # mean 3.7; squares 6.3^2 + 2.7^2 + 3.6^2 = 59.94, over 2: std 5.474486
    np.testing.assert_allclose(credit.values[0], [6.3 / 5.474486], rtol=1e-6)
    np.testing.assert_allclose(credit.values[1], [-2.7 / 5.474486, 0.0], rtol=1e-6)
    np.testing.assert_allclose(credit.values[2], [-3.6 / 5.474486], rtol=1e-6)


def test_the_episode_is_standardised_and_added(walk):
    group = grouped(walk(1.0, "A", success=True), walk(0.0, "A", row=1, success=False))
    credit = graphgpo(group, episode_weight=2.0, graph_weight=3.0, epsilon=0.0)
    np.testing.assert_allclose(np.concatenate(credit.values), [5 * ROOT, -5 * ROOT])


def test_outcomes_count_once_a_turn_unless_asked_otherwise(walk):
    group = grouped(walk(1.0, "ABC", success=True), walk(0.0, "D", row=1, success=False))
    across, once = (
        graphgpo(group, cross_steps=cross, epsilon=0.0).values for cross in (True, False)
    )
    np.testing.assert_allclose([across[0][0], across[1][0]], [0.5, -1.5])
    np.testing.assert_allclose([once[0][0], once[1][0]], [ROOT, -ROOT])


def test_a_step_of_a_lost_episode_can_make_progress(walk):
    group = grouped(
        walk(1.0, "ABC", success=True),
        walk(0.0, "AB", row=1, success=False, final_state="A"),
        walk(0.0, "AD", row=2, success=False, final_state="A"),
    )
    credit = graphgpo(group, **GRAPH)
    # A to B (two edges away) is progress in both episodes, A to D (four: D, A, B, C) is not
    assert credit.values[1][0] == credit.values[0][0] > 0 > credit.values[2][0]
    # from B: on to C, or back to A
    np.testing.assert_allclose([credit.values[0][1], credit.values[1][1]], [ROOT, -ROOT])


def test_distances_are_those_of_a_naive_search(walk):
    rng = np.random.default_rng(11)
    for _ in range(20):
        episodes = [
            walk(
                0.0,
                rng.integers(0, 8, int(rng.integers(1, 6))).tolist(),
                row=row,
                success=row == 0,
                final_state=int(rng.integers(0, 12)),
            )
            for row in range(5)
        ]
        moves = []
        for e in episodes:
            states = [turn.state for turn in e.turns]
            moves += list(
                zip(states, [*states[1:], "won" if e.success else e.final_state], strict=True)
            )
        distance = {"won": 0}
        for _ in moves:
            for tail, head in moves:
                if head in distance:
                    distance[tail] = min(distance.get(tail, 99), distance[head] + 1)
        worst = max(distance.values()) + 1
        reached = np.array([10 * 0.5 ** distance.get(head, worst) for _, head in moves])
        expected = np.zeros(len(moves))
        for state in {tail for tail, _ in moves}:
            own = [index for index, (tail, _) in enumerate(moves) if tail == state]
            if len(own) > 1 and np.ptp(reached[own]) > 0:
                expected[own] = (reached[own] - reached[own].mean()) / reached[own].std(ddof=1)
        found = np.concatenate(graphgpo(grouped(*episodes), omega=0.5, **GRAPH).values)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_without_a_success_the_graph_says_nothing(walk):
    group = grouped(walk(0.3, "AB", success=False), walk(0.1, "AC", row=1, success=False))
    found, expected = graphgpo(group), grpo(group)
    assert graphgpo(group, **GRAPH).values[0].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(
        found.values, np.array(expected.values) * np.sqrt(3 / 4) / ROOT, rtol=1e-4
    )  # four values in place of two: std .1 / sqrt(3)


def test_among_successes_the_short_way_is_better(walk):
    group = grouped(walk(1.0, "AB", success=True), walk(1.0, "ACB", row=1, success=True))
    credit = graphgpo(group, epsilon=0.0)
    np.testing.assert_allclose(credit.values[0], [ROOT, 0.0])
    np.testing.assert_allclose(credit.values[1], [-ROOT, 0.0, 0.0])


def test_success_is_an_outcome_above_a_bound_where_the_world_does_not_say(walk):
    group = grouped(walk(0.4, "A"), walk(0.2, "A", row=1))
    assert not any(graphgpo(group, **GRAPH).values)  # both: both turns lead to SUCCESS
    credit = graphgpo(group, success_above=0.3, **GRAPH)
    np.testing.assert_allclose(np.concatenate(credit.values), [ROOT, -ROOT])


def test_the_conventions_differ_against_epsilon_only(walk):
    group = grouped(walk(1.0, "AB", success=True), walk(0.0, "AC", row=1, success=False))
    paper, recipe = (
        np.concatenate(graphgpo(group, convention=c, **GRAPH).values)
        for c in ("paper", "reference")
    )
    np.testing.assert_allclose(paper, recipe)
    # 10 * .1^(1+1), 10 * .1^(3+1): difference .099, std .099 / sqrt(2)
    options = {"episode_weight": 0.0, "epsilon": 1.0}
    found = graphgpo(group, convention="paper", **options).values[0][0]
    assert found == pytest.approx(0.0495 / (0.099 * ROOT + 1))


def test_far_from_success_the_published_epsilon_wins(walk):
    way = [f"s{index}" for index in range(9)]
    group = grouped(
        walk(1.0, way, success=True), walk(1.0, [way[0], "x", *way[1:]], row=1, success=True)
    )
    assert 0 < graphgpo(group, episode_weight=0.0).values[0][0] < 0.1
    np.testing.assert_allclose(graphgpo(group, **GRAPH).values[0][0], ROOT)


def test_the_published_defaults():
    known = inspect.signature(graphgpo).parameters
    options = {name: p.default for name, p in known.items() if name != "group"}
    assert options == {
        "omega": 0.1,
        "success_reward": 10.0,
        "episode_weight": 1.0,
        "graph_weight": 1.0,
        "convention": "reference",
        "success_above": 0.0,
        "cross_steps": True,
        "epsilon": 1e-6,
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"omega": 1.0}, "`omega` must be below 1, got 1.0"),
        ({"omega": 0.0}, "`omega` must be positive and finite, got 0.0"),
        ({"success_reward": 0.0}, "`success_reward` must be positive"),
        ({"graph_weight": -1.0}, "`graph_weight` must be at least 0"),
        ({"convention": "papers"}, "Unknown convention 'papers'. Did you mean 'paper'?"),
        ({"epsilon": -1.0}, "`epsilon` must be at least 0"),
    ],
)
def test_options_out_of_range_are_refused(walk, unchecked, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        graphgpo(grouped(walk(1.0, "A"), walk(0.0, "A", row=1)), **options)
