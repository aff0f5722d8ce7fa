import inspect
import math

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.turn_credit import turn_credit
from twinstats.episodes import Episode, Group, Task, Turn

NAN = math.nan


def scored(outcome, scores, *, tokens=None, num_turns=None):
    tokens = tokens or [1] * (num_turns or len(scores) - 1)
    turns = [Turn(0, None, None, count, "s") for count in tokens]
    info = {} if scores is None else {"state_score": scores}
    return Episode(Task("t"), 0, 0, turns, outcome, True, False, info=info)


def credit_of(*episodes, **options):
    return turn_credit(Group(Task("t"), list(episodes), 0, 0), **options)


def values_of(*episodes, **options):
    return np.concatenate(credit_of(*episodes, **options).values)


def test_turn_credit_by_hand():
    # progress 0, 3 with weights 1 and 2/3, 1/3: credit 1, 2, centred -.5, .5
    # R + progress 1 + 3 = 4 against 2 + 0: level 1 and -1; the other's progress is 0
    found = values_of(scored(1.0, [0.0, 0.0, 3.0]), scored(2.0, [5.0, 5.0]), discount=0.5)
    np.testing.assert_allclose(found, [0.5, 1.5, -1.0])


def test_the_centre_is_over_tokens_so_that_the_total_stays():
    # credit 1, 2 with 1 and 3 tokens: mean 7/4
    episode = scored(1.0, [0.0, 0.0, 3.0], tokens=[1, 3])
    found = values_of(episode, scored(2.0, [5.0, 5.0]), discount=0.5)
    np.testing.assert_allclose(found, [1 - 0.75, 1 + 0.25, -1.0])
    np.testing.assert_allclose(found[:2] @ [1, 3], 4 * 1.0)


def test_strength_scales_what_moves_between_turns():
    episodes = scored(1.0, [0.0, 0.0, 3.0]), scored(2.0, [5.0, 5.0])
    np.testing.assert_allclose(values_of(*episodes, discount=0.5, strength=2.0), [0, 2, -1])
    assert values_of(*episodes, strength=0.0).tolist() == [1.0, 1.0, -1.0]


def test_without_a_smear_the_turn_that_made_progress_has_it_all():
    episode = scored(0.0, [0.0, 1.0, 1.0, 4.0])
    # progress 1, 0, 3: mean 4/3; alone, so no level
    np.testing.assert_allclose(values_of(episode, discount=0.0), np.array([-1, -4, 5]) / 3)


def test_a_full_smear_is_even_over_the_turns_so_far():
    episode = scored(0.0, [0.0, 1.0, 1.0, 4.0])
    # 1 + 0 + 1, 0 + 1, 1: mean 4/3
    np.testing.assert_allclose(values_of(episode, discount=1.0), np.array([2, -1, -1]) / 3)


@pytest.mark.parametrize("discount", [0.0, 0.3, 0.9, 1.0])
def test_credit_of_an_episode_is_its_progress_told_by_turns(discount):
    rng = np.random.default_rng(0)
    scores = rng.random(8)
    # against an episode that stands still, R + P = progress, level is half of it
    found = credit_of(scored(0.0, scores), scored(0.0, [0.0, 0.0]), discount=discount).values[0]
    np.testing.assert_allclose(found.sum(), 7 * (scores[-1] - scores[0]) / 2)
    naive = np.zeros(7)
    for turn, step in enumerate(np.diff(scores)):
        weights = np.array([discount ** (turn - back) for back in range(turn + 1)])
        naive[: turn + 1] += step * weights / weights.sum()
    level = (scores[-1] - scores[0]) / 2
    np.testing.assert_allclose(found, level + naive - naive.mean())


def test_an_unscored_state_hands_its_progress_on():
    found = values_of(scored(0.0, [0.0, NAN, 3.0, 1.0]), discount=0.0)
    # progress 0, 3, -2
    np.testing.assert_allclose(found, np.array([-1, 8, -7]) / 3)
    start = values_of(scored(0.0, [None, 2.0, 3.0]), discount=0.0)
    np.testing.assert_allclose(start, [-0.5, 0.5])


def test_the_published_defaults():
    options = inspect.signature(turn_credit).parameters
    assert {name: option.default for name, option in options.items() if name != "group"} == {
        "discount": 0.9,
        "strength": 1.0,
    }
    method = make("turn_credit")
    assert [need.name for need in method.needs] == ["state_score"]
    assert not method.compares_members
    assert not method.estimates_advantage


def test_without_progress_it_is_dr_grpo(scripted_world):
    class Given(type(scripted_world())):
        def provide(self, need, episodes):
            assert all(need in episode.info for episode in episodes)

    episodes = [scored(r, [0.3] * 4) for r in (0.3, 0.8, 0.0)]
    group = Group(Task("t"), episodes, 0, 0)
    (credit,) = assign(Given(), [group], make("turn_credit"))
    (plain,) = assign(scripted_world(), [group], make("dr_grpo"))
    assert np.concatenate(credit.values).tobytes() == np.concatenate(plain.values).tobytes()


def test_equal_totals_leave_the_progress_and_equal_progress_nothing():
    found = values_of(*[scored(0.1, [0.0, 1.0, 1.0])] * 3, discount=0.0)
    np.testing.assert_allclose(found, [0.5, -0.5] * 3)
    assert values_of(*[scored(0.1, [0.0, 0.1, 0.2])] * 3, discount=0.0).tolist() == [0.0] * 6


def test_a_group_of_one_has_its_progress_alone():
    found = values_of(scored(5.0, [0.0, 0.0, 3.0]), discount=0.5)
    np.testing.assert_allclose(found, [-0.5, 0.5])
    found = values_of(scored(5.0, [0.0, 0.0, 3.0]), scored(None, [0.0, 1.0]), discount=0.5)
    np.testing.assert_allclose(found, [-0.5, 0.5, NAN])


def test_a_failed_episode_is_null_and_in_no_mean():
    episodes = scored(1.0, [0.0, 0.0, 3.0]), scored(2.0, [5.0, 5.0])
    expected = values_of(*episodes)
    found = values_of(*episodes, scored(None, [0.0, 9.0, None]))
    np.testing.assert_array_equal(found, [*expected, NAN, NAN])
    assert np.isnan(values_of(scored(None, [0.0, 9.0, None]))).all()


def test_what_is_missing_or_wrong_is_named():
    with pytest.raises(ValueError, match="Method 'turn_credit' needs 'state_score' \\(a score of"):
        credit_of(scored(1.0, None, num_turns=1))
    with pytest.raises(ValueError, match="must have 4 entries \\(3 turns\\), got 2"):
        credit_of(scored(1.0, [0.1, 0.2], num_turns=3))
    with pytest.raises(ValueError, match="`discount` must be in \\[0, 1\\], got 1.5"):
        credit_of(scored(1.0, [0.1, 0.2]), discount=1.5)
    with pytest.raises(ValueError, match="`strength` must be at least 0 and finite, got -1"):
        credit_of(scored(1.0, [0.1, 0.2]), strength=-1.0)
