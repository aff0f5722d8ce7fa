import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit.sharpo import sharpo
from twinstats.episodes import Group, Task

A = 1 / np.sqrt(2)  # outcomes 1 and 0, standardised with ddof 1


@pytest.fixture
def pair(gapped):
    # d of the first: means 3, 1; of the second: 0, 2
    return Group(
        Task("task"),
        [gapped(1.0, [[2.0, 4.0], [1.0]]), gapped(0.0, [[0.0], [2.0, 2.0, 2.0]], row=1)],
        0,
        0,
    )


def test_sharpo_by_hand(pair, given_world):
    (credit,) = assign(given_world(), [pair], make("sharpo", epsilon=0.0))
    # mean 2, population deviation 1: +1, -1 for the success; mean 1, -1, +1 for the failure,
    # whose sign turns them: +1, -1. m = 1 + .5 tanh(+-1)
    up, down = 1 + 0.5 * np.tanh(1), 1 - 0.5 * np.tanh(1)
    np.testing.assert_allclose(credit.values[0], [A * up, A * down])
    np.testing.assert_allclose(credit.values[1], [-A * up, -A * down])
    assert credit.weights is None


def test_without_the_sign_a_teacher_strengthens_blame(pair):
    credit = sharpo(pair, signed=False, epsilon=0.0)
    up, down = 1 + 0.5 * np.tanh(1), 1 - 0.5 * np.tanh(1)
    np.testing.assert_allclose(credit.values[0], [A * up, A * down])
    np.testing.assert_allclose(credit.values[1], [-A * down, -A * up])


def test_a_temperature_replaces_the_deviation(pair):
    credit = sharpo(pair, temperature=0.25, epsilon=0.0)
    np.testing.assert_allclose(credit.values[0][0], A * (1 + 0.5 * np.tanh(4)))


def test_renormalised_multipliers_have_a_token_weighted_mean_of_one(pair):
    credit = sharpo(pair, renormalise=True, epsilon=0.0)
    plain = sharpo(pair, epsilon=0.0)
    for episode, values, before in zip(pair.episodes, credit.values, plain.values, strict=True):
        tokens = episode.column("num_tokens")
        assert abs(values) @ tokens / tokens.sum() == pytest.approx(A)
        assert values[0] / values[1] == pytest.approx(before[0] / before[1])


def test_the_sign_never_flips(gapped):
    rng = np.random.default_rng(0)
    episodes = [gapped(row % 2, 50 * rng.normal(size=(6, 2)), row=row) for row in range(6)]
    credit = sharpo(Group(Task("task"), episodes, 0, 0), strength=0.99)
    for episode, values in zip(episodes, credit.values, strict=True):
        assert (np.sign(values) == (1 if episode.outcome else -1)).all()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.1}, {"renormalise": True}])
def test_equal_gaps_or_one_turn_are_grpo(gapped, options):
    episodes = [gapped(1.0, [[0.1], [0.1], [0.1]]), gapped(0.0, [[0.7]], row=1)]
    group = Group(Task("task"), episodes, 0, 0)
    found, grpo = sharpo(group, **options).values, make("grpo")(group).values
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(grpo), rtol=1e-15)
    assert sharpo(group).values[0].tolist() == grpo[0].tolist()


def test_no_strength_is_grpo(pair):
    found, grpo = sharpo(pair, strength=0.0).values, make("grpo")(pair).values
    assert [v.tolist() for v in found] == [v.tolist() for v in grpo]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": 1.0}, "`strength` must be in .0, 1., got 1.0"),
        ({"strength": -0.1}, "`strength` must be"),
        ({"temperature": 0.0}, "`temperature` must be positive and finite, got 0.0"),
    ],
)
def test_options_out_of_range_are_refused(pair, options, message):
    with pytest.raises(ValueError, match=message):
        sharpo(pair, **options)
