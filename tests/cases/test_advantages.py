"""Advantages: the rows A01 to A30 of the case list that group baselines and credit can answer.

"Centred" in the list is R - group mean: (n - 1) / n of the leave-one-out difference.
"""

import math

import numpy as np
import pytest

from twinstats.credit import assign, make
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


@pytest.mark.parametrize("name", ["rloo", "grpo"])
def test_a05_advantages_move_with_their_rows_bit_for_bit(name):
    rng = np.random.default_rng(5)
    rewards, uids = rng.normal(size=16), np.repeat(list("abcd"), 4)
    expected, _ = advantages(rewards.tolist(), uids.tolist(), name)
    for _ in range(20):
        order = rng.permutation(16)
        found, _ = advantages(rewards[order].tolist(), uids[order].tolist(), name)
        assert found.tobytes() == expected[order].tobytes()


@pytest.mark.parametrize("name", ["rloo", "grpo"])
def test_a06_a_group_of_one_is_null_with_a_reason(name):
    found, credits = advantages([0.7, 1.0, 0.0], "abb", name)
    assert np.isnan(found[0])
    assert not np.isnan(found[1:]).any()
    assert [credit.info["singleton_groups"] for credit in credits] == [1, 0]
    assert "needs at least 2" in credits[0].info["reason"]


def test_a07_unscored_members_are_masked_and_counted():
    first, (credit,) = advantages([1.0, None, 0.0, None], "aaaa", "grpo")
    np.testing.assert_allclose(first, [0.707107, NAN, -0.707107, NAN], atol=2e-6)
    assert credit.info["unscored"] == 2
    second, (credit,) = advantages([1.0, None, None, None], "aaaa", "grpo")
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


def test_a11_baselines_belong_to_their_own_group():
    assert centred(np.array([0.0, 1.0, 1.0, 0.0])).tolist() == [-0.5, 0.5, 0.5, -0.5]
    for name in ("rloo", "grpo"):
        found, _ = advantages([1.0, 1.0, 0.0, 0.0], "aabb", name)
        assert found.tolist() == [0.0] * 4


def test_a16_statistics_come_before_any_filter():
    rewards, uids = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0], "aabbcc"
    kept = np.array([True, False, False, True, True, True])
    found, _ = advantages(rewards, uids)
    np.testing.assert_array_equal((found / 2)[kept], [0.5, 0.0, -0.5, 0.5])


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


def test_standardised_and_leave_one_out_agree_on_the_sign():
    values = np.array([0.3, 0.1, NAN, 0.2])
    assert np.array_equal(
        np.sign(standardised(values)), np.sign(leave_one_out(values)), equal_nan=True
    )
