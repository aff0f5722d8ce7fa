"""Advantages: the rows A01 to A30 of the case list that group baselines and credit can answer.

"Centred" in the list is R - group mean: (n - 1) / n of the leave-one-out difference.
"""

import math
import zlib
from dataclasses import replace

import numpy as np
import pytest

from simulations.worlds.errand import Errand
from simulations.worlds.errand_model import ErrandSetting
from twinstats.credit import assign, make, names
from twinstats.credit.baseline import group_info, leave_one_out, standardised
from twinstats.episodes import Episode, Group, Task, Turn, group_by_task
from twinstats.rows import turn_rows

NAN = math.nan


class NoForks:
    """A world for methods that ask for nothing."""

    def play(self, tasks, rollouts, step):
        raise AssertionError

    def fork(self, forks):
        raise AssertionError

    def provide(self, need, episodes):
        raise AssertionError


def episodes(rewards, uids):
    return [
        Episode(Task(uid), 0, row, [Turn(0, None, None, 1, "s")], reward, True, False)
        for row, (reward, uid) in enumerate(zip(rewards, uids, strict=True))
    ]


def advantages(rewards, uids, name="rloo", **options):
    """Each row's advantage, in the rows' order."""
    rows = episodes(rewards, uids)
    credits = assign(NoForks(), group_by_task(rows, seed=0, step=0), make(name, **options))
    found = {e.row: v[0] for c in credits for e, v in zip(c.episodes, c.values, strict=True)}
    return np.array([found[row.row] for row in rows]), credits


class Given(NoForks):
    """A world whose episodes come with what a method needs."""

    def provide(self, need, episodes):
        assert all(need in episode.info for episode in episodes)


def given(outcome, rewards, *, row=0, truncated=False, **info):
    """An episode with a reward for each turn, and what a method needs."""
    turns = [Turn(0, None, None, 1, "s", reward=reward) for reward in rewards]
    return Episode(Task("a"), 0, row, turns, outcome, not truncated, truncated, info=info)


def values_of(rows, name, **options):
    """Each turn's advantage, row by row."""
    (credit,) = assign(Given(), [Group(Task("a"), rows, 0, 0)], make(name, **options))
    return np.array([values.tolist() for values in credit.values])


def centred(values):
    return leave_one_out(values) * (len(values) - 1) / len(values)


@pytest.mark.parametrize("value", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("size", [3, 6])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a01_equal_rewards_have_no_signal(value, size, kind):
    for name in ("rloo", "grpo"):
        found, (credit,) = advantages([float(kind(value))] * size, "a" * size, name)
        assert found.tolist() == [0.0] * size
        assert credit.info["zero_variance"] is True


class Same(NoForks):
    """A world in which every fork ends as its parent did."""

    def fork(self, forks):
        return [replace(fork.episode, fork=fork) for fork in forks]


@pytest.mark.parametrize("value", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("twins", [3, 6])
@pytest.mark.parametrize("options", [{}, {"two_sided": True}, {"control_variate": True}])
def test_a01_twins_that_end_equally_have_no_signal(value, twins, options):
    """The mean of three 0.1 is one ulp above 0.1 when summed as floats."""
    for name in ("twice", "independent"):
        groups = group_by_task(episodes([value] * 3, "aaa"), seed=0, step=0)
        (credit,) = assign(Same(), groups, make(name, twins=twins, **options))
        found = np.concatenate(credit.values)
        assert set(found[~np.isnan(found)].tolist()) == {0.0}
        assert credit.info["zero_variance"] is True


@pytest.mark.parametrize("value", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("rollouts", [3, 6, 10])
@pytest.mark.parametrize("name", ["vine", "vine_coupled"])
def test_a01_values_of_plays_that_end_equally_are_that_outcome(value, rollouts, name):
    groups = group_by_task(episodes([value] * 3, "aaa"), seed=0, step=0)
    (credit,) = assign(Same(), groups, make(name, rollouts=rollouts))
    assert np.concatenate(credit.values).tolist() == [0.0] * 3


@pytest.mark.parametrize("value", [0.1, 0.2, 0.3])
def test_a01_predictions_from_equal_outcomes_are_that_outcome(value):
    """Without an epsilon what is left of rounding would be a whole standard deviation."""
    rows = [replace(row, turns=row.turns * 2) for row in episodes([value] * 6, "aaabbb")]
    for number, row in enumerate(rows):
        row.info["features"] = [[float(number)], [number + 0.5], [0.0]]
    credits = assign(Given(), group_by_task(rows, seed=0, step=0), make("t2spo", epsilon=0.0))
    assert np.concatenate([v for c in credits for v in c.values]).tolist() == [0.0] * 12


def test_a03_every_estimator_has_its_own_scale():
    rewards = [1.0, 1, 1, 0, 0, 0, 0, 0]
    expected = {
        ("rloo",): (0.714286, -0.428571),
        ("grpo", 1): (1.207615, -0.724569),
        ("grpo", 0): (1.290994, -0.774597),
    }
    for (name, *ddof), (won, lost) in expected.items():
        options = {"ddof": ddof[0], "epsilon": 0.0} if ddof else {}
        found, _ = advantages([float(r) for r in rewards], "a" * 8, name, **options)
        np.testing.assert_allclose(found, [won] * 3 + [lost] * 5, atol=5e-7)
    np.testing.assert_allclose(centred(np.array(rewards)), [0.625] * 3 + [-0.375] * 5)
    found, _ = advantages([float(r) for r in rewards], "a" * 8, "dr_grpo")
    assert found.tolist() == [0.625] * 3 + [-0.375] * 5


def test_a04_groups_are_made_by_id_and_not_by_stride():
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    uids = "aaaabbbcccc"
    found, _ = advantages(rewards, uids)
    sizes = np.array([uids.count(uid) for uid in uids])
    expected = [0.75, *[-0.25] * 3, 1 / 3, 1 / 3, -2 / 3, *[0.25] * 3, -0.75]
    np.testing.assert_allclose(found * (sizes - 1) / sizes, expected, atol=1e-12)


def test_a05_an_id_per_row_is_refused():
    for name in ("rloo", "grpo"):
        with pytest.raises(ValueError, match="all groups have size 1 \\(16 of them\\)"):
            advantages([1.0] * 16, [f"u{row}" for row in range(16)], name)


@pytest.mark.parametrize("name", ["rloo", "grpo", "dr_grpo", "reinforce_pp"])
def test_a05_advantages_move_with_their_rows_bit_for_bit(name):
    rng = np.random.default_rng(5)
    rewards, uids = rng.normal(size=16), np.repeat(list("abcd"), 4)
    expected, _ = advantages(rewards.tolist(), uids.tolist(), name)
    for _ in range(20):
        order = rng.permutation(16)
        found, _ = advantages(rewards[order].tolist(), uids[order].tolist(), name)
        assert found.tobytes() == expected[order].tobytes()


@pytest.fixture(scope="module")
def errand():
    """A world that has everything a method asks for."""
    return Errand(ErrandSetting(name="cases", horizon=6), seed=1)


def played(world, name, rows):
    """Each episode's credit by name, forks included, and the credits."""
    credits = assign(world, group_by_task(rows, seed=1, step=1), make(name))
    return {e.name: v for c in credits for e, v in zip(c.episodes, c.values, strict=True)}, credits


@pytest.mark.parametrize("name", names())
def test_a05_every_method_moves_with_its_rows_bit_for_bit(errand, name):
    rows = errand.play(errand.tasks(2), 4, 1)
    expected, _ = played(errand, name, rows)
    order = np.random.default_rng(0).permutation(len(rows))
    found, _ = played(errand, name, [rows[index] for index in order])
    assert {n: v.tobytes() for n, v in found.items()} == {
        n: v.tobytes() for n, v in expected.items()
    }


@pytest.mark.parametrize("name", names())
def test_a06_a_group_of_one_is_null_wherever_members_are_compared(errand, name):
    rows = errand.play(errand.tasks(2), 4, 1)[:5]
    found, credits = played(errand, name, rows)
    assert not any(np.isnan(found[row.name]).any() for row in rows[:4])
    if make(name).compares_members:
        assert np.isnan(found[rows[4].name]).all()
        assert "needs at least 2" in credits[1].info["reason"]
        with pytest.raises(ValueError, match="all groups have size 1 \\(1 of them\\)"):
            played(errand, name, rows[4:])


@pytest.mark.parametrize("name", names())
def test_a07_an_unscored_member_poisons_nobody(errand, name):
    rows = errand.play(errand.tasks(2), 4, 1)
    rows[1] = replace(rows[1], outcome=None, success=None)
    found, _ = played(errand, name, rows)
    assert not any(np.isnan(found[row.name]).any() for row in rows if row is not rows[1])
    assert np.isnan(found[rows[1].name][-1])
    rows = errand.play(errand.tasks(2), 4, 1)
    rows[1] = replace(rows[1], outcome=NAN, success=None)
    by_nan, _ = played(errand, name, rows)
    assert {n: v.tobytes() for n, v in by_nan.items()} == {n: v.tobytes() for n, v in found.items()}


@pytest.mark.parametrize("name", ["rloo", "grpo", "dr_grpo"])
def test_a06_a_group_of_one_is_null_with_a_reason(name):
    found, credits = advantages([0.7, 1.0, 0.0], "abb", name)
    assert np.isnan(found[0])
    assert not np.isnan(found[1:]).any()
    assert [credit.info["singleton_groups"] for credit in credits] == [1, 0]
    assert "needs at least 2" in credits[0].info["reason"]


@pytest.mark.parametrize("none", [None, NAN])
def test_a07_unscored_members_are_masked_and_counted(none):
    first, (credit,) = advantages([1.0, none, 0.0, none], "aaaa", "grpo")
    np.testing.assert_allclose(first, [0.707107, NAN, -0.707107, NAN], atol=2e-6)
    assert credit.info["unscored"] == 2
    second, (credit,) = advantages([1.0, none, none, none], "aaaa", "grpo")
    np.testing.assert_array_equal(second, [0.0, NAN, NAN, NAN])
    assert credit.info["unscored"] == 3


def test_a08_credit_comes_from_outcomes_and_is_never_normalised_again():
    rewards, uids = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0], "aaaabbbb"
    found, credits = advantages(rewards, uids, "grpo", epsilon=0.0)
    expected = [1.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -1.5]
    np.testing.assert_allclose(found, expected)
    method = make("grpo", epsilon=0.0)
    assert method.finish(credits) is credits  # nothing more is done over the step
    again, _ = advantages(rewards, uids, "grpo", epsilon=0.0)
    assert again.tobytes() == found.tobytes()
    np.testing.assert_allclose(found[:6], expected[:6])  # a learner that sees six changes nothing


def test_a08_a_step_that_was_whitened_is_not_whitened_again():
    method = make("reinforce_pp")
    groups = group_by_task(episodes([1.0, 0.0, 0.0, 3.0], "aabb"), seed=0, step=0)
    credits = assign(NoForks(), groups, method)
    assert method.finish(credits) is credits


@pytest.mark.parametrize(
    ("discount_first", "first"), [(False, -0.5), (True, -1.0)], ids=["normalised", "discounted"]
)
def test_a09_the_order_of_normalising_and_discounting_is_the_callers(discount_first, first):
    # rewards [0, 1] and [1, 0]: the gold answer's chance goes from 1 to 1 and from 0 to 1
    sure, found_out = np.zeros(3), np.array([-np.inf, 0.0, 0.0])
    rows = [
        given(1.0, [0.0, 0.0], gold_logprob=sure),
        given(0.0, [0.0, 0.0], row=1, gold_logprob=found_out),
    ]
    options = {"discount": 0.5, "pooling": "turn", "ddof": 0, "epsilon": 0.0}
    found = values_of(rows, "igpo", discount_first=discount_first, **options)
    np.testing.assert_allclose(found, [[first, 1.0], [-first, -1.0]])


@pytest.mark.parametrize(
    ("discount_first", "first"),
    [(False, [0.0, 1.060660, -1.060660]), (True, [0.0, 1.224745, -1.224745])],
    ids=["normalised", "discounted"],
)
def test_a09_both_orders_discount(discount_first, first):
    """Rewards [0, 1], [1, 0], [0, 0]: of two members each is one deviation off, come what may."""
    sure, found_out = np.zeros(3), np.array([-np.inf, 0.0, 0.0])
    chances = [(1.0, sure), (0.0, found_out), (0.0, sure)]
    rows = [
        given(won, [0.0, 0.0], row=row, gold_logprob=chance)
        for row, (won, chance) in enumerate(chances)
    ]
    options = {"discount": 0.5, "pooling": "turn", "ddof": 0, "epsilon": 0.0}
    found = values_of(rows, "igpo", discount_first=discount_first, **options)
    np.testing.assert_allclose(found[:, 0], first, atol=5e-7)
    np.testing.assert_allclose(found[:, 1], [1.414214, -0.707107, -0.707107], atol=5e-7)


def test_a10_only_turns_in_the_same_state_are_compared():
    rows = [
        Episode(Task("a"), 0, row, [Turn(0, None, None, 1, s) for s in states], won, True, False)
        for row, (states, won) in enumerate([(("s0", "s1"), 1.0), (("s0", "s2"), 0.0)])
    ]
    options = {"discount": 1.0, "cross_steps": False, "epsilon": 0.0}
    for mode, expected in (
        ("mean_norm", [[1.0, 0.5], [-1.0, -0.5]]),
        ("mean_std_norm", [[1.414214, 0.707107], [-1.414214, -0.707107]]),
    ):
        method = make("gigpo", mode=mode, **options)
        (credit,) = assign(NoForks(), [Group(Task("a"), rows, 0, 0)], method)
        np.testing.assert_allclose(credit.values, expected, atol=5e-7)


def test_a11_baselines_belong_to_their_own_group():
    assert centred(np.array([0.0, 1.0, 1.0, 0.0])).tolist() == [-0.5, 0.5, 0.5, -0.5]
    found, _ = advantages([0.0, 1.0, 1.0, 0.0], "aaaa", "dr_grpo")
    assert found.tolist() == [-0.5, 0.5, 0.5, -0.5]
    for name in ("rloo", "grpo", "dr_grpo"):
        found, _ = advantages([1.0, 1.0, 0.0, 0.0], "aabb", name)
        assert found.tolist() == [0.0] * 4


def test_a11_a_mean_over_the_whole_step_is_asked_for_by_name():
    rewards, uids = [1.0, 1.0, 0.0, 0.0], "aabb"
    found, _ = advantages(rewards, uids, "reinforce_pp")
    np.testing.assert_allclose(found, [0.866025, 0.866025, -0.866025, -0.866025], atol=1e-6)
    found, _ = advantages(rewards, uids, "reinforce_pp", baseline=True)
    assert found.tolist() == [0.0] * 4


def test_a16_statistics_come_before_any_filter():
    rewards, uids = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0], "aabbcc"
    kept = np.array([True, False, False, True, True, True])
    found, _ = advantages(rewards, uids)
    np.testing.assert_array_equal((found / 2)[kept], [0.5, 0.0, -0.5, 0.5])


def test_a25_only_sampled_turns_are_transitions():
    """Two observations after the last turn are no steps: nothing is discounted over them."""
    rows = [given(1.0, [0.0, 1.0], value=np.zeros(3))]
    found = values_of(rows, "ppo", discount=0.5, trace_decay=1.0)
    assert found.tolist() == [[0.5, 1.0]]
    assert values_of(rows, "ppo", discount=0.0, trace_decay=1.0).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(("truncated", "expected"), [(True, 0.094), (False, -0.5)])
def test_a26_a_cut_episode_goes_on_and_an_ended_one_does_not(truncated, expected):
    rows = [given(0.0, [0.0], truncated=truncated, value=np.array([0.5, 0.6]))]
    assert values_of(rows, "ppo", discount=0.99)[0, 0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["craft", "sharpo", "factor", "budget_gate"])
@pytest.mark.parametrize("num_gaps", [4, 7])
def test_a18_numbers_per_token_are_never_padded_or_cut(name, num_gaps):
    turns = [Turn((1, 2), None, None, 2, "s"), Turn((1, 2, 3, 4, 5), None, None, 5, "s")]
    rows = [
        Episode(
            Task("a"),
            0,
            row,
            turns,
            float(row),
            True,
            False,
            info={"teacher_gap": [np.zeros(2), np.zeros(num_gaps if row else 5)]},
        )
        for row in range(2)
    ]
    with pytest.raises(ValueError, match=f"episode 0/1, turn 1 .*got {num_gaps} for 5 tokens"):
        assign(Given(), group_by_task(rows, seed=0, step=0), make(name))


@pytest.mark.parametrize("name", ["craft", "sharpo", "factor", "budget_gate", "t2spo", "phgpo"])
def test_a01_a05_a06_a07_hold_for_what_stands_on_a_group_baseline(name):
    def played(rewards, uids):
        info = {
            "teacher_gap": [np.array([0.3])],
            "features": [[0.5], [1.0]],
            "tool": ["search"],
        }
        rows = episodes(rewards, uids)
        for row in rows:
            row.info.update(info)
        credits = assign(Given(), group_by_task(rows, seed=0, step=0), make(name))
        return np.concatenate([v for c in credits for v in c.values]), credits

    equal, (credit,) = played([0.1, 0.1, 0.1], "aaa")
    assert equal.tolist() == [0.0] * 3
    assert credit.info["zero_variance"] is True
    with pytest.raises(ValueError, match="all groups have size 1 \\(3 of them\\)"):
        played([1.0, 1.0, 0.0], "abc")
    mixed, credits = played([0.7, 1.0, 0.0], "abb")
    np.testing.assert_array_equal(np.isnan(mixed), [True, False, False])
    assert "needs at least 2" in credits[0].info["reason"]
    unscored, (credit,) = played([1.0, None, None, None], "aaaa")
    np.testing.assert_array_equal(unscored, [0.0, NAN, NAN, NAN])
    assert credit.info["unscored"] == 3


class Branching(NoForks):
    """Forks of episodes of one turn; the outcome is the one given, or a hash of the fork's name."""

    def __init__(self, outcome=None):
        self.outcome = outcome

    def provide(self, need, episodes):
        known = {"first_entropy": [0.5], "signature": [("s", 0)], "segments": [(0, 0, 1)]}
        for episode in episodes:
            episode.info[need] = known[need]

    def fork(self, forks):
        return [self.played(fork.episode, fork) for fork in forks]

    def played(self, parent, fork):
        turns = [Turn(0, -0.7, 0.6, 1, "s")]
        draft = Episode(parent.task, 0, parent.row, turns, 0.0, True, False, fork=fork)
        hashed = zlib.crc32(draft.name.encode()) / 2**32
        return replace(draft, outcome=hashed if self.outcome is None else self.outcome)

    def credited(self, name, rewards, uids, order):
        rows = episodes(rewards, uids)
        rows = [replace(row, turns=[Turn(0, -0.5 - row.row, 0.6, 1, "s")]) for row in rows]
        groups = group_by_task([rows[k] for k in order], seed=0, step=0)
        credits = assign(self, groups, make(name, **({"leaves": 8} if name == "arpo" else {})))
        found = {e.name: v for c in credits for e, v in zip(c.episodes, c.values, strict=True)}
        return found, credits


@pytest.mark.parametrize("name", ["tree_grpo", "at2po", "rtmc", "arpo", "treerl", "prover"])
def test_a01_a05_a06_a07_hold_for_methods_that_branch(name):
    for value in (0.1, 0.2, 0.3):
        found, (credit,) = Branching(value).credited(name, [value] * 3, "aaa", range(3))
        assert all((values == 0.0).all() for values in found.values())
        assert credit.info["zero_variance"] is True
    rng = np.random.default_rng(5)
    rewards, uids = rng.normal(size=16).tolist(), "aaaabbbbccccdddd"
    expected, _ = Branching().credited(name, rewards, uids, range(16))
    for _ in range(5):
        found, _ = Branching().credited(name, rewards, uids, rng.permutation(16))
        assert {n: v.tobytes() for n, v in found.items()} == {
            n: v.tobytes() for n, v in expected.items()
        }
    if make(name).compares_members:
        with pytest.raises(ValueError, match="all groups have size 1 \\(3 of them\\)"):
            Branching().credited(name, [1.0, 1.0, 0.0], "abc", range(3))
    found, (credit,) = Branching().credited(name, [1.0, None, 0.0, None], "aaaa", range(4))
    assert [bool(np.isnan(found[f"0/{row}"]).any()) for row in range(4)] == [False, True] * 2
    assert credit.info["unscored"] == 2


@pytest.mark.parametrize(
    ("size", "share"), [(2, 0.702375), (4, 0.449041), (8, 0.200657), (16, 0.040263)]
)
def test_a29_uninformative_groups_are_flagged_as_often_as_they_occur(size, share):
    """Exactly: over the number of successes in a group."""
    chance, flagged = 0.1819, 0.0
    for won in range(size + 1):
        weight = math.comb(size, won) * chance**won * (1 - chance) ** (size - won)
        rows = episodes([1.0] * won + [0.0] * (size - won), "a" * size)
        flagged += weight * group_info(Group(Task("a"), rows, 0, 0))["zero_variance"]
    assert flagged == pytest.approx(share, abs=5e-7)


def test_a30_a_turns_reward_stays_at_its_turn():
    turns = [Turn((5,) * 4, None, None, 4, "s", reward=r) for r in (0.2, 0.8)]
    episode = Episode(Task("a"), 0, 0, turns, 1.0, True, False)
    assert episode.column("reward").tolist() == [0.2, 0.8]
    assert episode.column("num_tokens").tolist() == [4, 4]
    assert [(row["turn"], row["reward"]) for row in turn_rows([episode])] == [(0, 0.2), (1, 0.8)]
    earned = given(1.0, [0.2, 0.8], value=np.array([0.0, 0.2, 1.0]))  # nothing more is expected
    assert values_of([earned], "ppo", discount=0.0).tolist() == [[0.2, 0.8]]


def test_standardised_and_leave_one_out_agree_on_the_sign():
    values = np.array([0.3, 0.1, NAN, 0.2])
    assert np.array_equal(
        np.sign(standardised(values)), np.sign(leave_one_out(values)), equal_nan=True
    )
