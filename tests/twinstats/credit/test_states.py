"""What every method that looks at states does at the edges."""

import numpy as np
import pytest

from twinstats.credit import METHODS, make
from twinstats.credit._states import anchors, by_row, episode_term, norm, within
from twinstats.credit.baseline import centred
from twinstats.episodes import Group, Task
from twinstats.errors import UsageError

ANCHORED = ["dars", "gigpo", "hgpo", "graphgpo", "graft"]
ALL = [*ANCHORED, "spader"]
INFO = {"entities": ["x"], "predicate_graph": [("key", "open")], "goal": ["open"]}


def prepared(episodes, step=0):
    """The group, with empty predicates and entities everywhere."""
    for episode in episodes:
        for need in ("predicates", "entities"):
            episode.info.setdefault(need, [frozenset()] * (episode.num_turns + 1))
    return Group(Task("task", INFO), episodes, 0, step)


def varied(walk, size=6):
    rng = np.random.default_rng(7)
    episodes = []
    for row in range(size):
        states = rng.integers(0, 5, int(rng.integers(1, 9))).tolist()
        actions = rng.integers(0, 2, len(states)).tolist()
        rewards = (rng.integers(-2, 3, len(states)) / 10).tolist()
        predicates = [set(rng.choice(["key", "open"], 1)) for _ in range(len(states) + 1)]
        entities = [{"x"} if at > row else set() for at in range(len(states) + 1)]
        info = {"predicates": predicates, "entities": entities}
        won = bool(rng.integers(2))
        outcome = float(rng.normal())
        episode = walk(outcome, states, actions, row=row, rewards=rewards, success=won, info=info)
        episodes.append(episode)
    return episodes


@pytest.mark.parametrize("name", ALL)
def test_a_group_of_one_is_null_with_a_reason(walk, name):
    credit = make(name)(prepared([walk(1.0, "AB")]))
    assert np.isnan(credit.values[0]).all()
    assert "needs at least 2" in credit.info["reason"]
    assert make(name).compares_members
    assert not make(name).estimates_advantage


@pytest.mark.parametrize("name", ALL)
def test_the_one_scored_member_of_several_has_credit_zero(walk, name):
    credit = make(name)(prepared([walk(1.0, "AAB"), walk(None, "AB", row=1), walk(None, "")]))
    assert credit.values[0].tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(credit.values[1]).all()


@pytest.mark.parametrize("name", ALL)
def test_a_failed_episode_changes_nothing_for_the_others(walk, name):
    episodes = varied(walk)
    expected = make(name)(prepared(episodes))
    failed = walk(None, [0, 1, 2], row=3, info={"entities": [{"x"}] * 4})
    found = make(name)(prepared([*episodes[:2], failed, *episodes[2:], walk(None, [], row=99)]))
    assert np.isnan(found.values[2]).all()
    assert found.info["unscored"] == 2
    others = [*found.values[:2], *found.values[3:-1]]
    assert [v.tobytes() for v in others] == [v.tobytes() for v in expected.values]


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_the_group_changes_no_bit(walk, name):
    episodes = varied(walk)
    expected = make(name)(prepared(episodes)).values
    assert any(value.any() for value in expected)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(episodes))
        found = make(name)(prepared([episodes[index] for index in order])).values
        assert [v.tobytes() for v in found] == [expected[index].tobytes() for index in order]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("outcome", [0.0, 0.1, -0.3])
def test_equal_episodes_have_credit_exactly_zero(walk, name, outcome):
    episodes = [walk(outcome, "ABCD", row=row, success=outcome > 0) for row in range(3)]
    credit = make(name)(prepared(episodes))
    assert [value.tolist() for value in credit.values] == [[0.0] * 4] * 3
    assert credit.info["zero_variance"]


@pytest.mark.parametrize("name", ANCHORED)
def test_a_null_state_is_refused_by_name(walk, name):
    group = prepared([walk(1.0, ["A", None]), walk(0.0, "A", row=1)])
    with pytest.raises(ValueError, match=rf"Method '{name}' needs anchor states \(`Turn.state`"):
        make(name)(group)


@pytest.mark.parametrize("name", ANCHORED)
def test_how_often_states_came_again_is_counted(walk, name):
    credit = make(name)(prepared([walk(1.0, "ABC"), walk(0.0, "ABD", row=1)]))
    assert (credit.info["num_states"], credit.info["num_shared_turns"]) == (4, 4)


@pytest.mark.parametrize("name", ["dars", "graft"])
def test_what_was_made_up_is_marked(name):
    assert make(name).reconstructed
    assert [n for n in ALL if METHODS[n].reconstructed] == ["dars", "graft"]


def test_an_unknown_mode_is_refused_with_the_nearest(unchecked):
    with pytest.raises(UsageError, match="Unknown mode 'mean_nor'. Did you mean 'mean_norm'?"):
        norm("mean_nor")


def test_long_episodes_weigh_more_only_across_steps(walk):
    group = Group(Task("t"), [walk(1.0, "ABC"), walk(0.0, "A", row=1), walk(None, "", row=2)], 0, 0)
    long, short, failed = group.episodes
    # across steps the mean is 3/4, else 1/2
    across = episode_term(group, centred, cross_steps=True)
    assert (across[id(long)], across[id(short)]) == (0.25, -0.75)
    assert np.isnan(across[id(failed)])
    once = episode_term(group, centred, cross_steps=False)
    assert (once[id(long)], once[id(short)]) == (0.5, -0.5)


def test_within_compares_like_with_like():
    assert within("aba", np.array([1.0, 5.0, 0.0]), centred).tolist() == [0.5, 0.0, -0.5]


def test_a_text_joins_the_first_cluster_that_it_resembles(walk):
    # ratio = 2 * matches / total length: aaaa-aaab 6/8, aaab-aabb 6/8, aaaa-aabb 4/8
    episodes = [walk(0.0, ["aaaa", "aaab", "aabb"]), walk(0.0, ["aabb", "aaaa"], row=1)]
    found = anchors("gigpo", episodes, 0.75)
    assert found == ["aaaa", "aaaa", "aabb", "aabb", "aaaa"]
    assert anchors("gigpo", episodes, 1.0) == anchors("gigpo", episodes)
    assert by_row(Group(Task("t"), episodes[::-1], 0, 0)) == episodes


def test_only_texts_can_be_similar(walk):
    with pytest.raises(ValueError, match="`similarity` compares texts, got a state 7"):
        anchors("gigpo", [walk(0.0, [7])], 0.9)
