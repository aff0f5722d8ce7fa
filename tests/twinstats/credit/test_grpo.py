import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.episodes import Group, Task


def test_grpo_by_hand(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1)), scripted(0.0), scripted(0.0)], 0, 0)
    (credit,) = assign(scripted_world(), [group], make("grpo", epsilon=0.0))
    # mean 1/3, squared deviations 4/9 + 1/9 + 1/9 = 2/3, over n - 1 = 2: 1/3
    expected = (2 / 3) / np.sqrt(1 / 3)
    np.testing.assert_allclose(credit.values[0], [expected, expected])
    np.testing.assert_allclose(np.concatenate(credit.values[1:]), [-expected / 2] * 2)


@pytest.mark.parametrize(("ddof", "expected"), [(1, 1 / np.sqrt(2)), (0, 1.0)])
def test_ddof_is_the_callers(scripted, scripted_world, ddof, expected):
    group = Group(Task("t"), [scripted(4.0), scripted(2.0)], 0, 0)
    (credit,) = assign(scripted_world(), [group], make("grpo", ddof=ddof, epsilon=0.0))
    np.testing.assert_allclose(np.concatenate(credit.values), [expected, -expected])


def test_epsilon_is_added_to_the_standard_deviation(scripted, scripted_world):
    group = Group(Task("t"), [scripted(4.0), scripted(2.0)], 0, 0)
    (credit,) = assign(scripted_world(), [group], make("grpo", ddof=0, epsilon=1.0))
    np.testing.assert_allclose(np.concatenate(credit.values), [0.5, -0.5])


def test_the_scale_is_not_the_advantages():
    assert not make("grpo").estimates_advantage
    assert make("rloo").estimates_advantage
