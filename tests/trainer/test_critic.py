"""The critic: what it values, what it learns, and that it is taken up as it was left."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.trainer.needs_worlds import Bag, LetterPolicy, episode, failed, setup_of
from trainer.needs import make
from trainer.needs.critic import _UPDATES, Critic
from twinstats.credit.ppo import ppo
from twinstats.episodes import Group

RATE = 0.01


@pytest.fixture
def setup(config):
    needs = dataclasses.replace(config.needs, critic_learning_rate=RATE)
    return setup_of(LetterPolicy(Bag()), dataclasses.replace(config, needs=needs))


def critic_of(setup, weights, bias=0.0):
    """A critic with given weights of letters."""
    critic = Critic(setup)
    weight = torch.zeros(128)
    for letter, value in weights.items():
        weight[ord(letter)] = value
    critic.load({}, {"weight": weight, "bias": torch.tensor(bias)})
    return critic


def value_of(critic, one):
    critic.provide([one])
    return one.info["value"]


CUT = {"terminated": False, "truncated": True}
COURSE = [("a", "b"), ("c", "d")]  # the states are a, a b c and a b c d


# Values


def test_a_fresh_critic_expects_nothing_more(setup):
    one = episode(*COURSE, rewards=[0.25, 0.5], **CUT)
    assert value_of(Critic(setup), one).tolist() == [0.0, 0.25, 0.75]


def test_a_value_is_what_was_earned_and_what_the_state_promises(setup):
    """The hidden state counts letters; its direction divides by the root of how many there are."""
    critic = critic_of(setup, {"a": 1.0, "c": 2.0, "d": 10.0, "e": 100.0}, bias=0.5)
    one = episode(*COURSE, rewards=[0.25, 0.5])
    expected = [0 + 0.5 + 1, 0.25 + 0.5 + 3 / math.sqrt(3), 0.75]
    np.testing.assert_allclose(value_of(critic, one), expected, rtol=1e-6)
    cut = episode(*COURSE, rewards=[0.25, 0.5], end="e", **CUT)
    expected[-1] = 0.75 + 0.5 + 113 / math.sqrt(5)
    np.testing.assert_allclose(value_of(critic, cut), expected, rtol=1e-6)


@pytest.mark.parametrize(("fields", "last"), [({}, -0.5), (CUT, 0.094)])
def test_behind_a_limit_the_critic_goes_on_and_behind_the_end_it_does_not(setup, fields, last):
    """CASES A26: no reward, V before the last turn .5 and behind it .6, discount .99."""
    critic = critic_of(setup, {"b": 0.1 * math.sqrt(2)}, bias=0.5)
    one = episode(("a", "b"), **fields)
    critic.provide([one])
    credit = ppo(Group(one.task, [one], 0, 1), discount=0.99)
    np.testing.assert_allclose(credit.values[0], [last], atol=1e-6)


def test_each_value_is_that_of_one_episode_alone(policy, config):
    critic = Critic(setup_of(policy, config))
    own = torch.linspace(-1, 1, 32)
    critic.load({}, {"weight": own, "bias": torch.tensor(0.25)})
    many = [
        episode(("ab", "cd" * n), ("e", "f"), rewards=[0.1, 0.2], end="gh", **CUT)
        for n in range(1, 9)
    ]
    critic.provide(many)
    for one in many:
        ids = [*one.turns[0].info["shown"], *one.turns[0].action, *one.turns[1].info["shown"]]
        states = [ids[:2], ids, [*ids, *one.turns[1].action, *policy.encode("gh")]]
        for value, state, earned in zip(one.info["value"], states, (0, 0.1, 0.3), strict=True):
            with torch.no_grad():
                model = policy.model.base_model(torch.tensor([state]))
            hidden = model.last_hidden_state[0, -1].double()
            expected = earned + 0.25 + float(hidden @ own.double() / hidden.norm())
            np.testing.assert_allclose(value, expected, atol=1e-5)


def test_a_failed_episode_has_null_values(setup):
    lost, nothing = failed(("a", "b")), failed()
    Critic(setup).provide([lost, nothing])
    assert np.isnan(lost.info["value"]).tolist() == [True, True]
    assert np.isnan(nothing.info["value"]).tolist() == [True]


# Learning


def test_it_learns_returns_to_go_as_a_linear_layer_would(setup):
    critic = Critic(setup)
    episodes = [
        episode(*COURSE, rewards=[0.25, 0.5]),
        episode(("a", "x"), rewards=[0.0], end="z", **CUT),  # what it earned, nothing behind it
        failed(("a", "b")),
    ]
    metrics = critic.learn(episodes)
    states = torch.zeros(3, 128)
    states[0, ord("a")] = states[2, ord("a")] = 1.0
    for letter in "abc":
        states[1, ord(letter)] = 1 / math.sqrt(3)
    returns = torch.tensor([0.75, 0.5, 0.0])
    layer = torch.nn.Linear(128, 1)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=RATE, weight_decay=0.0)
    for _ in range(_UPDATES):
        optimizer.zero_grad()
        (layer(states)[:, 0] - returns).square().mean().backward()
        optimizer.step()
    found = critic.tensors()
    torch.testing.assert_close(found["weight"], layer.weight.data[0])
    torch.testing.assert_close(found["bias"], layer.bias.data[0])
    np.testing.assert_allclose(metrics["critic/loss"], (0.75**2 + 0.5**2) / 3, rtol=1e-6)
    assert metrics["critic/explained_variance_share"] == pytest.approx(0.0, abs=1e-6)


def test_it_comes_to_explain_what_states_tell(setup):
    critic = Critic(setup)
    good, bad = episode(("g", "x"), rewards=[1.0]), episode(("b", "x"), rewards=[0.0])
    told = [critic.learn([good, bad]) for _ in range(40)]
    assert told[-1]["critic/loss"] < 1e-3 < told[0]["critic/loss"]
    assert told[-1]["critic/explained_variance_share"] > 0.99
    np.testing.assert_allclose(value_of(critic, good), [1.0, 1.0], atol=0.05)
    np.testing.assert_allclose(value_of(critic, bad), [0.0, 0.0], atol=0.05)


def test_the_explained_share_of_the_variance_by_hand(setup):
    """Values 1, 0 for returns 1, 0.5: the errors 0, .5 vary as much as the returns."""
    critic = critic_of(setup, {"g": 1.0})
    episodes = [episode(("g", "x"), rewards=[1.0]), episode(("b", "x"), rewards=[0.5])]
    metrics = critic.learn(episodes)
    assert metrics["critic/loss"] == pytest.approx(0.125)
    assert metrics["critic/explained_variance_share"] == pytest.approx(0.0, abs=1e-6)
    critic = critic_of(setup, {"g": 1.0}, bias=-9.0)
    episodes[1] = episode(("b", "x"), rewards=[0.0])
    explained = critic.learn(episodes)["critic/explained_variance_share"]
    assert explained == pytest.approx(1.0)  # a constant error is none of the variance's


def test_what_is_undefined_is_null(setup):
    critic = Critic(setup)
    nothing = critic.learn([failed(("a", "b")), failed()])
    assert all(math.isnan(value) for value in nothing.values())
    assert not critic.tensors()["weight"].any()
    equal = critic.learn([episode(("a", "b"), rewards=[1.0])])
    assert equal["critic/loss"] == 1.0
    assert math.isnan(equal["critic/explained_variance_share"])


def test_no_gradient_reaches_the_policy_and_no_random_number_is_drawn(policy, config):
    state = torch.get_rng_state()
    critic = make("value", setup_of(policy, config))
    critic.learn([episode(("ab", "cd"), rewards=[1.0])])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in policy.model.parameters())


# Taken up


def test_a_critic_goes_on_where_it_was_left(setup):
    first, then = episode(("g", "x"), rewards=[1.0]), episode(*COURSE, rewards=[0.3, 0.1])
    one = Critic(setup)
    one.learn([first])
    other = Critic(setup)
    other.load(one.state(), one.tensors())
    assert one.learn([then]) == other.learn([then])
    mine, theirs = one.tensors(), other.tensors()
    assert mine.keys() == theirs.keys() and len(mine) == 8
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_what_is_handed_out_does_not_change(setup):
    critic = Critic(setup)
    critic.learn([episode(("g", "x"), rewards=[1.0])])
    kept = critic.tensors()
    before = {name: value.clone() for name, value in kept.items()}
    critic.learn([episode(("g", "x"), rewards=[1.0])])
    assert all(torch.equal(kept[name], before[name]) for name in kept)
