import inspect
import math

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.ppo import ppo
from twinstats.episodes import Episode, Group, Task, Turn

NAN = math.nan


def valued(value, rewards=(1.0,), *, failed=False, **fields):
    turns = [Turn(0, None, None, 1, "s", reward=reward) for reward in rewards]
    outcome = None if failed else sum(rewards)
    fields = {"terminated": True, "truncated": False} | fields
    info = {} if value is None else {"value": value}
    return Episode(Task("t"), 0, 0, turns, outcome, info=info, **fields)


def credit_of(*episodes, **options):
    return ppo(Group(Task("t"), list(episodes), 0, 0), **options)


def values_of(*episodes, **options):
    return np.concatenate(credit_of(*episodes, **options).values)


def test_ppo_by_hand():
    # rewards 0, 1; value .4, .8: deltas 0 + .5 * .8 - .4 = 0 and 1 - .8 = .2
    # second .2, first 0 + .5 * .5 * .2
    found = values_of(valued([0.4, 0.8, 7.0], (0.0, 1.0)), discount=0.5, trace_decay=0.5)
    np.testing.assert_allclose(found, [0.05, 0.2])


def test_rewards_already_earned_are_taken_off_the_expected_outcome():
    # rewards 2, 1; expected outcomes 2.5, 3.2, so 2.5 and 1.2 still to come
    # deltas 2 + .5 * 1.2 - 2.5 = .1 and 1 - 1.2 = -.2; first .1 - .5 * .2
    found = values_of(valued([2.5, 3.2, 3.0], (2.0, 1.0)), discount=0.5, trace_decay=1.0)
    np.testing.assert_allclose(found, [0.0, -0.2], atol=1e-12)


def defaults():
    options = inspect.signature(ppo).parameters.values()
    return {option.name: option.default for option in options if option.name != "group"}


def test_the_published_defaults():
    assert defaults() == {"discount": 0.99, "trace_decay": 0.9, "whiten": False}
    # deltas .99 * .8 - .4 = .392 and .2; first .392 + .891 * .2
    np.testing.assert_allclose(values_of(valued([0.4, 0.8, 1.0], (0.0, 1.0))), [0.5702, 0.2])
    assert make("ppo").estimates_advantage
    assert [need.name for need in make("ppo").needs] == ["value"]


def test_with_a_full_trace_it_is_the_outcome_minus_the_value():
    episode = valued([0.4, 0.8, 0.1, 9.0], (0.0, 0.0, 1.0))
    found = values_of(episode, discount=1.0, trace_decay=1.0)
    np.testing.assert_allclose(found, [0.6, 0.2, 0.9])


def test_without_a_trace_it_is_the_step_of_the_value():
    episode = valued([0.4, 0.8, 0.1, 9.0], (0.0, 0.0, 1.0))
    found = values_of(episode, discount=1.0, trace_decay=0.0)
    np.testing.assert_allclose(found, [0.4, -0.7, 0.9])


@pytest.mark.parametrize("trace_decay", [0.0, 0.7, 1.0])
def test_an_exact_critic_makes_it_unbiased_by_enumeration(tiny, trace_decay):
    class Critic(tiny.World):
        def provide(self, need, episodes):
            for episode in episodes:
                known = [tiny.value(turn.state, self.limit) for turn in episode.turns]
                episode.info[need] = np.array([*known, episode.outcome])

    total = {}
    method = make("ppo", discount=1.0, trace_decay=trace_decay)
    for tape in tiny.Tape():
        world = Critic(tape, limit=3)
        episode = world.episode()
        (credit,) = assign(world, [Group(Task("tiny"), [episode], 0, 0)], method)
        truth = world.truth(episode)
        for turn, value, exact in zip(episode.turns, credit.values[0], truth, strict=True):
            place = (turn.state, turn.action)
            total[place] = total.get(place, 0.0) + tape.weight * (value - exact)
    assert len(total) == 26
    np.testing.assert_allclose(list(total.values()), 0.0, atol=1e-12)


def test_an_ended_episode_has_nothing_to_come_and_a_cut_one_has():
    ended = valued([0.5, 0.6], (0.0,))
    cut = valued([0.5, 0.6], (0.0,), terminated=False, truncated=True)
    np.testing.assert_allclose(values_of(ended), [-0.5])
    np.testing.assert_allclose(values_of(cut), [0.99 * 0.6 - 0.5])


def test_equal_outcomes_and_a_group_of_one_are_nothing_special():
    one = values_of(valued([0.4, 1.0]))
    assert values_of(valued([0.4, 1.0]), valued([0.4, 1.0])).tolist() == [*one, *one]
    assert values_of(valued([1.0, 1.0])).tolist() == [0.0]


def test_a_failed_episode_is_null():
    failed = valued([0.4, 0.8, None], (0.0, 1.0), failed=True)
    np.testing.assert_array_equal(values_of(failed, valued([0.4, 1.0])), [NAN, NAN, 0.6])


def test_whitening_is_over_the_step_and_once(scripted_world):
    class Given(type(scripted_world())):
        def provide(self, need, episodes):
            assert all(need in episode.info for episode in episodes)

    groups = [
        Group(Task("a"), [valued([0.0, 0.0], (1.0,)), valued([0.0, 0.0], (4.0,))], 0, 0),
        Group(Task("b"), [valued([0.0, 0.0], (1.0,)), valued([0.0], (1.0,), failed=True)], 0, 0),
    ]
    groups[1].episodes[1].info["value"] = [0.0, None]
    method = make("ppo", whiten=True)
    credits = assign(Given(), groups, method)
    # 1, 4, 1: mean 2, squared deviations 1 + 4 + 1 = 6, over 2: 3
    found = np.concatenate([values for credit in credits for values in credit.values])
    np.testing.assert_allclose(found, np.array([-1, 2, -1, NAN]) / math.sqrt(3), rtol=1e-7)
    assert method.finish(credits) is credits
    plain = assign(Given(), groups, make("ppo"))
    assert plain[0].values[1].tolist() == [4.0]


def test_a_missing_critic_is_named():
    with pytest.raises(ValueError, match="Method 'ppo' needs 'value' \\(a critic\\)"):
        credit_of(valued(None))
    with pytest.raises(ValueError, match="must have 2 entries \\(1 turns\\), got 1"):
        credit_of(valued([0.5]))


@pytest.mark.parametrize("option", ["discount", "trace_decay"])
@pytest.mark.parametrize("value", [-0.1, 1.1, NAN])
def test_options_outside_the_unit_interval_are_refused(option, value):
    with pytest.raises(ValueError, match=f"`{option}` must be in \\[0, 1\\], got {value}"):
        credit_of(valued([0.5, 1.0]), **{option: value})
