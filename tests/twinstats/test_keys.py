from itertools import product

import numpy as np
import pytest

from twinstats.episodes import DIFFERENT, FRESH, KEEP, SHARED, Episode, Fork, Task, Turn
from twinstats.keys import FACTUAL, Stream, Streams, episode_streams, fork_streams, rejection
from twinstats.noise import NoiseKey, gumbel, uniform


def episode(fork=None, slots=(None,) * 4):
    turns = [Turn(0, None, None, 1, f"s{i}", slot) for i, slot in enumerate(slots)]
    return Episode(Task("t"), 9, 4, turns, 1.0, True, False, fork=fork)


F = episode()


def child(parent, turn, **fields):
    return episode(Fork(parent, turn, **fields))


S0, S1 = child(F, 1), child(F, 1, alternative=1)
R0, R1 = child(F, 1, luck=FRESH), child(F, 1, luck=FRESH, alternative=1)
J1, J2 = child(F, 1, luck=1), child(F, 1, luck=2)
J1_EARLIER = child(F, 0, luck=1)
K, KR, KJ = (
    child(F, 1, action=KEEP),
    child(F, 1, action=KEEP, luck=FRESH),
    child(F, 1, action=KEEP, luck=1),
)
X = child(F, 1, action=(3, 14))
XR = child(F, 1, action=(3, 14), luck=FRESH)
D0 = child(F, 1, action=DIFFERENT)

# Hand-labelled: which stream drives the decision at the fork turn, the tail, the environment.
# Equal labels are the same stream; all others differ, across columns too.
TABLE = {
    "factual": (F, None, "sample", "env"),
    "shared 0": (S0, "alt 0", "sample", "env"),
    "shared 1": (S1, "alt 1", "sample", "env"),
    "fresh 0": (R0, "alt 0", "R0 tail", "R0 env"),
    "fresh 1": (R1, "alt 1", "R1 tail", "R1 env"),
    "luck 1": (J1, "draw 1", "draw 1", "env 1"),
    "luck 2": (J2, "draw 2", "draw 2", "env 2"),
    "luck 1 at an earlier turn": (J1_EARLIER, "draw 1", "draw 1", "env 1"),
    "keep": (K, "alt 0", "sample", "env"),
    "keep, fresh": (KR, "alt 0", "KR tail", "KR env"),
    "keep, luck 1": (KJ, "draw 1", "draw 1", "env 1"),
    "action": (X, "alt 0", "sample", "env"),
    "action, fresh": (XR, "alt 0", "XR tail", "XR env"),
    "different": (D0, "alt 0", "sample", "env"),
    "shared of shared": (child(S0, 2), "S0 alt 0", "sample", "env"),
    "shared 1 of shared": (child(S0, 2, alternative=1), "S0 alt 1", "sample", "env"),
    "shared of shared 1": (child(S1, 2), "S1 alt 0", "sample", "env"),
    "fresh of shared": (child(S0, 2, luck=FRESH), "S0 alt 0", "S0R tail", "S0R env"),
    "luck 1 of shared": (child(S0, 2, luck=1), "S0 draw 1", "S0 draw 1", "S0 env 1"),
    "shared of fresh": (child(R0, 2), "R0 alt 0", "R0 tail", "R0 env"),
    "fresh of fresh": (child(R0, 2, luck=FRESH), "R0 alt 0", "R0R tail", "R0R env"),
    "luck 1 of fresh": (child(R0, 2, luck=1), "R0 draw 1", "R0 draw 1", "R0 env 1"),
    "shared of luck 1": (child(J1, 2), "J1 alt 0", "draw 1", "env 1"),
    "fresh of luck 1": (child(J1, 2, luck=FRESH), "J1 alt 0", "J1R tail", "J1R env"),
    "luck 1 of luck 1": (child(J1, 2, luck=1), "J1 draw 1", "J1 draw 1", "J1 env 1"),
    "luck 2 of luck 1": (child(J1, 2, luck=2), "J1 draw 2", "J1 draw 2", "J1 env 2"),
    "keep of fresh": (child(R0, 2, action=KEEP), "R0 alt 0", "R0 tail", "R0 env"),
    "shared of keep": (child(K, 2), "K alt 0", "sample", "env"),
    "shared of action": (child(X, 2), "X alt 0", "sample", "env"),
    "same turn again": (child(R0, 1), "R0 alt 0", "R0 tail", "R0 env"),
    "shared of shared of fresh": (child(child(R0, 2), 3), "R0S alt 0", "R0 tail", "R0 env"),
    "fresh of shared of luck 1": (
        child(child(J1, 2), 3, luck=FRESH),
        "J1S alt 0",
        "J1SR tail",
        "J1SR env",
    ),
}


def test_streams_are_shared_exactly_as_the_table_says():
    labelled = [
        (f"{name}, {column}", label, stream)
        for name, (one, *labels) in TABLE.items()
        for column, label, stream in zip(
            ("decision", "tail", "environment"),
            labels,
            (lambda s: (s.decision, s.tail, s.environment))(episode_streams(one)),
            strict=True,
        )
    ]
    for (name, label, stream), (other, other_label, other_stream) in product(labelled, repeat=2):
        assert (stream == other_stream) == (label == other_label), (name, other)


def test_streams_that_differ_never_share_a_value():
    streams = {
        stream
        for one, *_ in TABLE.values()
        for stream in (lambda s: (s.decision, s.tail, s.environment))(episode_streams(one))
        if stream is not None
    }
    values = [
        float(value)
        for stream in streams
        for slot in range(3)
        for value in uniform(stream.key(1, 9, 4, slot), 0, np.arange(2))
    ]
    assert len(set(values)) == len(values) == 6 * len(streams)


def test_the_names_of_the_streams_are_those_of_the_design():
    nested = Fork(R0, 2, luck=FRESH, alternative=3)
    assert fork_streams(Fork(F, 2, alternative=4)) == Streams(
        Stream("alternative", 5), Stream("sample"), Stream("environment")
    )
    assert fork_streams(nested) == Streams(
        Stream("alternative/1.0.fresh.resample", 4),
        Stream("fresh/1.0.fresh.resample/2.3.fresh.resample"),
        Stream("environment/1.0.fresh.resample/2.3.fresh.resample"),
    )
    assert fork_streams(Fork(R0, 2, luck=6)) == Streams(
        Stream("draw/1.0.fresh.resample", 6),
        Stream("draw/1.0.fresh.resample", 6),
        Stream("environment/1.0.fresh.resample", 6),
    )
    assert fork_streams(Fork(F, 2, action=(5, 6), luck=FRESH)).tail == Stream("fresh/2.0.fresh.5,6")
    assert episode_streams(F) == FACTUAL == Streams(None, Stream("sample"), Stream("environment"))


def test_a_stream_becomes_the_key_of_a_slot():
    assert Stream("draw", 2).key(7, 3, 5, 11) == NoiseKey(7, 3, 5, 11, 2, "draw")


def test_slots_line_twins_up_after_a_part_of_another_length():
    factual = episode(slots=(0, 1, 2, 64, 65))
    twin = episode(Fork(factual, 0), slots=(0, 64, 65))
    keys = [
        episode_streams(one).tail.key(7, one.step, one.row, one.slot(turn))
        for one, turn in ((factual, 3), (twin, 1))
    ]
    assert keys[0] == keys[1]
    assert gumbel(keys[0], 3, [8]) == gumbel(keys[1], 3, [8])
    counter = episode(Fork(factual, 0), slots=(None, None, None))
    assert episode_streams(counter).tail.key(7, 9, 4, counter.slot(1)) != keys[0]


def test_rejected_tries_have_streams_of_their_own():
    stream = Stream("alternative", 2)
    assert rejection(stream, 0) == stream
    assert rejection(stream, 3) == Stream("alternative~3", 2)


def test_a_fork_without_a_number_has_no_streams():
    with pytest.raises(ValueError, match="`alternative` must be a number"):
        fork_streams(Fork(F, 1, alternative=None))


def test_a_negative_alternative_cannot_reach_a_stream():
    with pytest.raises(ValueError, match="`alternative` must be at least 0"):
        Fork(F, 1, luck=SHARED, alternative=-1)
