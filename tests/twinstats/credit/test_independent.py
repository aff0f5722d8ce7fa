import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.episodes import FRESH, RESAMPLE, Group, Task


@pytest.mark.parametrize("twins", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_independent_branches_are_unbiased_by_enumeration(tiny, unchecked, twins):
    """With equal decisions taken as difference 0, which is the part that wants a proof."""
    total, equal = {}, 0
    for tape in tiny.Tape():
        world = tiny.World(tape, limit=2)
        episode = world.episode()
        method = make("independent", twins=twins)
        (credit,) = assign(world, [Group(Task("tiny"), [episode], 3, 0)], method)
        truth = world.truth(episode)
        for turn, value, exact in zip(episode.turns, credit.values[0], truth, strict=True):
            place = (turn.state, turn.action)
            total[place] = total.get(place, 0.0) + tape.weight * (value - exact)
        equal += sum(fork.outcome == episode.outcome for fork in credit.info["forks"])
    assert len(total) == 8
    assert equal > 0
    np.testing.assert_allclose(list(total.values()), 0.0, atol=1e-12)


def test_independent_by_hand(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1)), scripted(0.5, (1,), row=1)], 0, 0)
    world = scripted_world(lambda fork: 0.25 * fork.turn + fork.alternative)
    (credit,) = assign(world, [group], make("independent", twins=2))
    assert [values.tolist() for values in credit.values] == [[0.5, 0.25], [0.0]]
    kinds = {(f.action, f.luck, f.takes_equal_tail()) for f in world.calls[0]}
    assert kinds == {(RESAMPLE, FRESH, True)}


def test_the_decisions_are_those_that_twice_draws(tiny):
    world = tiny.World(tiny.RealNoise(), limit=3)
    groups = [Group(Task("t"), [world.episode(row=row) for row in range(30)], 3, 0)]
    played = {
        name: assign(world, groups, make(name, twins=2))[0].info["forks"]
        for name in ("twice", "independent")
    }
    tails = 0
    for twin, branch in zip(played["twice"], played["independent"], strict=True):
        turn = twin.fork.turn
        assert (turn, twin.fork.alternative) == (branch.fork.turn, branch.fork.alternative)
        assert twin.turns[turn].action == branch.turns[turn].action
        tails += twin.outcome != branch.outcome
    assert tails > 10


def test_without_deduplication_every_branch_plays_its_tail(scripted, scripted_world):
    """Outcome 1 against branches that all end at .25: .75 at each turn, and no fork may skip."""
    group = Group(Task("t"), [scripted(1.0, (0, 1))], 0, 0)
    for dedup in (True, False):
        method = make("independent", dedup=dedup)
        (credit,) = assign(scripted_world(lambda fork: 0.25), [group], method)
        assert credit.values[0].tolist() == [0.75, 0.75]
        assert [fork.fork.takes_equal_tail() for fork in credit.info["forks"]] == [dedup] * 2
