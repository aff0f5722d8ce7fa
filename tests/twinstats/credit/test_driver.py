import dataclasses

import numpy as np
import pytest

from twinstats.credit import METHODS, Need, assign, make
from twinstats.credit.registry import Entry, Method
from twinstats.episodes import DIFFERENT, FRESH, KEEP, Credit, Episode, Fork, Group, Task, Turn


def method(function, **entry):
    return Method("example", Entry(function=function, **entry), {})


def zeros(group, **info):
    return Credit(
        episodes=group.episodes, values=[np.zeros(e.num_turns) for e in group.episodes], info=info
    )


@pytest.fixture
def groups(scripted):
    rows = iter(range(20))
    return [
        Group(Task(name), [scripted(1.0, (0, 1, 1), row=next(rows), task=name) for _ in "ab"], 0, 0)
        for name in ("x", "y", "z")
    ]


def test_groups_go_on_in_lockstep_with_one_call_a_round(groups, scripted_world):
    """Groups that stop early, ask for nothing, or never fork do not hold the others up."""

    def rounds(group):
        number = {"x": 1, "y": 3, "z": 0}[group.task.id]
        seen = []
        for k in range(number):
            wanted = [] if (group.task.id, k) == ("y", 1) else [Fork(group.episodes[0], k)]
            seen.append(len((yield wanted)))
        return zeros(group, seen=seen)

    world = scripted_world(lambda fork: 0.0)
    credits = assign(world, groups, method(rounds))
    assert [credit.info["seen"] for credit in credits] == [[1], [1, 0, 1], []]
    calls = [[(f.episode.task.id, f.turn) for f in call] for call in world.calls]
    assert calls == [[("x", 0), ("y", 0)], [("y", 2)]]
    assert [len(credit.info["forks"]) for credit in credits] == [1, 2, 0]


@pytest.mark.parametrize("group_first", [True, False])
def test_episodes_come_back_in_the_shape_asked(groups, scripted_world, group_first):
    def nested(group):
        a, b = group.episodes
        (one, (), [[two]]), three, four = yield [
            (Fork(a, 0), (), [[Fork(b, 2)]]),
            Fork(a, 1),
            Fork(b, 1, luck=FRESH),
        ]
        bare = yield Fork(a, 2, KEEP)
        asked = [e.fork for e in (one, two, three, four, bare)]
        expected = [(a, 0), (b, 2), (a, 1), (b, 1), (a, 2)]
        assert [(fork.episode, fork.turn) for fork in asked] == expected
        return zeros(group)

    order = groups if group_first else groups[::-1]
    assert len(assign(scripted_world(lambda fork: 0.0), order, method(nested))) == 3


def test_the_second_round_may_fork_what_the_first_gave(groups, scripted_world):
    def deeper(group):
        (child,) = yield [Fork(group.episodes[0], 1)]
        (leaf,) = yield [Fork(child, 2)]
        assert leaf.path == "1.0.shared.resample/2.0.shared.resample"
        return zeros(group)

    credits = assign(scripted_world(lambda fork: 0.0), groups, method(deeper))
    assert [len(credit.info["forks"]) for credit in credits] == [2, 2, 2]


def test_alternatives_left_open_are_numbered_by_parent_and_turn(groups, scripted_world):
    def opened(group):
        a, b = group.episodes
        forks = [
            Fork(a, 0, alternative=None),
            Fork(a, 0, alternative=None),
            Fork(b, 0, alternative=None),
            Fork(a, 1, alternative=4),
            Fork(a, 1, alternative=None),
            Fork(a, 2, luck=1, alternative=None),
            Fork(a, 2, luck=2, alternative=None),
        ]
        played = yield forks
        again = yield [Fork(a, 0, alternative=None)]
        numbers = [episode.fork.alternative for episode in [*played, *again]]
        assert numbers == [0, 1, 0, 4, 5, 0, 0, 2]
        return zeros(group)

    assign(scripted_world(lambda fork: 0.0), groups, method(opened))


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_same_fork_twice_is_refused(groups, scripted_world, rounds):
    def twice_over(group):
        fork = Fork(group.episodes[0], 1, luck=FRESH, alternative=3)
        same = Fork(group.episodes[0], 1, luck=FRESH, alternative=3, skip_equal=True)
        if rounds == 1:
            yield [fork, [same]]
        yield [fork]
        yield [same]

    with pytest.raises(ValueError, match="fork '1.3.fresh.resample' of episode 0/0 .* twice"):
        assign(scripted_world(lambda fork: 0.0), groups, method(twice_over))


SAME = [
    ({}, {}),
    ({}, {"coupling": "maximal"}),
    ({}, {"skip_equal": True}),
    ({"luck": 2}, {"luck": np.int64(2)}),
    ({"action": KEEP}, {"action": KEEP, "alternative": 0}),
    ({"action": DIFFERENT, "luck": FRESH}, {"action": DIFFERENT, "luck": FRESH}),
    ({"action": (3, 14)}, {"action": [3, 14]}),
    ({"action": (3, 14), "luck": FRESH}, {"action": np.array([3, 14]), "luck": FRESH}),
    ({"action": 3}, {"action": (3,)}),
    ({"alternative": None}, {"alternative": 0}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
@pytest.mark.parametrize("shape", ["list", "nested", "later", "through a child"])
def test_a_fork_is_the_same_by_parent_turn_action_luck_and_alternative(
    groups, scripted_world, unchecked, one, other, shape
):
    """Whatever list or round it is asked in; neither coupling nor skipping makes it another."""

    def asks(group):
        parent = group.episodes[0]
        if shape == "through a child":
            parent = yield Fork(parent, 0, luck=FRESH)
        forks = [Fork(parent, 1, **one), Fork(parent, 1, **other)]
        if shape == "later":
            yield forks[:1]
            yield forks[1:]
        yield [forks[:1], [[], [forks[1:]]]] if shape == "nested" else forks

    world = scripted_world(lambda fork: 0.0)
    with pytest.raises(ValueError, match="^The fork '.*1[.]0[.].*' of episode .* asked for twice"):
        assign(world, groups, method(asks))
    assert len(world.calls) == (shape in ("later", "through a child"))  # refused before its round


OTHER = [
    {"turn": 2},
    {"luck": FRESH},
    {"luck": 1},
    {"alternative": 1},
    {"action": KEEP},
    {"action": DIFFERENT},
    {"action": (0,)},
    {"action": (0, 1)},
    {"alternative": None},  # numbered 1: 0 is taken
]


def test_forks_that_differ_in_any_of_these_are_not_the_same(groups, scripted_world):
    """KEEP and the parent's own ids are two: with fresh luck they are two tails."""

    def asks(group):
        a, b = group.episodes
        played = yield [Fork(**{"episode": a, "turn": 1} | other) for other in [{}, *OTHER]]
        yield [Fork(b, 1), *(Fork(child, 1) for child in played if child.fork.turn == 1)]
        return zeros(group)

    for credit in assign(scripted_world(lambda fork: 0.0), groups, method(asks)):
        forks = credit.info["forks"]
        assert len({fork.name for fork in forks}) == len(forks) == 2 * len(OTHER) + 2


def test_one_fork_may_be_asked_for_by_two_groups(groups, scripted_world):
    """Each generator has its own; both get an episode."""

    def asks(group):
        fork = yield Fork(group.episodes[0], 1, luck=FRESH)
        return zeros(group, path=fork.path)

    world = scripted_world(lambda fork: 0.0)
    credits = assign(world, [groups[0], groups[0]], method(asks))
    assert [credit.info["path"] for credit in credits] == ["1.0.fresh.resample"] * 2
    (first,), (second,) = (credit.info["forks"] for credit in credits)
    assert first is not second and first.name == second.name
    assert len(world.calls[0]) == 2
    assign(world, groups[:1], method(asks))  # and by a later call


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "1.0.shared.resample"),
        ({"luck": FRESH, "alternative": 2}, "1.2.fresh.resample"),
        ({"luck": 4, "action": KEEP}, "1.0.4.keep"),
        ({"action": (3, 14)}, "1.0.shared.3,14"),
    ],
)
def test_a_fork_asked_for_twice_is_named_in_one_sentence(groups, scripted_world, options, path):
    def asks(group):
        yield [Fork(group.episodes[1], 1, **options)] * 2

    with pytest.raises(ValueError) as error:
        assign(scripted_world(lambda fork: 0.0), groups, method(asks))
    assert str(error.value) == f"The fork '{path}' of episode 0/1 was asked for twice."


def test_a_world_that_answers_short_is_refused(groups, scripted_world):
    world = scripted_world(lambda fork: 0.0)
    answer = world.fork
    world.fork = lambda forks: answer(forks)[:-1]
    with pytest.raises(ValueError, match="asked for 18 forks and played 17"):
        assign(world, groups, make("twice"))


class Providing:
    """Provides `gap` everywhere, and nothing else."""

    def __init__(self, world):
        self.world, self.asked = world, []

    def play(self, tasks, rollouts, step):
        raise AssertionError("factuals are given")

    def fork(self, forks):
        return self.world.fork(forks)

    def provide(self, need, episodes):
        self.asked.append((need, [episode.name for episode in episodes]))
        for episode in episodes if need == "gap" else ():
            episode.info[need] = 1.0


def needy(group):
    assert all("gap" in episode.info for episode in group.episodes)
    (fork,) = yield [Fork(group.episodes[0], 0)]
    return zeros(group, on_fork="gap" in fork.info)


@pytest.mark.parametrize("forks", [False, True])
def test_needs_are_provided_before_any_group_starts(groups, scripted_world, forks):
    """For all groups in one call; on forks as well only where the need says so."""
    world = Providing(scripted_world(lambda fork: 0.0))
    credits = assign(world, groups, method(needy, needs=(Need("gap", forks=forks),)))
    everything = [episode.name for group in groups for episode in group.episodes]
    assert world.asked[0] == ("gap", everything)
    assert len(world.asked) == 1 + forks
    assert [credit.info["on_fork"] for credit in credits] == [forks] * 3


def test_a_need_that_is_not_met_names_method_and_need(groups, scripted_world):
    world = Providing(scripted_world(lambda fork: 0.0))
    with pytest.raises(ValueError, match="'example' needs 'teacher', which the world did not"):
        assign(world, groups, method(needy, needs=(Need("teacher"),)))


def test_groups_that_all_have_size_one_are_refused(scripted, scripted_world):
    alone = [Group(Task(n), [scripted(1.0, task=n)], 0, 0) for n in "abc"]
    for name in ("rloo", "grpo"):
        with pytest.raises(ValueError, match=f"'{name}' compares.*all groups have size 1 \\(3 of"):
            assign(scripted_world(), alone, make(name))
        pair = Group(Task("d"), [scripted(1.0), scripted(0.0)], 0, 0)
        credits = assign(scripted_world(), [*alone, pair], make(name))
        assert np.isnan(credits[0].values[0]).all()
        assert not np.isnan(credits[3].values[0]).any()
    assert len(assign(scripted_world(lambda fork: 0.0), alone, make("twice"))) == 3


@pytest.mark.parametrize("outcome", [-np.inf, np.inf])
def test_an_outcome_that_is_no_finite_number_is_refused(groups, scripted_world, outcome):
    """Of a factual or a fork: it would make the whole group's credit NaN without a word."""
    with pytest.raises(ValueError, match="episode 0/0/0.0.shared.resample must be a finite"):
        assign(scripted_world(lambda fork: outcome), groups[:1], make("twice"))
    (group,) = groups[:1]
    wrong = [group.episodes[0], dataclasses.replace(group.episodes[1], outcome=outcome)]
    for name in METHODS:
        with pytest.raises(ValueError, match=r"The outcome of episode 0/1 must be a finite number"):
            assign(scripted_world(), [Group(group.task, wrong, 0, 0)], make(name))


def test_a_group_without_episodes_is_refused(scripted_world):
    for name in METHODS:
        with pytest.raises(ValueError, match="group of task 'x' has no episodes"):
            assign(scripted_world(), [Group(Task("x"), [], 0, 0)], make(name))


def test_what_a_method_returns_is_the_credit_of_its_group(groups, scripted_world):
    def nothing(group):
        yield [Fork(group.episodes[0], 0)]

    def reordered(group):
        return zeros(dataclasses.replace(group, episodes=group.episodes[::-1]))

    world = scripted_world(lambda fork: 0.0)
    with pytest.raises(ValueError, match="'example' must return `Credit`, got NoneType"):
        assign(world, groups, method(nothing))
    with pytest.raises(ValueError, match="'example' must credit its group's episodes, in their"):
        assign(world, groups, method(reordered))


def test_no_groups_are_no_work(scripted_world):
    for name in METHODS:
        assert assign(scripted_world(), [], make(name)) == []


def test_what_a_method_does_over_the_step_is_done_once(groups, scripted_world):
    calls = []

    def finish(credits):
        calls.append(len(credits))
        return credits[::-1]

    credits = assign(scripted_world(), groups, method(zeros, finish=finish))
    assert calls == [3]
    assert [credit.episodes[0].task.id for credit in credits] == ["z", "y", "x"]


def test_rows_in_another_order_get_the_same_credit(tiny):
    """Bit for bit, whatever the order of the rows that members and groups are made from."""
    world = tiny.World(tiny.RealNoise(), limit=3)
    episodes = world.play([Task("a"), Task("b")], 5, 0)
    rng = np.random.default_rng(0)
    for name in ("grpo", "rloo", "twice", "independent", "vine"):
        found = []
        for _ in range(3):
            made = [Group(Task(n), [e for e in episodes if e.task.id == n], 3, 0) for n in "ab"]
            credits = assign(world, made, make(name))
            found.append(
                {
                    episode.name: values.tobytes()
                    for credit in credits
                    for episode, values in zip(credit.episodes, credit.values, strict=True)
                }
            )
            rng.shuffle(episodes)
        assert found[0] == found[1] == found[2], name


def test_a_method_may_return_forks_to_train(scripted, scripted_world):
    def both(group):
        (fork,) = yield [Fork(group.episodes[0], 0)]
        return Credit(episodes=[group.episodes[0], fork], values=[np.ones(1), np.zeros(1)])

    group = Group(Task("t"), [scripted(1.0)], 0, 0)
    (credit,) = assign(scripted_world(lambda fork: 0.0), [group], method(both))
    assert credit.episodes[1] is credit.info["forks"][0]


def test_a_fork_that_failed_is_an_episode_like_any_other(groups, scripted_world):
    def patient(group):
        (fork,) = yield [Fork(group.episodes[0], 0)]
        return zeros(group, outcome=fork.outcome)

    world = scripted_world(lambda fork: None if fork.episode.task.id == "y" else 0.5)
    credits = assign(world, groups, method(patient))
    assert [credit.info["outcome"] for credit in credits] == [0.5, None, 0.5]
    assert isinstance(credits[1].info["forks"][0], Episode)
    assert isinstance(credits[1].info["forks"][0].turns[0], Turn)
