"""What all methods that grow trees have in common."""

from dataclasses import replace

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit._tree import branch, coins, grown, node_credit, softmax_mean
from twinstats.episodes import FRESH, RESAMPLE, Fork, Group, Task

TREES = {
    "tree_grpo": {"rounds": 2},
    "at2po": {"beam": 3},
    "at2po diff": {"beam": 3, "node_value": "child_mean", "advantage": "diff_localglobal"},
    "rtmc": {"expansions": 2},
    "arpo": {"leaves": 12},
    "arpo hard": {"leaves": 12, "sharing": "hard"},
    "treerl": {"rounds": 2},
    "treerl paper": {"weighting": "paper"},
    "prover": {"rollouts": 3, "threshold": 0.0},
    "prover early": {"rollouts": 3, "threshold": 0.0, "sequential": True},
}
trees = pytest.mark.parametrize("case", list(TREES))


def method(case, **options):
    return make(case.split()[0], **(TREES[case] | options))


@pytest.fixture
def rich(tiny):
    """The tiny world with log-probabilities and everything that trees ask for."""

    class Rich(tiny.World):
        def _turn(self, turn, action, history):
            made = super()._turn(turn, action, history)
            chance = tiny.probability(history)
            chances = np.array([1 - chance, chance])
            logprob = float(np.log(chances[action])) * made.num_tokens
            return replace(made, logprob=logprob, entropy=float(-chances @ np.log(chances)))

        def provide(self, need, episodes):
            for episode in episodes:
                size = len(episode.turns)
                episode.info[need] = {
                    "first_entropy": [0.5 + 0.1 * len(turn.state) for turn in episode.turns],
                    "signature": [(turn.state, turn.action) for turn in episode.turns],
                    "segments": [(t, t, 1 - 2 * (t % 2)) for t in range(size)],
                }[need]

    return Rich


def by_name(credit):
    """Each episode's credit and share as bytes, by the episode's name."""
    share = credit.share or credit.values
    rows = zip(credit.episodes, credit.values, share, strict=True)
    return {episode.name: (v.tobytes(), s.tobytes()) for episode, v, s in rows}


@trees
def test_credit_moves_with_its_rows_bit_for_bit(tiny, rich, case):
    """Neither the order of the group nor that of the groups changes a choice or a bit."""
    world = rich(tiny.RealNoise(), limit=4)
    first = Group(Task("tiny"), [world.episode(row=row) for row in range(5)], 3, 0)
    other = Group(Task("tiny"), [world.episode(row=row) for row in range(5, 9)], 3, 0)
    expected = [by_name(credit) for credit in assign(world, [first, other], method(case))]
    for order in ([4, 2, 0, 1, 3], [1, 0, 3, 4, 2]):
        moved = Group(first.task, [first.episodes[k] for k in order], 3, 0)
        found = [by_name(credit) for credit in assign(world, [other, moved], method(case))]
        assert found == expected[::-1]


@trees
def test_another_seed_chooses_anew_where_choices_are_random(tiny, rich, case):
    world = rich(tiny.RealNoise(), limit=4)
    episodes = [world.episode(row=row) for row in range(6)]
    paths = set()
    for seed in range(6):
        (credit,) = assign(world, [Group(Task("tiny"), episodes, seed, 0)], method(case))
        paths.add(tuple(sorted(fork.name for fork in credit.info["forks"])))
    assert (len(paths) > 1) != case.startswith("prover")  # a judge's choice draws no coin


@trees
@pytest.mark.parametrize("value", [0.1, 0.3])
def test_equal_outcomes_have_exactly_no_credit(tree_world, leaf, case, value):
    inputs = {
        "signature": lambda e: [("s", turn) for turn in range(e.num_turns)],
        "first_entropy": lambda e: [0.5] * e.num_turns,
        "segments": lambda e: [(0, 0, 1)],
    }
    world = tree_world(
        lambda fork: (value, [0.3] * (3 - fork.turn)), lambda need, e: inputs[need](e)
    )
    group = Group(Task("task"), [leaf(value, [0.1, 0.7, 0.2], row=r) for r in range(3)], 0, 0)
    (credit,) = assign(world, [group], method(case))
    assert len(credit.info["forks"]) > 3
    for values in credit.values:
        assert (values[~np.isnan(values)] == 0.0).all()
    assert all((values == 0.0).all() for values in credit.values[:3])
    assert credit.info["zero_variance"]


@trees
def test_failed_forks_are_left_out_and_never_continued(tiny, rich, case):
    world = rich(
        tiny.RealNoise(), limit=4, fails=lambda fork: (fork.turn + fork.episode.row) % 2 == 0
    )
    group = Group(Task("tiny"), [world.episode(row=row) for row in range(6)], 3, 0)
    (credit,) = assign(world, [group], method(case))
    failed = [fork for fork in credit.info["forks"] if fork.outcome is None]
    assert failed
    assert not {id(e) for e in credit.episodes} & {id(fork) for fork in failed}
    assert all(fork.fork.episode.outcome is not None for fork in credit.info["forks"])
    assert all(np.isfinite(values).all() for values in credit.values[:6])


@trees
def test_credit_is_for_the_group_then_for_forks_that_are_trained(tiny, rich, case):
    world = rich(tiny.RealNoise(), limit=4)
    group = Group(Task("tiny"), [world.episode(row=row) for row in range(6)], 3, 0)
    (credit,) = assign(world, [group], method(case))
    assert list(credit.episodes[:6]) == list(group.episodes)
    trained = {id(fork) for fork in credit.info["forks"]} if "prover" not in case else set()
    assert {id(e) for e in credit.episodes[6:]} == trained


@pytest.mark.parametrize("case", ["at2po", "arpo hard", "treerl"])
def test_each_sampled_turn_stands_once_and_shares_count_leaves(tiny, rich, case):
    world = rich(tiny.RealNoise(), limit=4)
    group = Group(Task("tiny"), [world.episode(row=row) for row in range(6)], 3, 0)
    (credit,) = assign(world, [group], method(case))
    for episode, values, share in zip(credit.episodes, credit.values, credit.share, strict=True):
        own = [episode.owner(turn) is episode for turn in range(episode.num_turns)]
        np.testing.assert_array_equal(np.isfinite(values), own)
        np.testing.assert_array_equal(np.isfinite(share), own)
    total = sum(np.nansum(share) for share in credit.share)
    assert total == sum(episode.num_turns for episode in credit.episodes)


def test_a_turn_is_sampled_anew_from_where_its_state_first_stood(leaf):
    first = leaf(1.0, [0.0] * 4)
    child = leaf(0.0, [0.0] * 2, prefix=first.turns[:2], fork=Fork(first, 2, luck=FRESH))
    grandchild = leaf(
        0.0, [0.0] * 2, prefix=child.turns[:2], fork=Fork(child, 2, luck=FRESH, alternative=1)
    )
    assert [branch(first, t).episode for t in range(4)] == [first] * 4
    assert [branch(child, t).episode for t in (2, 3)] == [first, child]
    assert [branch(grandchild, t).episode for t in (2, 3)] == [first, grandchild]
    fork = branch(child, 3)
    assert (fork.action, fork.luck, fork.alternative) == (RESAMPLE, FRESH, None)


def test_leaves_share_the_nodes_of_their_prefix(leaf):
    """One episode of three turns, a fork at turn 1, another episode: nodes 0 1 2, 0 3 4, 5."""
    first = leaf(1.0, [0.0] * 3)
    fork = leaf(0.0, [0.0] * 2, prefix=first.turns[:1], fork=Fork(first, 1, luck=FRESH))
    other = leaf(0.0, [0.0], row=1)
    tree = grown([first, leaf(None, [0.0], row=2), fork, other])
    assert [list(path) for path in tree.paths] == [[0, 1, 2], [0, 3, 4], [5]]
    assert list(tree.parents) == [-1, 0, 1, 0, 3, -1]
    assert tree.num_leaves.tolist() == [2, 1, 1, 1, 1, 1]
    assert tree.children() == [[1, 3], [2], [], [4], [], [], [0, 5]]
    assert tree.means(np.array([1.0, 0.0, 3.0])).tolist() == [0.5, 1, 1, 0, 0, 3]
    group = Group(Task("task"), [first, other], 0, 0)
    credit = node_credit(group, [first, fork, other], tree, np.arange(6.0))
    assert [e is f for e, f in zip(credit.episodes, [first, other, fork], strict=True)] == [
        True
    ] * 3
    np.testing.assert_array_equal(credit.values[2], [np.nan, 3, 4])
    np.testing.assert_array_equal(credit.share[0], [2, 1, 1])


def test_coins_differ_by_episode_turn_fork_and_lane(leaf):
    first = leaf(1.0, [0.0] * 2)
    fork = leaf(0.0, [0.0], prefix=first.turns[:1], fork=Fork(first, 1, luck=FRESH))
    group = Group(Task("task"), [first], 7, 0)
    places = [(first, 0), (first, 1), (fork, 1), (leaf(1.0, [0.0], row=1), 0)]
    drawn = np.concatenate([coins(group, places), coins(group, places, 1)])
    assert len(set(drawn)) == 8
    assert coins(group, places[::-1]).tolist() == drawn[3::-1].tolist()
    assert coins(group, []).tolist() == []


def test_softmax_mean_keeps_equal_values_and_survives_large_heights():
    assert softmax_mean(np.array([0.1] * 3), np.array([1.0, 2.0, 3.0])) == 0.1
    assert softmax_mean(np.array([1.0, 0.0]), np.array([1000.0, 0.0])) == 1.0
    found = softmax_mean(np.array([3.0, 0.0]), np.array([np.log(2), 0.0]))
    assert found == pytest.approx(2.0)
