import numpy as np
import pytest

from twinstats.credit import make
from twinstats.credit._teacher import softmax_weights, token_gaps
from twinstats.credit.registry import Need
from twinstats.episodes import Group, Task

METHODS = ["craft", "sharpo", "factor", "budget_gate"]


def credit_of(name, episodes, **options):
    """The credit of a method that plays no forks."""
    if name == "factor":
        options = {"value": "group"} | options
    found = make(name, **options)(Group(Task("task"), episodes, 0, 0))
    if name != "factor":
        return found
    try:
        assert not any(fork for own in next(found) for fork in own)
        found.send([[] for _ in episodes])
    except StopIteration as stop:
        return stop.value


@pytest.mark.parametrize("name", METHODS)
def test_the_teachers_gap_is_asked_for(name):
    method = make(name)
    assert Need("teacher_gap") in method.needs
    assert method.reconstructed
    assert method.compares_members


@pytest.mark.parametrize("name", METHODS)
def test_a_missing_gap_names_method_need_and_source(name, gapped, scripted):
    with pytest.raises(ValueError, match=f"'{name}' needs 'teacher_gap' .a teacher pass"):
        credit_of(name, [gapped(1.0, [[0.0]]), scripted(0.0, row=1)])


@pytest.mark.parametrize("name", METHODS)
def test_all_outcomes_equal_is_exactly_zero(name, gapped):
    gaps = [[0.3, -0.7], [1.1]]
    episodes = [gapped(0.1, gaps[: 1 + row % 2], row=row) for row in range(3)]
    credit = credit_of(name, episodes)
    assert [v.tolist() for v in credit.values] == [[0.0], [0.0, 0.0], [0.0]]
    assert credit.info["zero_variance"] is True


@pytest.mark.parametrize("name", METHODS)
def test_a_group_of_one_is_null_with_a_reason(name, gapped):
    credit = credit_of(name, [gapped(1.0, [[0.3], [0.1]])])
    np.testing.assert_array_equal(credit.values[0], [np.nan, np.nan])
    assert "needs at least 2" in credit.info["reason"]


@pytest.mark.parametrize("name", METHODS)
def test_the_one_scored_of_several_has_no_credit(name, gapped):
    credit = credit_of(name, [gapped(1.0, [[0.3], [0.1]]), gapped(None, [[0.2]], row=1)])
    np.testing.assert_array_equal(np.concatenate(credit.values), [0.0, 0.0, np.nan])


@pytest.mark.parametrize("name", METHODS)
def test_a_failed_episode_changes_nothing_for_the_others(name, gapped, scripted):
    two = [gapped(1.0, [[0.3, 0.2], [0.1]]), gapped(0.0, [[0.2, -0.4]], row=1)]
    failed = scripted(None, (0, 1), row=2)  # without a gap: nobody reads it
    alone, among = credit_of(name, two), credit_of(name, [*two, failed])
    np.testing.assert_array_equal(among.values[2], [np.nan, np.nan])
    for one, other in zip(alone.values, among.values, strict=False):
        np.testing.assert_array_equal(one, other)
    assert among.info["unscored"] == 1


@pytest.mark.parametrize("name", METHODS)
def test_credit_moves_with_its_row_bit_for_bit(name, gapped):
    rng = np.random.default_rng(3)
    episodes = [
        gapped(rng.normal(), [rng.normal(size=3) for _ in range(1 + row % 3)], row=row)
        for row in range(7)
    ]
    first = credit_of(name, episodes)
    for _ in range(5):
        order = rng.permutation(7)
        again = credit_of(name, [episodes[row] for row in order])
        for place, row in enumerate(order):
            assert again.values[place].tobytes() == first.values[row].tobytes()
            if first.weights is not None:
                for one, other in zip(again.weights[place], first.weights[row], strict=True):
                    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", ["craft", "factor", "budget_gate"])
def test_token_weights_have_mean_one(name, gapped):
    rng = np.random.default_rng(4)
    episodes = [
        gapped(row % 2, [3 * rng.normal(size=4), rng.normal(size=1)], row=row) for row in range(4)
    ]
    credit = credit_of(name, episodes)
    turns = [turn for own in credit.weights for turn in own]
    np.testing.assert_allclose([turn.mean() for turn in turns], 1.0, rtol=1e-14)
    assert min(turn.min() for turn in turns) >= 0.0
    assert max(np.ptp(turn) for turn in turns) > 0.5
    assert [len(turn) for turn in turns] == [4, 1] * 4


def test_gaps_are_never_padded_cut_or_made_up(gapped):
    short = gapped(1.0, [[0.1, 0.2]])
    short.info["teacher_gap"] = [np.array([0.1])]
    with pytest.raises(ValueError, match="of episode 0/0, turn 0 must have one number a token.*1"):
        token_gaps("craft", short)
    short.info["teacher_gap"] = [np.array([0.1, np.nan])]
    with pytest.raises(ValueError, match="turn 0 must be finite"):
        token_gaps("craft", short)
    short.info["teacher_gap"] = [np.zeros(2), np.zeros(2)]
    with pytest.raises(ValueError, match="must have 1 entries"):
        token_gaps("craft", short)
    with pytest.raises(ValueError, match="turn 1 must have one number a token, at least one"):
        token_gaps("craft", gapped(1.0, [[0.1], []]))


def test_softmax_weights_by_hand():
    # exp(0, log 3) = 1, 3 over 4, times 2
    np.testing.assert_allclose(softmax_weights(np.log([1.0, 3.0])), [0.5, 1.5])
    # temperature 1/2 squares the odds: 1, 9 over 10, times 2
    np.testing.assert_allclose(softmax_weights(np.log([1.0, 3.0]), temperature=0.5), [0.2, 1.8])
    # clipped to .4, 1.2, whose sum 1.6 becomes 2
    found = softmax_weights(np.log([1.0, 9.0]), low=0.4, high=1.2)
    np.testing.assert_allclose(found, [0.5, 1.5])
    assert softmax_weights(np.full(3, 0.1)).tolist() == [1.0] * 3
    assert softmax_weights(np.array([-7.0])).tolist() == [1.0]
