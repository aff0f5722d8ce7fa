"""Tails that forks share: who plays, what the others take over, and who pays."""

import pytest

from tests.trainer.conftest import Script, coin, scripted
from trainer.tasks import ToolError
from twinstats.episodes import FRESH, KEEP, RESAMPLE, Fork, Task
from twinstats.rows import is_equal_decision

TASK = Task("t", {"right": "a.", "turns": 4})
B = (98, 98, 46)


class Reversed(Script):
    """Plays the last session first."""

    def run(self, sessions, *, temperature):
        super().run(sessions[::-1], temperature=temperature)


def played(*, share=None, engine=Script, forks=None, exact=True):
    """The twins of two episodes, three alternatives a turn, and how many turns were sampled."""
    rollout, _, _ = scripted(coin, is_random=True)
    episodes = rollout.play([TASK], 2, 1)
    rollout.engine, rollout.exact_replay = engine(coin), exact
    asked = (forks or every_fork)(episodes, share)
    return rollout.fork(asked), sum(map(len, rollout.engine.keys))


def every_fork(episodes, share):
    return [
        Fork(e, t, RESAMPLE, alternative=k, skip_equal=share)
        for k in range(4)
        for e in episodes
        for t in range(4)
    ]


def told(twin):
    return (
        [(t.action, t.slot, t.reward, t.info["shown"]) for t in twin.turns],
        (twin.outcome, twin.success, twin.terminated, twin.final_state),
    )


def decided(twin):
    return (twin.fork.episode, twin.fork.turn, twin.turns[twin.fork.turn].action)


def test_what_is_taken_over_is_what_would_have_been_played():
    shared, few = played()
    own, many = played(share=False)
    assert [told(twin) for twin in shared] == [told(twin) for twin in own]
    assert few == sum(twin.num_turns - twin.fork.turn for twin in payers(shared)) + sum(
        1 for twin in shared if twin not in payers(shared)
    )
    assert few < many == sum(twin.num_turns - twin.fork.turn for twin in own)
    assert all(one.fork.path == other.fork.path for one, other in zip(shared, own, strict=True))


def payers(twins):
    """The first twin of each decision that is not the factual's."""
    first = {}
    for twin in twins:
        if not is_equal_decision(twin):
            first.setdefault(decided(twin), twin)
    return list(first.values())


def test_the_first_asked_pays_the_tail_and_the_others_their_decision():
    twins, _ = played()
    assert 8 <= len(payers(twins)) < sum(not is_equal_decision(twin) for twin in twins)
    for twin in twins:
        costs = [turn.num_tokens for turn in twin.turns[twin.fork.turn :]]
        assert twin.sampled == (sum(costs) if twin in payers(twins) else costs[0])


def test_who_comes_first_changes_nothing():
    (forward, few), (backward, as_few) = played(), played(engine=Reversed)
    assert [told(twin) for twin in forward] == [told(twin) for twin in backward]
    assert [twin.sampled for twin in forward] == [twin.sampled for twin in backward]
    assert few == as_few


def test_a_decision_keeps_its_own_numbers():
    """A named decision has no log-probability; the resampled one that it is equal to has."""

    def forks(episodes, share):
        drawn = Fork(episodes[0], 1, alternative=1)
        return [drawn, Fork(episodes[0], 1, coined), Fork(episodes[0], 1, alternative=1)]

    (probe,), _ = played(forks=lambda e, share: [Fork(e[0], 1, alternative=1)])
    coined = probe.turns[1].action
    assert not is_equal_decision(probe)
    (drawn, named, _), _ = played(forks=forks)
    assert drawn.turns[1].action == named.turns[1].action
    assert drawn.turns[1].logprob == -1 and len(drawn.turns[1].info["logprobs"]) == len(coined)
    assert named.turns[1].logprob is None and named.turns[1].info["logprobs"] is None
    assert named.sampled == 0 and drawn.sampled > len(coined)
    assert told(drawn) == told(named)


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [({}, True), ({"luck": FRESH}, False), ({"luck": 2}, False), ({"skip_equal": False}, False)],
)
def test_only_shared_luck_shares_a_tail(options, is_shared):
    def forks(episodes, share):
        return [
            Fork(episodes[0], 0, B, **options),
            Fork(episodes[0], 0, RESAMPLE, **options),
        ]

    rollout, _, _ = scripted(lambda session, key, index: "a.")
    (parent,) = rollout.play([TASK], 1, 0)
    rollout.engine = Script(lambda session, key, index: "bb.")
    rollout.fork(forks([parent], None))
    assert sum(map(len, rollout.engine.keys)) == (4 if is_shared else 7)


def test_tails_are_played_where_replays_were_not_exact():
    _, few = played(exact=True)
    twins, many = played(exact=False)
    assert few < many == sum(twin.num_turns - twin.fork.turn for twin in twins)


def test_kept_decisions_and_copies_of_a_fork_are_played_each():
    def forks(episodes, share):
        twin = Fork(episodes[0], 0, B)
        return [twin, twin, Fork(episodes[0], 0, B), *[Fork(episodes[0], 0, KEEP)] * 2]

    twins, drawn = played(forks=forks)
    assert drawn == 5 * 3
    assert len({id(twin) for twin in twins}) == 5
    assert told(twins[0]) == told(twins[1]) == told(twins[2])
    assert [twin.sampled for twin in twins[:2]] == [sum(map(len_of, twins[0].turns[1:]))] * 2


def len_of(turn):
    return turn.num_tokens


def test_a_tail_that_fails_fails_for_all_that_share_it():
    def broken(turn, text):
        if turn == 3 and is_broken:
            raise ToolError("no answer")
        return text

    is_broken = False
    rollout, _, _ = scripted(lambda *_: "a.", drift=broken)
    (parent,) = rollout.play([TASK], 1, 0)
    is_broken = True
    rollout.engine = Script(lambda *_: "bb.")
    twins = rollout.fork([Fork(parent, 0, alternative=k) for k in range(3)])
    assert {twin.info["reason"] for twin in twins} == {"a tool failed: no answer"}
    assert [twin.outcome for twin in twins] == [None] * 3
    assert [twin.sampled for twin in twins] == [9, 3, 3]
    assert len({id(twin.info) for twin in twins}) == 3
