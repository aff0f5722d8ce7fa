import inspect
import math

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.hcapo import hcapo
from twinstats.episodes import Episode, Group, Task, Turn

NAN = math.nan


def judged(outcome, chances, *, success=None, num_turns=None):
    """An episode whose actions have these chances in hindsight (the fifth root is taken off)."""
    turns = [Turn(0, None, None, 1, "s")] * (num_turns or len(chances))
    info = {} if chances is None else {"hindsight_logprob": 5.0 * np.log(chances)}
    return Episode(Task("t"), 0, 0, turns, outcome, True, False, success=success, info=info)


def credit_of(*episodes, **options):
    return hcapo(Group(Task("t"), list(episodes), 0, 0), **options)


def values_of(*episodes, **options):
    return np.concatenate(credit_of(*episodes, **options).values)


def standard(values):
    values = np.array(values)
    return (values - values.mean()) / (values.std(ddof=1) + 1e-6)


def test_hcapo_by_hand():
    # p .45, .55: mean .5, rho .9, 1.1; Q = .9 * .5 * 2 and 1.1 * 2; the other has R = 0, so Q = 0
    found = values_of(judged(2.0, [0.45, 0.55]), judged(0.0, [0.2, 0.4]), discount=0.5)
    outcome = np.repeat(standard([2.0, 0.0]), 2)
    np.testing.assert_allclose(found, outcome + standard([0.9, 2.2, 0.0, 0.0]))


def test_rho_is_clipped_and_the_weight_is_the_hindsights():
    # p .1, .9: rho .2, 1.8 clipped to .8, 1.2
    episodes = judged(1.0, [0.1, 0.9]), judged(0.0, [0.5])
    outcome = standard([1.0, 0.0])[[0, 0, 1]]
    found = values_of(*episodes, weight=3.0, discount=1.0)
    np.testing.assert_allclose(found, outcome + 3 * standard([0.8, 1.2, 0.0]))
    found = values_of(*episodes, discount=1.0, clip=0.5)
    np.testing.assert_allclose(found, outcome + standard([0.5, 1.5, 0.0]))


def test_a_success_keeps_no_negative_hindsight():
    won, lost = judged(2.0, [0.45, 0.55], success=True), judged(1.9, [0.5, 0.5], success=False)
    # Q .45 * 2 = .9, 2.2, .95, 1.9: mean 1.4875, so the first turns of both are below it
    hindsight = standard([0.9, 2.2, 0.95, 1.9])
    assert hindsight[0] < 0 and hindsight[2] < 0
    expected = np.repeat(standard([2.0, 1.9]), 2) + [0.0, *hindsight[1:]]
    np.testing.assert_allclose(values_of(won, lost, discount=0.5), expected)


def test_smoothing_takes_half_of_the_next_turn():
    episodes = judged(2.0, [0.45, 0.55]), judged(0.0, [0.2, 0.4])
    found = values_of(*episodes, discount=0.5, smooth=True)
    outcome = np.repeat(standard([2.0, 0.0]), 2)
    np.testing.assert_allclose(found, outcome + standard([(0.9 + 2.2) / 2, 2.2, 0.0, 0.0]))


def test_the_published_defaults():
    options = inspect.signature(hcapo).parameters
    assert {name: option.default for name, option in options.items() if name != "group"} == {
        "weight": 1.0,
        "discount": 0.95,
        "temperature": 5.0,
        "clip": 0.2,
        "smooth": False,
    }
    method = make("hcapo")
    assert [need.name for need in method.needs] == ["hindsight_logprob"]
    assert method.compares_members
    assert not method.estimates_advantage


def test_without_the_hindsight_term_it_is_grpo(scripted_world):
    class Given(type(scripted_world())):
        def provide(self, need, episodes):
            assert all(need in episode.info for episode in episodes)

    episodes = [judged(r, [0.5, 0.1 + r]) for r in (0.3, 0.8, 0.0)]
    group = Group(Task("t"), episodes, 0, 0)
    (credit,) = assign(Given(), [group], make("hcapo", weight=0.0))
    (plain,) = assign(scripted_world(), [group], make("grpo"))
    assert np.concatenate(credit.values).tobytes() == np.concatenate(plain.values).tobytes()


def test_a_constant_log_likelihood_changes_nothing():
    episodes = judged(1.0, [0.2, 0.25]), judged(0.0, [0.5])
    shifted = judged(1.0, [0.1, 0.125]), judged(0.0, [0.5])
    np.testing.assert_allclose(values_of(*episodes), values_of(*shifted))
    assert np.isfinite(values_of(judged(1.0, [1e-300, 1e-299]), judged(0.0, [0.5]))).all()


def test_equal_outcomes_leave_the_hindsight_and_outcomes_of_0_nothing():
    found = values_of(*[judged(1.0, [0.45, 0.55])] * 2, discount=1.0)
    np.testing.assert_allclose(found, standard([0.9, 1.1] * 2))
    assert values_of(*[judged(0.0, [0.3, 0.6], success=False)] * 3).tolist() == [0.0] * 6


def test_a_failed_episode_is_null_and_in_no_mean():
    first, second = judged(2.0, [0.45, 0.55]), judged(0.0, [0.2, 0.4])
    for smooth in (False, True):
        expected = values_of(first, second, smooth=smooth)
        found = values_of(first, judged(None, [0.1, 0.9]), second, smooth=smooth)
        np.testing.assert_array_equal(found, [*expected[:2], NAN, NAN, *expected[2:]])
        empty = Episode(Task("t"), 0, 0, [], None, False, False, info={"hindsight_logprob": []})
        credit = credit_of(first, second, empty, smooth=smooth)
        assert [len(values) for values in credit.values] == [2, 2, 0]


def test_too_few_scored_episodes():
    alone = credit_of(judged(1.0, [0.5, 0.4]))
    assert np.isnan(alone.values[0]).all()
    assert "needs at least 2" in alone.info["reason"]
    found = values_of(judged(1.0, [0.5, 0.4]), judged(None, [0.1]))
    np.testing.assert_array_equal(found, [0.0, 0.0, NAN])


def test_what_is_missing_or_wrong_is_named():
    with pytest.raises(ValueError, match="Method 'hcapo' needs 'hindsight_logprob' \\(the mean"):
        credit_of(judged(1.0, None, num_turns=1))
    with pytest.raises(ValueError, match="must have 3 entries \\(3 turns\\), got 2"):
        credit_of(judged(1.0, [0.1, 0.2], num_turns=3))
    for option, value, rule in [
        ("weight", -1.0, "at least 0 and finite"),
        ("clip", -0.1, "at least 0 and finite"),
        ("temperature", 0.0, "positive and finite"),
        ("discount", 1.1, "in \\[0, 1\\]"),
    ]:
        with pytest.raises(ValueError, match=f"`{option}` must be {rule}, got {value}"):
            credit_of(judged(1.0, [0.5]), **{option: value})
