"""The forms of TWICE and of its control: what each claims, by enumeration, and by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from twinstats.credit import Budget, assign, make
from twinstats.credit._twin_forks import TwinForm
from twinstats.credit.baseline import leave_one_out
from twinstats.episodes import DIFFERENT, FRESH, KEEP, SHARED, Fork, Group, Task

ROUNDING = 1e-12


def zero(sums):
    np.testing.assert_allclose(list(sums.values()), 0.0, atol=ROUNDING)


def largest(sums):
    return max(abs(value) for value in sums.values())


class Decided:
    """Answers each fork with the decision and the outcome that `script(fork)` gives."""

    def __init__(self, scripted, script):
        self.scripted, self.script, self.calls = scripted, script, []

    def play(self, tasks, rollouts, step):
        raise AssertionError("factuals are given")

    def provide(self, need, episodes):
        raise AssertionError("nothing is needed")

    def fork(self, forks):
        self.calls.append(list(forks))
        return [self._played(fork) for fork in forks]

    def _played(self, fork):
        action, outcome = self.script(fork)
        actions = [turn.action for turn in fork.episode.turns]
        actions[fork.turn] = action
        return self.scripted(outcome, actions, row=fork.episode.row, fork=fork)


def likely(episode, *logprobs):
    """The episode with these log-probabilities."""
    turns = [replace(t, logprob=p) for t, p in zip(episode.turns, logprobs, strict=True)]
    return replace(episode, turns=turns)


def group_of(*episodes):
    return Group(Task("task"), list(episodes), 0, 0)


# --- two-sided ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("twice", {"twins": 1}),
        ("twice", {"twins": 2}),
        ("twice", {"twins": 1, "draws": 1}),
        ("independent", {"twins": 1}),
        pytest.param("independent", {"twins": 2}, marks=pytest.mark.slow),
        pytest.param("twice", {"twins": 3}, marks=pytest.mark.slow),
    ],
)
def test_every_world_of_a_two_sided_group_is_unbiased(tiny, unchecked, name, options):
    """For A at the factual's places and at the twins'; the shares make one policy gradient."""
    found = tiny.enumerated(lambda: make(name, two_sided=True, **options))
    assert len(found.factual) == len(found.forks) == 8
    zero(found.factual)
    zero(found.forks)
    zero(found.gradient)
    assert largest(found.unshared) > 0.05  # without shares the gradient counts K + 1 times


def test_two_sided_credit_costs_no_further_token(tiny, unchecked):
    one, two = (tiny.enumerated(lambda s=s: make("twice", twins=2, two_sided=s)) for s in (0, 1))
    assert one.tokens == two.tokens > 0
    assert one.forks == {}


def test_two_sided_by_hand(scripted, scripted_world):
    """K = 2, outcomes 1 | 0, .5: each minus the mean of the other two, a third each.

    1 - .25 = .75;  0 - .75 = -.75;  .5 - .5 = 0. At turn 1 both twins end with 1: all exactly 0.
    """
    factual = scripted(1.0, (0, 1))
    table = {(0, 0): 0.0, (0, 1): 0.5, (1, 0): 1.0, (1, 1): 1.0}
    world = scripted_world(lambda fork: table[fork.turn, fork.alternative])
    (credit,) = assign(world, [group_of(factual)], make("twice", twins=2, two_sided=True))
    assert credit.episodes == [factual, *credit.info["forks"]]
    nan = np.nan
    expected = [[0.75, 0.0], [-0.75, nan], [0.0, nan], [nan, 0.0], [nan, 0.0]]
    np.testing.assert_array_equal(credit.values, expected)
    third = 1 / 3
    assert [own.tolist() for own in credit.share] == [
        [third, third],
        [third, 1.0],
        [third, 1.0],
        [1.0, third],
        [1.0, third],
    ]


def test_two_sided_branches_are_compared_as_siblings(scripted, scripted_world):
    """The original's comparison: each of n siblings minus the mean of its others."""
    ends = [0.25, 3.0, 0.5]
    world = scripted_world(lambda fork: ends[fork.alternative])
    method = make("independent", twins=3, two_sided=True, dedup=False)
    (credit,) = assign(world, [group_of(scripted(1.0))], method)
    siblings = leave_one_out(np.array([1.0, *ends]))
    np.testing.assert_allclose(np.concatenate(credit.values), siblings, rtol=1e-14)


@pytest.mark.parametrize("name", ["twice", "independent"])
def test_two_sided_credit_of_the_factuals_is_the_one_sided(tiny, name):
    world = tiny.World(tiny.RealNoise(), limit=3)
    group = Group(Task("t"), [world.episode(row=row) for row in range(20)], 3, 0)
    one, two = (
        assign(world, [group], make(name, twins=3, two_sided=s))[0].values for s in (False, True)
    )
    assert [v.tobytes() for v in one] == [v.tobytes() for v in two[:20]]
    assert len(two) == 20 + 3 * sum(episode.num_turns for episode in group.episodes)


def test_twins_with_the_factuals_decision_have_its_credit(tiny, unchecked):
    seen = 0
    for tape in tiny.Tape():
        world = tiny.World(tape)
        episode = world.episode()
        (credit,) = assign(
            world, [Group(Task("t"), [episode], 3, 0)], make("twice", twins=2, two_sided=True)
        )
        for twin, values in zip(credit.episodes[1:], credit.values[1:], strict=True):
            turn = twin.fork.turn
            if twin.turns[turn].action == episode.turns[turn].action:
                assert values[turn] == credit.values[0][turn]
                seen += values[turn] != 0
    assert seen > 20


def test_failed_twins_are_not_trained(scripted, scripted_world):
    """One of two twins failed: two worlds, a half each; both failed: null, and nothing to share."""
    world = scripted_world(lambda fork: None if fork.turn or fork.alternative else 0.25)
    (credit,) = assign(
        world, [group_of(scripted(1.0, (0, 1)))], make("twice", twins=2, two_sided=True)
    )
    np.testing.assert_array_equal(credit.values, [[0.75, np.nan], [-0.75, np.nan]])
    assert [own.tolist() for own in credit.share] == [[0.5, 1.0], [0.5, 1.0]]
    assert credit.info["failed_turns"] == 1


def test_two_sided_turns_without_a_twin_keep_the_groups_baseline(scripted, scripted_world):
    group = group_of(scripted(1.0, (0, 1) * 4), scripted(0.0, (0, 1), row=1))
    method = make("twice", two_sided=True, budget=Budget(ratio=2.5, fresh=0.0, null=0.0))
    (credit,) = assign(scripted_world(lambda fork: 0.25), [group], method)
    counts = [planned.count for planned in credit.info["plan"]]
    values, share = np.concatenate(credit.values[:2]), np.concatenate(credit.share[:2])
    assert set(counts) == {0, 1} and len(credit.episodes) == 2 + sum(counts)
    for count, planned, value, part in zip(counts, credit.info["plan"], values, share, strict=True):
        first = planned.episode.row == 0
        assert part == (0.5 if count else 1.0)
        assert value == ((0.75 if first else -0.25) if count else (1.0 if first else -1.0))


# --- different ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("twice", 2),
        ("twice", 3),
        ("independent", 2),
        pytest.param("independent", 3, marks=pytest.mark.slow),
    ],
)
def test_forced_alternatives_are_unbiased_with_their_factor(tiny, unchecked, name, limit):
    found = tiny.enumerated(lambda: make(name, different=True), limit=limit)
    assert len(found.factual) >= 8
    zero(found.factual)
    zero(found.gradient)


def test_forced_alternatives_without_the_factor_are_biased(tiny, unchecked, monkeypatch):
    """For A, and for the policy gradient too: what is left out depends on the action."""
    monkeypatch.setattr(TwinForm, "weight", lambda self, planned: 1.0)
    found = tiny.enumerated(lambda: make("twice", different=True))
    assert largest(found.factual) > 0.05
    assert largest(found.gradient) > 0.01


def test_forced_alternatives_by_hand(scripted):
    """pi = .25: (1 - .25) * (1 - .5) = .375; pi = .9: .1 * (1 - 0) = .1."""
    factual = likely(scripted(1.0, (0, 1)), math.log(0.25), math.log(0.9))
    for name, luck in (("twice", SHARED), ("independent", FRESH)):
        world = Decided(scripted, lambda fork: (7, 0.5 - fork.turn / 2))
        (credit,) = assign(world, [group_of(factual)], make(name, different=True))
        np.testing.assert_allclose(credit.values[0], [0.375, 0.1], rtol=1e-15)
        assert {(f.action, f.luck) for f in world.calls[0]} == {(DIFFERENT, luck)}


def test_where_nothing_else_is_likely_nothing_is_played(scripted):
    """1 - pi = 2e-6, .5e-6 and 0 (even a log-probability that rounding took above 0)."""
    logprobs = [math.log1p(-2e-6), math.log1p(-0.5e-6), 0.0, 1e-12]
    factual = likely(scripted(1.0, (0,) * 4), *logprobs)
    world = Decided(scripted, lambda fork: (7, 0.0))
    budget = Budget(ratio=20.0, fresh=1.0, null=1.0)
    for options in ({}, {"budget": budget}):
        method = make("twice", different=True, **options)
        (credit,) = assign(world, [group_of(factual)], method)
        np.testing.assert_allclose(credit.values[0], [2e-6, 0, 0, 0], rtol=1e-9)
        assert credit.values[0][1:].tolist() == [0.0] * 3
        assert {fork.turn for fork in world.calls[-1]} == {0}
        assert credit.info["failed_turns"] == 0
        method.observe(0, [credit])


@pytest.mark.parametrize("missing", [None, math.nan])
@pytest.mark.parametrize("name", ["twice", "independent"])
def test_forced_alternatives_need_the_turns_probability(scripted, name, missing):
    group = group_of(likely(scripted(1.0, (0, 1)), -1.0, missing))
    with pytest.raises(ValueError, match="`different` needs `Turn.logprob`.*turn 1 of episode 0/0"):
        make(name, different=True)(group)


def test_a_turn_without_a_twin_needs_no_probability(scripted, scripted_world):
    group = group_of(scripted(1.0, (0, 1)), scripted(0.0, row=1))
    (credit,) = assign(
        scripted_world(), [group], make("twice", different=True, budget=Budget(ratio=0.0))
    )
    assert credit.values[0].tolist() == [1.0, 1.0]


# --- luck draws ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draws", "options", "limit"),
    [
        (1, {}, 2),
        (1, {"different": True}, 2),
        pytest.param(2, {}, 2, marks=pytest.mark.slow),
        pytest.param(1, {"twins": 2}, 2, marks=pytest.mark.slow),
    ],
)
def test_luck_draws_keep_the_credit_unbiased(tiny, unchecked, draws, options, limit):
    found = tiny.enumerated(lambda: make("twice", draws=draws, **options), limit=limit)
    assert len(found.factual) == 8
    zero(found.factual)
    assert found.leaves > 60


def test_leaving_out_replays_by_their_outcome_would_be_caught(tiny, unchecked):
    """The enumeration sees the second luck too: without replayed losers it is biased."""

    class Spoilt(tiny.World):
        def fork(self, forks):
            return [self._spoilt(episode) for episode in super().fork(forks)]

        def _spoilt(self, episode):
            lost = episode.fork.luck == 1 and episode.fork.action is not KEEP
            return replace(episode, outcome=None) if lost and episode.outcome < 5 else episode

    found = tiny.enumerated(lambda: make("twice", draws=1), world_type=Spoilt)
    assert largest(found.factual) > 0.01


def test_luck_draws_by_hand(scripted):
    """Twins 5, 6, 5 and the kept 0, under the factual's luck and two others.

    Shared: 1 - mean(0, .5, 0) = 5/6. Luck 1: .5 - mean(1, 0, 1) = -1/6. Luck 2: all .5, so 0.
    Mean 2/9. Decision 5 is replayed once a luck for both twins: 2 * (1 + 2) replays.
    """
    shared = {0: (5, 0.0), 1: (6, 0.5), 2: (5, 0.0)}
    lucky = {(1, KEEP): 0.5, (1, 5): 1.0, (1, 6): 0.0}

    def script(fork):
        if fork.luck is SHARED:
            return shared[fork.alternative]
        action = 0 if fork.action is KEEP else fork.action
        return action, lucky.get((fork.luck, fork.action), 0.5)

    world = Decided(scripted, script)
    method = make("twice", twins=3, draws=2)
    (credit,) = assign(world, [group_of(scripted(1.0, (0,)))], method)
    assert credit.values[0].tolist() == [pytest.approx(2 / 9, rel=1e-15)]
    asked = [(fork.luck, fork.action) for fork in world.calls[1]]
    assert asked == [(luck, action) for luck in (1, 2) for action in (KEEP, 5, 6)]
    assert len(credit.info["forks"]) == 3 + 6  # all of them are auxiliary cost
    assert [len(own) for own in credit.info["twins"]] == [3]


def test_an_equal_decision_counts_under_every_luck(scripted):
    """Twins 0 (equal) and 5. Shared: 1 - mean(1, 0) = .5. Luck 1: .5 - mean(.5, 0) = .25."""

    def script(fork):
        if fork.luck is SHARED:
            return (5, 0.0) if fork.alternative else (0, 1.0)
        return (0, 0.5) if fork.action is KEEP else (5, 0.0)

    world = Decided(scripted, script)
    method = make("twice", twins=2, draws=1)
    (credit,) = assign(world, [group_of(scripted(1.0, (0,)))], method)
    assert credit.values[0].tolist() == [0.375]
    assert [fork.action for fork in world.calls[1]] == [KEEP, 5]


def test_equal_decisions_are_not_replayed(scripted, scripted_world):
    world = scripted_world(lambda fork: 1.0)
    (credit,) = assign(world, [group_of(scripted(1.0, (0, 1)))], make("twice", twins=2, draws=3))
    assert credit.values[0].tolist() == [0.0, 0.0]
    assert len(credit.info["forks"]) == 4
    assert len(world.calls) == 1


def test_failed_replays_leave_the_other_lucks(scripted):
    """Luck 1: the kept decision failed; luck 2: the twin; luck 3: 1 - .25; shared: 1 - 0."""

    def script(fork):
        if fork.luck is SHARED:
            return 5, 0.0
        if fork.luck == 3:
            return (0, 1.0) if fork.action is KEEP else (5, 0.25)
        return fork.action if fork.action == 5 else 0, (
            None if (fork.luck == 1) == (fork.action is KEEP) else 9.0
        )

    (credit,) = assign(
        Decided(scripted, script), [group_of(scripted(1.0, (0,)))], make("twice", draws=3)
    )
    assert credit.values[0].tolist() == [0.875]


def test_a_twin_that_failed_is_not_replayed(scripted):
    def script(fork):
        if fork.luck is SHARED:
            return 5 + fork.alternative, None if fork.alternative else 0.0
        return 5 if fork.action == 5 else 0, 0.25

    world = Decided(scripted, script)
    method = make("twice", twins=2, draws=1)
    (credit,) = assign(world, [group_of(scripted(1.0, (0,)))], method)
    assert credit.values[0].tolist() == [0.5]
    assert [fork.action for fork in world.calls[1]] == [KEEP, 5]


def test_more_lucks_vary_less(tiny):
    """Same decisions, more luck: over 80 episodes the mean square falls."""
    world = tiny.World(tiny.RealNoise(), limit=3)
    group = Group(Task("t"), [world.episode(row=row) for row in range(80)], 3, 0)
    squares = []
    for draws in (0, 3):
        (credit,) = assign(world, [group], make("twice", draws=draws))
        errors = [
            v - a
            for e, values in zip(group.episodes, credit.values, strict=True)
            for v, a in zip(values, world.truth(e), strict=True)
        ]
        squares.append(np.mean(np.square(errors)))
    assert squares[1] < squares[0]


# --- duplicate alternatives ---------------------------------------------------------------------


def test_a_decision_drawn_twice_under_shared_luck_is_played_once(tiny, unchecked):
    """The second twin costs its decision; it ends as it would have, had it been played."""
    duplicates = 0
    for tape in tiny.Tape():
        world = tiny.World(tape)
        episode = world.episode()
        method = make("twice", twins=2)
        (credit,) = assign(world, [Group(Task("t"), [episode], 3, 0)], method)
        saved = {"equal": 0, "duplicate": 0}
        for twins in credit.info["twins"]:
            turn, decided = twins[0].fork.turn, {}
            for twin in twins:
                (alone,) = world.fork([replace(twin.fork, skip_equal=False)])
                assert (alone.outcome, alone.num_turns) == (twin.outcome, twin.num_turns)
                action = twin.turns[turn].action
                own = twin.turns[turn].num_tokens
                tail = alone.sampled - own
                if action == episode.turns[turn].action:
                    assert twin.sampled == own
                    saved["equal"] += tail
                elif action in decided:
                    assert twin.sampled == own
                    saved["duplicate"] += tail
                    duplicates += tail > 0
                else:
                    assert twin.sampled == alone.sampled
                    decided[action] = twin
        assert credit.info["saved_equal_tokens"] == saved["equal"]
        assert credit.info["saved_duplicate_tokens"] == saved["duplicate"]
    assert duplicates > 10


def test_branches_with_fresh_luck_share_no_tail_but_the_factuals(tiny):
    world = tiny.World(tiny.RealNoise(), limit=3)
    group = Group(Task("t"), [world.episode(row=row) for row in range(40)], 3, 0)
    (credit,) = assign(world, [group], make("independent", twins=3))
    assert credit.info["saved_duplicate_tokens"] == 0
    assert credit.info["saved_equal_tokens"] > 0
    (credit,) = assign(world, [group], make("independent", twins=3, dedup=False))
    assert credit.info["saved_equal_tokens"] == 0


# --- maximal coupling ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "limit"), [({}, 2), ({"twins": 2}, 2), ({"two_sided": True}, 2), ({}, 3)]
)
def test_a_maximal_coupling_is_unbiased(tiny, unchecked, options, limit):
    found = tiny.enumerated(
        lambda: make("twice", coupling="maximal", **options), limit=limit, chance=tiny.swayed
    )
    assert len(found.factual) >= 8
    zero(found.factual)
    zero(found.forks)
    zero(found.gradient)


def test_a_maximal_coupling_follows_the_slots(tiny, unchecked):
    slots = {"slots": lambda turn, history: 10 * turn + (len(history) and history[-1][0])}
    found = tiny.enumerated(lambda: make("twice", coupling="maximal"), chance=tiny.swayed, **slots)
    zero(found.factual)


def test_keeping_the_factuals_decisions_always_would_be_caught(tiny, unchecked):
    class Stubborn(tiny.World):
        def _keeps(self, *given):
            return True

    found = tiny.enumerated(
        lambda: make("twice", coupling="maximal"), world_type=Stubborn, chance=tiny.swayed
    )
    assert largest(found.factual) > 0.01


def test_a_maximal_coupling_keeps_as_often_as_can_be(tiny):
    """After action 1 (no early end) p = (1/3, 2/3), after 0 q = (1/2, 1/2): kept with 5/6."""
    kept = mass = 0.0
    for tape in tiny.Tape():
        world = tiny.World(tape, chance=tiny.swayed)
        episode = world.episode()
        if episode.turns[0].action == 1 and episode.num_turns == 2:
            (twin,) = world.fork([Fork(episode, 0, 0, coupling="maximal")])
            kept += tape.weight * (twin.turns[1].action == episode.turns[1].action)
            mass += tape.weight
    assert kept / mass == pytest.approx(5 / 6, rel=1e-14)


def test_the_coupling_is_asked_for(scripted, scripted_world):
    world = scripted_world(lambda fork: 0.0)
    assign(world, [group_of(scripted(1.0, (0, 1)))], make("twice", coupling="maximal"))
    assert {fork.coupling for fork in world.calls[0]} == {"maximal"}


# --- control variate ----------------------------------------------------------------------------


class Mixed:
    """The tiny world for its own episodes; others' forks end as their task's info says."""

    def __new__(cls, tiny, scripted):
        class World(tiny.World):
            def _forked(self, fork, played):
                ends = fork.episode.task.info.get("twin")
                if ends is None:
                    return super()._forked(fork, played)
                return scripted(ends, (0,), row=fork.episode.row, fork=fork)

        return World


def varied(tiny, scripted, other, twin_ends):
    """The tiny episode beside a scripted one, and a second group from which beta comes."""

    def groups(tape, world):
        mate = scripted(other(tape), row=1, task="tiny", tokens=0)
        mate.turns.clear()
        task = Task("second", {"twin": twin_ends})
        second = [replace(scripted(float(row), row=row), task=task) for row in (0, 1)]
        return [
            Group(Task("tiny"), [world.episode(), mate], 3, 0),
            Group(task, second, 3, 0),
        ]

    return tiny.enumerated(
        lambda: make("twice", control_variate=True),
        groups=groups,
        world_type=Mixed(tiny, scripted),
    )


# Second group: outcomes 0 and 1, B = -1 and 1; twins end with t: D = -t and 1 - t,
# B - D = t - 1 and t. beta = (1 - t + t) / ((t - 1)^2 + t^2) = 1 / (2t^2 - 2t + 1), at most 1.
BETAS = {0.0: 1.0, 2.0: 0.2, 4.0: 0.04}


@pytest.mark.parametrize("twin_ends", [0.0, 2.0, 4.0])
def test_a_control_variate_is_unbiased_for_the_gradient_and_not_for_the_advantage(
    tiny, scripted, unchecked, twin_ends
):
    found = varied(tiny, scripted, lambda tape: 4.0 * tape.draw("other", 2), twin_ends)
    zero(found.gradient)
    if BETAS[twin_ends] == 1.0:
        zero(found.factual)
    else:
        assert largest(found.factual) > 0.05


def test_a_control_variate_with_the_true_value_is_unbiased_for_the_advantage(
    tiny, scripted, unchecked
):
    """b = V(h_0): no bias at turn 0; at turn 1 b is not V, and there is."""
    found = varied(tiny, scripted, lambda tape: tiny.value((), 2), 2.0)
    zero({place: error for place, error in found.factual.items() if not place[0]})
    assert largest({place: error for place, error in found.factual.items() if place[0]}) > 0.05


@pytest.mark.parametrize("name", ["twice", "independent"])
def test_a_control_variate_by_hand(scripted, scripted_world, name):
    """beta of the first group from the second, .2, and of the second from the first.

    First: outcomes 1 and .5, B = .5 and -.5; twins end with 0: D = 1 and .5, B - D = -.5 and -1.
    beta = (.5 * -.5 + -.5 * -1) / (.25 + 1) = .2. Credits: .2 * 1 + .8 * .5 = .6, and
    .2 * .5 - .8 * .5 = -.3; the second's .2 * -2 - .8 = -1.2 and .2 * -1 + .8 = .6.
    """
    first = group_of(scripted(1.0), scripted(0.5, row=1))
    second = group_of(scripted(0.0, row=2), scripted(1.0, row=3))
    world = scripted_world(lambda fork: 2.0 * (fork.episode.row > 1))
    credits = assign(world, [first, second], make(name, control_variate=True))
    np.testing.assert_allclose(np.concatenate(credits[0].values), [0.6, -0.3], rtol=1e-14)
    np.testing.assert_allclose(np.concatenate(credits[1].values), [-1.2, 0.6], rtol=1e-14)
    assert [credit.info["beta"] for credit in credits] == pytest.approx([0.2, 0.2], rel=1e-14)


def test_the_coefficient_is_the_published_ratio_of_moments(scripted, scripted_world):
    """beta = (Cov(F, T) + tau^2) / (Var T + tau^2) about b, here b = 0: sum F T / sum T^2."""
    pairs = [(2.0, 1.0), (1.0, 3.0), (-1.0, 1.0), (0.5, 2.0)]
    beta = sum(f * t for f, t in pairs) / sum(t * t for _, t in pairs)
    groups = [
        group_of(scripted(f, row=row), scripted(0.0, (), row=9)) for row, (f, _) in enumerate(pairs)
    ]
    own = group_of(scripted(1.0, row=7), scripted(0.0, row=8))
    world = scripted_world(
        lambda fork: dict(enumerate(t for _, t in pairs)).get(fork.episode.row, 0.0)
    )
    credits = assign(world, [*groups, own], make("twice", control_variate=True))
    assert credits[-1].info["beta"] == pytest.approx(beta, rel=1e-14)


def test_a_group_says_nothing_about_its_own_coefficient(scripted, scripted_world):
    """The second group's values move with its outcomes through B and D alone."""
    rest = [group_of(scripted(1.0), scripted(0.5, row=1))] * 2
    betas = set()
    for outcome in (0.0, 1e3, 1 / 3):
        own = group_of(scripted(outcome, row=2), scripted(1.0, row=3))
        world = scripted_world(lambda fork: 2.0 * (fork.episode.row > 1))
        credits = assign(world, [rest[0], own, rest[1]], make("twice", control_variate=True))
        betas.add(credits[1].info["beta"])
    assert len(betas) == 1


def test_without_another_group_the_coefficient_is_one(scripted, scripted_world):
    group = group_of(scripted(1.0, (0, 1)), scripted(0.5, row=1))
    plain, varied = (
        assign(scripted_world(lambda fork: 0.25), [group], make("twice", control_variate=c))[0]
        for c in (False, True)
    )
    assert [v.tolist() for v in plain.values] == [v.tolist() for v in varied.values]
    assert varied.info["beta"] == 1.0


def test_a_coefficient_of_zero_is_rloo(scripted, scripted_world):
    """Twins that moved against their factuals: sum B (B - D) < 0, and beta stays within [0, 1]."""
    group = group_of(scripted(1.0, (0, 1)), scripted(0.5, row=1))
    adverse = group_of(scripted(1.0, row=2), scripted(0.0, row=3))
    # B = 1 and -1; twins end with -1 and 2: D = 2 and -2, B (B - D) = -1 and -1.
    world = scripted_world(lambda fork: {2: -1.0, 3: 2.0}.get(fork.episode.row, 0.25))
    credits = assign(world, [group, adverse], make("twice", control_variate=True))
    (plain,) = assign(world, [group], make("rloo"))
    assert credits[0].info["beta"] == 0.0
    assert [v.tolist() for v in credits[0].values] == [v.tolist() for v in plain.values]


def test_a_group_of_one_has_no_baseline_to_mix_with(scripted, scripted_world):
    groups = [group_of(scripted(1.0)), group_of(scripted(1.0, row=1), scripted(0.5, row=2))]
    world = scripted_world(lambda fork: 0.25)
    credits = assign(world, groups, make("twice", control_variate=True))
    assert credits[0].values[0].tolist() == [0.75]
    assert credits[1].info["beta"] == 1.0


def test_a_control_variate_goes_with_a_budget(scripted, scripted_world):
    """Turns without a twin keep B; `finish` gets the budget's memory and leaves it alone."""
    groups = [
        group_of(scripted(1.0, (0, 1) * 4), scripted(0.0, (0,) * 4, row=row)) for row in (1, 2)
    ]
    method = make("twice", control_variate=True, budget=Budget(ratio=2.5, fresh=0.0, null=0.0))
    credits = assign(scripted_world(lambda fork: 2.0), groups, method)
    for credit in credits:
        beta = credit.info["beta"]
        assert 0 < beta < 1
        for planned in credit.info["plan"]:
            base = 1.0 if planned.episode.num_turns == 8 else -1.0
            difference = planned.episode.outcome - 2.0
            index = next(i for i, e in enumerate(credit.episodes) if e is planned.episode)
            value = credit.values[index][planned.turn]
            expected = beta * difference + (1 - beta) * base if planned.count else base
            assert value == pytest.approx(expected, rel=1e-14)


# --- what the forms have in common --------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"twins": 3},
        {"twins": 3, "two_sided": True},
        {"different": True},
        {"draws": 2, "twins": 3},
        {"coupling": "maximal"},
        {"control_variate": True},
    ],
)
def test_equal_outcomes_have_no_credit(scripted, options):
    episodes = [likely(scripted(0.1, (0, 0), row=row), -1.0, -2.0) for row in range(3)]
    world = Decided(
        scripted, lambda fork: (0 if fork.action is KEEP else 5 + (fork.alternative or 0), 0.1)
    )
    groups = [group_of(*episodes), group_of(*episodes)]
    for credit in assign(world, groups, make("twice", **options)):
        values = np.concatenate(credit.values)
        assert values[~np.isnan(values)].tolist() == [0.0] * (~np.isnan(values)).sum()
        assert credit.info["zero_variance"] is True


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"two_sided": True, "different": True}, "`two_sided` excludes `different`"),
        ({"two_sided": True, "control_variate": True}, "`two_sided` excludes `control_variate`"),
        ({"mixing": "augmented", "two_sided": True}, "'augmented' excludes `two_sided`"),
        ({"mixing": "augmented", "control_variate": True}, "'augmented' excludes `control_var"),
        ({"draws": 2, "coupling": "maximal"}, "`draws` excludes `coupling` 'maximal'.*got 2"),
        ({"draws": -1}, "`draws` must be at least 0 and finite, got -1"),
    ],
)
def test_options_that_exclude_each_other_are_refused(scripted, options, sentence):
    group = group_of(scripted(1.0))
    with pytest.raises(ValueError, match=sentence) as error:
        make("twice", **options)(group)
    assert "\n" not in str(error.value)
    if not {"draws", "coupling"} & set(options):
        with pytest.raises(ValueError, match=sentence):
            make("independent", **options)(group)


# --- forms under the random budget --------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"two_sided": True}, 0.5),
        ({"two_sided": True}, 1.5),
        ({"different": True}, 0.5),
        ({"draws": 1}, 0.5),
    ],
)
def test_forms_under_a_budget_are_unbiased_for_the_gradient(
    tiny, scripted, unchecked, enumerated_coin, options, share
):
    budget = Budget(ratio=5 * share, fresh=0.0, null=0.0)

    def groups(tape, world):
        enumerated_coin(tape, 2)
        mate = scripted(4.0 * tape.draw("other", 2), row=1, task="tiny", tokens=0)
        mate.turns.clear()
        return [Group(Task("tiny"), [world.episode(), mate], 3, 0)]

    found = tiny.enumerated(lambda: make("twice", budget=budget, **options), groups=groups)
    zero(found.gradient)
    if share < 1:
        assert largest(found.factual) > 0.05


@pytest.mark.parametrize("options", [{"different": True}, {"draws": 1}])
def test_augmented_forms_are_unbiased_for_the_advantage(
    tiny, scripted, unchecked, enumerated_coin, options
):
    budget = Budget(ratio=2.5, fresh=0.0, null=0.0)

    def groups(tape, world):
        enumerated_coin(tape, 2)
        mate = scripted(4.0 * tape.draw("other", 2), row=1, task="tiny", tokens=0)
        mate.turns.clear()
        return [Group(Task("tiny"), [world.episode(), mate], 3, 0)]

    method = {"budget": budget, "mixing": "augmented"} | options
    zero(tiny.enumerated(lambda: make("twice", **method), groups=groups).factual)
