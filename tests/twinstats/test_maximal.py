import itertools

import numpy as np
import pytest

from twinstats.coupling import joint
from twinstats.episodes import Episode, Fork, Task, Turn
from twinstats.maximal import kept_share, maximal, maximal_stream, residual_logits
from twinstats.noise import KeyColumns, LogitsError, NoiseKey, sample

LAWS = [
    (np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.5, 0.1, 0.2])),
    (np.array([0.25, 0.25, 0.5]), np.array([0.25, 0.25, 0.5])),
    (np.array([1.0, 0.0]), np.array([0.0, 1.0])),
    (np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.2, 0.7])),
]


def logs(law, rows=1):
    with np.errstate(divide="ignore"):
        return np.tile(np.log(law), (rows, 1))


def columns(rows, purpose, seed=1):
    return KeyColumns.grid(seed, 0, purpose, row=np.arange(rows), turn=0)


def exact_joint(p, q):
    """The joint law from the two parts of the code, over every token that p draws."""
    size = len(p)
    rest = np.exp(residual_logits(p[None], q[None])[0])
    rest /= rest.sum() or 1.0
    law = np.zeros((size, size))
    for x, y in itertools.product(range(size), repeat=2):
        if p[x]:
            kept = kept_share(p[None], q[None], np.array([x]))[0]
            law[x, y] = p[x] * (kept * (x == y) + (1 - kept) * rest[y])
    return law


@pytest.mark.parametrize(("p", "q"), LAWS)
def test_margins_and_joint_law_are_exact_by_enumeration(p, q):
    law = exact_joint(p, q)
    np.testing.assert_allclose(law.sum(axis=0), q, atol=1e-15)
    np.testing.assert_allclose(law.sum(axis=1), p, atol=1e-15)
    np.testing.assert_allclose(law, joint(p, q, "maximal"), atol=1e-15)


@pytest.mark.parametrize(("p", "q"), LAWS)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_drawn_pairs_follow_the_joint_law(p, q, temperature):
    rows = 40_000
    at = np.arange(rows) % 3
    x = sample(logs(p, rows), columns(rows, "sample"), at, temperature)
    y = maximal(
        logs(p, rows),
        logs(q, rows),
        x,
        keys=columns(rows, "maximal/0"),
        positions=at,
        temperature=temperature,
    )
    drawn = np.zeros((len(p), len(q)))
    np.add.at(drawn, (x, y), 1 / rows)
    power = 1 / temperature
    expected = joint(p**power / (p**power).sum(), q**power / (q**power).sum(), "maximal")
    assert (drawn[expected == 0] == 0).all()
    np.testing.assert_allclose(drawn, expected, atol=4.5 * 0.5 / np.sqrt(rows))


def test_equal_logits_keep_every_token():
    logits = np.random.default_rng(0).normal(size=(500, 3000))
    x = sample(logits, columns(500, "sample"), np.zeros(500, int))
    keys = columns(500, "maximal/0")
    assert (maximal(logits, logits, x, keys=keys, positions=np.zeros(500, int)) == x).all()


def test_rows_do_not_see_their_batch_and_a_list_of_keys_is_as_good():
    rng = np.random.default_rng(1)
    p, q = rng.normal(size=(2, 60, 700))
    x, at = p.argmax(axis=1), np.arange(60)
    keys = [NoiseKey(5, 1, row, 2, purpose="maximal/a") for row in range(60)]
    together = maximal(p, q, x, keys=keys, positions=at)
    assert (together != x).sum() > 5
    for row in (0, 17, 59):
        own = slice(row, row + 1)
        alone = maximal(p[own], q[own], x[own], keys=keys[own], positions=at[own])
        assert alone[0] == together[row]


def test_temperature_zero_takes_the_largest_logit():
    p, q = np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([[2.0, 1.0], [1.0, 1.0]])
    keys = [NoiseKey(0, 0, row, 0, purpose="maximal/a") for row in range(2)]
    found = maximal(p, q, [1, 1], keys=keys, positions=[0, 0], temperature=0.0)
    assert found.tolist() == [0, 0]
    assert maximal(p[:0], q[:0], [], keys=[], positions=[]).tolist() == []


def test_coins_share_no_words_with_the_residual_noise():
    """That a token was not kept says nothing of what replaces it: one block, half of it likelier.

    A high maximum of the block makes its winner, who knows no logits, the answer more often.
    """
    rows = 20_000
    rest = np.where(np.arange(256) < 128, np.exp(3.0), 1.0)
    rest[0] = 0.0
    p, q = np.full(256, 1e-6), 0.25 * rest / rest.sum()
    p[0], q[0] = 1 - p[1:].sum(), 0.75
    keys = columns(rows, "maximal/0")
    y = maximal(logs(p, rows), logs(q, rows), np.zeros(rows, int), keys=keys, positions=[0] * rows)
    assert (y == 0).mean() == pytest.approx(0.75, abs=0.014)
    left = np.maximum(q - p, 0)
    assert (y[y > 0] < 128).mean() == pytest.approx(left[:128].sum() / left.sum(), abs=0.015)


def test_what_is_no_law_or_cannot_have_been_drawn_is_refused():
    key = [NoiseKey(0, 0, 0, 0, purpose="maximal/a")]
    law = np.zeros((1, 2))
    with pytest.raises(ValueError, match="`tokens` must be ids that p can draw, got 1 in row 0"):
        maximal(np.array([[0.0, -np.inf]]), law, [1], keys=key, positions=[0])
    with pytest.raises(ValueError, match="must be ids that p can draw, got 2"):
        maximal(law, law, [2], keys=key, positions=[0])
    with pytest.raises(ValueError, match="`tokens` must be one a row"):
        maximal(law, law, [0, 0], keys=key, positions=[0])
    with pytest.raises(ValueError, match="both alike"):
        maximal(law, np.zeros((1, 3)), [0], keys=key, positions=[0])
    with pytest.raises(LogitsError, match="must not be NaN"):
        maximal(law, np.array([[np.nan, 0.0]]), [0], keys=key, positions=[0])


def test_twins_of_a_parent_share_coins_and_forks_of_a_twin_never_meet_them():
    turns = [Turn(0, None, None, 1, "s") for _ in range(3)]
    parent = Episode(Task("t"), 0, 0, turns, 0.0, True, False)
    fork = Fork(parent, 1, coupling="maximal")
    child = Episode(Task("t"), 0, 0, turns, 0.0, True, False, fork=fork)
    of_parent = {
        maximal_stream(own).purpose
        for own in (fork, Fork(parent, 1, alternative=1), Fork(parent, 2))
    }
    assert of_parent == {"maximal"}
    assert maximal_stream(Fork(child, 1)).purpose == "maximal/1.0.shared.resample"
