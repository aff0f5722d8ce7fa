import numpy as np
import pytest

from twinstats.credit import Budget, assign, make
from twinstats.episodes import FRESH, KEEP, RESAMPLE, SHARED, Fork, Group, Task
from twinstats.errors import UsageError


def bias(tiny, method, *, rows=1, limit=2, world_options=None):
    """Sum of credit - A by (turn, state, action), each over all draws of the world's noise."""
    total, mass, leaves = {}, {}, 0
    for tape in tiny.Tape():
        world = tiny.World(tape, limit=limit, **(world_options or {}))
        episodes = [world.episode(row=row) for row in range(rows)]
        (credit,) = assign(world, [Group(Task("tiny"), episodes, 3, 0)], method())
        truth = world.truth(episodes[0])
        for turn, value, exact in zip(episodes[0].turns, credit.values[0], truth, strict=True):
            place = (turn.state, turn.action)
            total[place] = total.get(place, 0.0) + tape.weight * (value - exact)
            mass[place] = mass.get(place, 0.0) + tape.weight
        leaves += 1
    return np.array([total[place] / mass[place] for place in total]), leaves


@pytest.mark.parametrize(("twins", "limit"), [(1, 2), (2, 2), (1, 3)])
def test_twice_is_unbiased_for_the_advantage_by_enumeration(tiny, unchecked, twins, limit):
    found, leaves = bias(tiny, lambda: make("twice", twins=twins), limit=limit)
    assert len(found) >= 8
    assert leaves > 40
    np.testing.assert_allclose(found, 0.0, atol=1e-12)


def test_twice_is_unbiased_with_slots_by_enumeration(tiny):
    """A slot that is a function of the history may rename turns as it likes."""
    options = {"slots": lambda turn, history: 10 * turn + (len(history) and history[-1][0])}
    found, _ = bias(tiny, lambda: make("twice"), world_options=options)
    np.testing.assert_allclose(found, 0.0, atol=1e-12)


def test_choosing_twins_by_outcome_would_be_caught(tiny):
    """The enumeration has teeth: leaving out twins of won episodes is biased."""

    def spoil(fork):
        return fork.episode.outcome > 3

    total = {}
    for tape in tiny.Tape():
        world = tiny.World(tape, fails=spoil)
        episode = world.episode()
        (credit,) = assign(world, [Group(Task("tiny"), [episode], 3, 0)], make("twice"))
        for turn, value, exact in zip(
            episode.turns, credit.values[0], world.truth(episode), strict=True
        ):
            if not np.isnan(value):
                place = (turn.state, turn.action)
                total[place] = total.get(place, 0.0) + tape.weight * (value - exact)
    assert max(abs(value) for value in total.values()) > 0.03


def test_twice_by_hand(scripted, scripted_world):
    """Credit is the outcome minus the mean of its own turn's twins."""
    group = Group(Task("t"), [scripted(1.0, (0, 1)), scripted(0.5, (1,), row=1)], 0, 0)
    table = {(0, 0, 0): 0.0, (0, 0, 1): 1.0, (0, 1, 0): 0.25, (0, 1, 1): 0.25, (1, 0, 0): 2.0}
    world = scripted_world(
        lambda fork: table.get((fork.episode.row, fork.turn, fork.alternative), 0.0)
    )
    (credit,) = assign(world, [group], make("twice", twins=2))
    assert [values.tolist() for values in credit.values] == [[0.5, 0.75], [-0.5]]
    assert len(world.calls) == 1
    assert {(f.action, f.luck, f.skip_equal) for f in world.calls[0]} == {(RESAMPLE, SHARED, None)}
    assert credit.info["failed_turns"] == 0


def test_failed_twins_are_left_out_and_counted(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1, 1))], 0, 0)
    world = scripted_world(
        lambda fork: None if fork.turn == 1 or fork.alternative == 0 else float(fork.turn)
    )
    (credit,) = assign(world, [group], make("twice", twins=2))
    np.testing.assert_array_equal(credit.values[0], [1.0, np.nan, -1.0])
    assert credit.info["failed_turns"] == 1


def test_a_failed_factual_is_null_everywhere(scripted, scripted_world):
    group = Group(Task("t"), [scripted(None, (0, 1)), scripted(1.0, row=1)], 0, 0)
    (credit,) = assign(scripted_world(lambda fork: 0.25), [group], make("twice"))
    np.testing.assert_array_equal(credit.values[0], [np.nan, np.nan])
    assert credit.values[1].tolist() == [0.75]


def test_equal_decisions_cost_their_turn_and_differ_by_nothing(tiny):
    for tape in tiny.Tape():
        world = tiny.World(tape)
        episode = world.episode()
        (credit,) = assign(world, [Group(Task("tiny"), [episode], 3, 0)], make("twice"))
        for fork, value in zip(credit.info["forks"], credit.values[0], strict=True):
            turn = fork.fork.turn
            if fork.turns[turn].action == episode.turns[turn].action:
                assert value == 0.0
                assert fork.sampled == episode.turns[turn].num_tokens


def test_a_replayed_factual_ends_as_it_did(tiny):
    world = tiny.World(tiny.RealNoise(), limit=3)

    for row in range(40):
        episode = world.episode(row=row)
        for turn in range(episode.num_turns):
            (null,) = world.fork([Fork(episode, turn, KEEP)])
            assert null.outcome == episode.outcome
            assert [t.action for t in null.turns] == [t.action for t in episode.turns]


def test_options_without_a_meaning_are_refused(scripted):
    group = Group(Task("t"), [scripted(1.0)], 0, 0)
    with pytest.raises(ValueError, match="`twins` must be at least 1 without a budget, got 0"):
        make("twice", twins=0)(group)


@pytest.mark.parametrize("option", ["mixing", "coupling"])
def test_an_unknown_word_is_refused_by_name(scripted, unchecked, option):
    group = Group(Task("t"), [scripted(1.0)], 0, 0)
    with pytest.raises(UsageError, match=f"Unknown {option} 'gumbul'"):
        make("twice", **{option: "gumbul"})(group)


# --- with a budget, over the coin ------------------------------------------------------------


def budgeted(tiny, scripted, install, share, **options):
    """Per state the sum of (credit - A) * score; per (state, action) the sum of credit - A."""
    budget = Budget(ratio=5 * share, fresh=0.0, null=0.0)
    gradient, total = {}, {}
    for tape in tiny.Tape():
        install(tape, 4 if share == 0.25 else 2)
        world = tiny.World(tape)
        other = scripted(4.0 * tape.draw("other", 2), row=1, task="tiny", tokens=0)
        other.turns.clear()
        episode = world.episode()
        group = Group(Task("tiny"), [episode, other], 3, 0)
        (credit,) = assign(world, [group], make("twice", budget=budget, **options))
        truth = world.truth(episode)
        for turn, value, exact in zip(episode.turns, credit.values[0], truth, strict=True):
            score = turn.action - tiny.probability(turn.state)
            gradient.setdefault(turn.state, []).append(tape.weight * score * (value - exact))
            place = (turn.state, turn.action)
            total.setdefault(place, []).append(tape.weight * (value - exact))
    return {h: sum(v) for h, v in gradient.items()}, {h: sum(v) for h, v in total.items()}


@pytest.mark.parametrize("share", [0.25, 0.5, 1.5])
def test_plain_mixing_is_unbiased_for_the_gradient(
    tiny, scripted, unchecked, enumerated_coin, share
):
    gradient, total = budgeted(tiny, scripted, enumerated_coin, share)
    np.testing.assert_allclose(list(gradient.values()), 0.0, atol=1e-12)
    if share < 1:  # and not for A: a turn without a twin has the group's baseline
        assert max(abs(value) for value in total.values()) > 0.05


@pytest.mark.parametrize("share", [0.25, 0.5, 1.5])
def test_augmented_mixing_is_unbiased_for_the_advantage(
    tiny, scripted, unchecked, enumerated_coin, share
):
    gradient, total = budgeted(tiny, scripted, enumerated_coin, share, mixing="augmented")
    np.testing.assert_allclose(list(gradient.values()), 0.0, atol=1e-12)
    np.testing.assert_allclose(list(total.values()), 0.0, atol=1e-12)


def test_turns_without_a_twin_take_the_groups_baseline(scripted, scripted_world):
    episodes = [scripted(1.0, (0, 1, 0, 1), row=0), scripted(0.0, (1, 1), row=1)]
    group = Group(Task("t"), episodes, 0, 0)
    for mixing in ("plain", "augmented"):
        method = make("twice", budget=Budget(ratio=2.5), mixing=mixing)
        (credit,) = assign(scripted_world(lambda fork: 0.5), [group], method)
        counts = set()
        for planned in credit.info["plan"]:
            value = credit.values[planned.episode.row][planned.turn]
            baseline = 1.0 if planned.episode.row == 0 else -1.0
            difference = planned.episode.outcome - 0.5
            counts.add(planned.count)
            assert planned.probability == 0.5
            if not planned.count:
                assert value == baseline
            elif mixing == "plain":
                assert value == difference
            else:
                assert value == baseline + (difference - baseline) / 0.5
        assert counts == {0, 1}


def test_a_group_of_one_is_null_only_where_it_has_no_twin(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1, 0, 1, 1, 0))], 0, 0)
    method = make("twice", budget=Budget(ratio=2.5))
    (credit,) = assign(scripted_world(lambda fork: 0.0), [group], method)
    expected = [1.0 if planned.count else np.nan for planned in credit.info["plan"]]
    np.testing.assert_array_equal(credit.values[0], expected)
    assert np.isnan(expected).any()
    for options in ({}, {"budget": Budget(ratio=5.0)}):  # a twin for certain needs no baseline
        method = make("twice", mixing="augmented", **options)
        (credit,) = assign(scripted_world(lambda fork: 0.0), [group], method)
        assert credit.values[0].tolist() == [1.0] * 6


def test_no_budget_is_rloo_bit_for_bit(tiny):
    world = tiny.World(tiny.RealNoise(), limit=3)
    episodes = world.play([Task("a"), Task("b"), Task("c")], 5, 0)
    groups = [
        Group(e.task, episodes[i : i + 5], 3, 0) for i, e in enumerate(episodes) if i % 5 == 0
    ]
    for name in ("twice", "independent"):
        method = make(name, budget=Budget(ratio=0.0))
        for step in range(3):
            credits = assign(world, groups, method)
            for one, other in zip(credits, assign(world, groups, make("rloo")), strict=True):
                for left, right in zip(one.values, other.values, strict=True):
                    assert left.tobytes() == right.tobytes()
            method.observe(step, credits)
    assert world.calls == []


def test_controls_repeat_the_decision_of_their_twin(scripted, scripted_world):
    group = Group(Task("t"), [scripted(1.0, (0, 1, 1), row=r) for r in range(40)], 0, 0)
    world = scripted_world(lambda fork: 0.0)
    assign(world, [group], make("twice", budget=Budget(ratio=10.0, fresh=0.5, null=0.5)))
    kinds = {}
    for fork in world.calls[0]:
        kinds.setdefault((fork.action, fork.luck), []).append(fork)
    twins = {(f.episode.row, f.turn, f.alternative) for f in kinds[(RESAMPLE, SHARED)]}
    controls = {(f.episode.row, f.turn, f.alternative) for f in kinds[(RESAMPLE, FRESH)]}
    assert set(kinds) == {(RESAMPLE, SHARED), (RESAMPLE, FRESH), (KEEP, SHARED)}
    assert controls < twins
    assert all(not fork.takes_equal_tail() for fork in kinds[(RESAMPLE, FRESH)])
    assert {fork.turn for fork in kinds[(KEEP, SHARED)]} == {0, 1}  # the last turn has no tail
