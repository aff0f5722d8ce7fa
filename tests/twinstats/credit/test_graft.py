import inspect

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit._graph import edges, residuals, traces
from twinstats.credit.graft import graft
from twinstats.credit.inputs import step_rewards
from twinstats.episodes import Group, Task

ROOT = np.sqrt(0.5)
BARE = {"discount": 1.0, "trace": 0.0, "normalise": False}


def grouped(*episodes):
    return Group(Task("task"), list(episodes), 0, 0)


def wandering(walk, seed, size=5):
    rng = np.random.default_rng(seed)
    episodes = []
    for row in range(size):
        states = rng.integers(0, 6, int(rng.integers(1, 8))).tolist()
        actions = rng.integers(0, 2, len(states)).tolist()
        rewards = rng.normal(size=len(states)).tolist()
        end = int(rng.integers(2))
        outcome = float(sum(rewards[:-1]) + end)
        episodes.append(walk(outcome, states, actions, row=row, rewards=rewards, final_state=end))
    return episodes


def states_of(episodes):
    return [turn.state for episode in episodes for turn in episode.turns]


def test_graft_by_hand(walk, scripted_world):
    group = grouped(walk(1.0, "AB"), walk(0.0, "AB", row=1), walk(0.0, "A", row=2))
    (credit,) = assign(scripted_world(), [group], make("graft", **BARE))
    # V(B) = 1/2, V(A) = (1/2 + 1/2 + 0) / 3 = 1/3
    np.testing.assert_allclose(credit.values[0], [1 / 6, 1 / 2])
    np.testing.assert_allclose(credit.values[1], [1 / 6, -1 / 2])
    np.testing.assert_allclose(credit.values[2], [-1 / 3])


def test_the_discount_takes_a_turn_off_each_value(walk):
    group = grouped(walk(1.0, "AB"), walk(0.0, "AB", row=1), walk(0.0, "A", row=2))
    credit = graft(group, discount=0.9, trace=0.0, normalise=False)
    # V(B) = .9 / 2, V(A) = 2 * .9 * V(B) / 3 = .27
    np.testing.assert_allclose(credit.values[0], [0.9 * 0.45 - 0.27, 0.9 - 0.45])
    np.testing.assert_allclose(credit.values[2], [-0.27])


def test_a_loop_has_the_value_of_all_ways_out_of_it(walk):
    group = grouped(walk(1.0, "AA"), walk(0.0, "A", row=1))
    credit = graft(group, **BARE)
    # V = (V + 1 + 0) / 3, so 1/2
    np.testing.assert_allclose(credit.values[0], [0.0, 0.5])
    np.testing.assert_allclose(credit.values[1], [-0.5])


def test_step_rewards_stay_at_their_turn(walk):
    group = grouped(walk(1.5, "AB", rewards=[0.5, 0.0]), walk(0.0, "AB", row=1))
    credit = graft(group, **BARE)
    # V(B) = (1 + 0) / 2, V(A) = (.5 + V(B) + V(B)) / 2 = .75
    np.testing.assert_allclose(credit.values, [[0.25, 0.5], [-0.25, -0.5]])


def test_credits_of_a_state_are_standardised_and_one_alone_keeps_its_sign(walk):
    group = grouped(walk(1.0, "AB"), walk(0.0, "AC", row=1))
    credit = graft(group, discount=1.0, trace=0.0, epsilon=0.0)
    # A: 1 - 1/2 and 0 - 1/2, standardised; B and C: V is the outcome, nothing left
    np.testing.assert_allclose(credit.values, [[ROOT, 0.0], [-ROOT, 0.0]])
    credit = graft(group, discount=0.5, trace=0.0, epsilon=0.125)
    # V(B) = .5, V(A) = .5 * (.5 + 0) / 2 = .125: A +-.125, deviation .125 / ROOT
    np.testing.assert_allclose(credit.values[0], [0.125 / (0.125 / ROOT + 0.125), 0.0])
    again = grouped(walk(1.0, "BC", actions=[0, 0]), walk(1.0, "C", row=1), walk(0.0, "C", row=2))
    # C: 2/3, and B passes it on, less the discount: A(B) = .5 * V - .5 * V
    assert graft(again, discount=0.5, trace=0.0).values[0][0] == 0.0


def test_a_turn_alone_in_its_state_is_scaled_by_its_size(walk):
    group = grouped(
        walk(1.0, "AB", [0, 0]), walk(1.0, "AB", [0, 0], row=1), walk(0.0, "CB", [0, 1], row=2)
    )
    # B: V = 2/3; distinct edges out of B are worth 1/3 and -2/3, mean -1/6. C: 0 + .5 * -1/6
    bare = graft(group, discount=1.0, trace=0.5, normalise=False)
    np.testing.assert_allclose(bare.values[2], [-1 / 12, -2 / 3])
    credit = graft(group, discount=1.0, trace=0.5, epsilon=1 / 12)
    np.testing.assert_allclose(credit.values[2][0], -1 / 2)


def test_raw_edges_cancel_so_that_the_trace_has_no_effect(walk):
    for seed in range(10):
        episodes = wandering(walk, seed)
        graph = edges(episodes, states_of(episodes))
        values = residuals(graph, 0.9)
        np.testing.assert_allclose(np.bincount(graph.tail, weights=values), 0.0, atol=1e-12)
        group = grouped(*episodes)
        raw, none = graft(group, hops="raw"), graft(group, trace=0.0)
        assert [v.tobytes() for v in raw.values] == [v.tobytes() for v in none.values]


def test_values_are_those_of_naive_sweeps(walk):
    for seed in range(10):
        episodes = wandering(walk, seed)
        value = dict.fromkeys(states_of(episodes), 0.0)
        for _ in range(300):
            gains = {}
            for turn, gain in _gains(episodes, value, 0.8):
                gains.setdefault(turn.state, []).append(gain)
            value = {state: np.mean(own) for state, own in gains.items()}
        expected = [gain - value[turn.state] for turn, gain in _gains(episodes, value, 0.8)]
        credit = graft(grouped(*episodes), discount=0.8, trace=0.0, normalise=False)
        np.testing.assert_allclose(np.concatenate(credit.values), expected, atol=1e-9)


def _gains(episodes, value, discount):
    for episode in episodes:
        rewards = step_rewards(episode)
        for turn, after, reward in zip(episode.turns, episode.turns[1:], rewards, strict=False):
            yield turn, reward + discount * value[after.state]
        yield episode.turns[-1], discount * rewards[-1]


def test_traces_are_those_of_a_naive_walk_over_sets(walk):
    for seed in range(10):
        episodes = wandering(walk, seed)
        graph = edges(episodes, states_of(episodes))
        values = np.random.default_rng(seed).normal(size=len(graph.tail))
        kinds = {}
        for kind, tail, head, value in zip(graph.kind, graph.tail, graph.head, values, strict=True):
            kinds.setdefault((int(kind), int(tail), int(head)), []).append(value)
        expected = []
        for head, left in zip(graph.head.tolist(), graph.left.tolist(), strict=True):
            here, total = {head}, 0.0
            for hop in range(1, left + 1):
                out = [(edge[2], np.mean(own)) for edge, own in kinds.items() if edge[1] in here]
                total += 0.7**hop * np.mean([worth for _, worth in out]) if out else 0.0
                here = {reached for reached, _ in out}
            expected.append(total)
        np.testing.assert_allclose(traces(graph, values, 0.7), expected, atol=1e-12)


def test_equal_ends_are_one_and_different_ends_are_two(walk):
    episodes = [
        walk(1.0, "A", row=0, final_state="e"),
        walk(1.0, "A", row=1, final_state="e"),
        walk(0.0, "A", row=2, final_state="e"),
        walk(1.0, "A", row=3, final_state="f"),
    ]
    assert edges(episodes, list("AAAA")).head.tolist() == [1, 1, 2, 3]


def test_equal_outcomes_are_exactly_zero_without_discount(walk):
    group = grouped(*(walk(0.1, states, row=row) for row, states in enumerate(["ABA", "BB", "A"])))
    credit = graft(group, discount=1.0)
    assert [v.tolist() for v in credit.values] == [[0.0] * 3, [0.0] * 2, [0.0]]
    assert graft(group).values[2][0] > 0  # with a discount the shortest way is best


def test_no_success_is_exactly_zero(walk):
    group = grouped(walk(0.0, "ABA"), walk(0.0, "BC", row=1))
    assert not np.concatenate(graft(group).values).any()


def test_the_published_defaults():
    options = {n: p.default for n, p in inspect.signature(graft).parameters.items() if n != "group"}
    assert options == {
        "discount": 0.99,
        "trace": 0.95,
        "hops": "distinct",
        "normalise": True,
        "epsilon": 1e-6,
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"discount": 0.0}, "`discount` must be positive and finite, got 0.0"),
        ({"discount": 1.1}, r"`discount` must be in \[0, 1\], got 1.1"),
        ({"trace": -0.5}, r"`trace` must be in \[0, 1\], got -0.5"),
        ({"hops": "all"}, "Unknown hops 'all'"),
        ({"epsilon": -1.0}, "`epsilon` must be at least 0"),
    ],
)
def test_options_out_of_range_are_refused(walk, unchecked, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        graft(grouped(walk(1.0, "A"), walk(0.0, "A", row=1)), **options)
