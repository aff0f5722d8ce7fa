"""A world small enough to enumerate: every draw of a keyed atom is a branch of a tape.

Two actions a turn, at most `limit` turns; action 1 with a bad environment draw ends the episode
early, so that the length depends on luck. Decisions and environment draw from the very streams
that `twinstats.keys` names. `truth` is a recursion over histories and knows nothing of forks.
"""

from types import SimpleNamespace

import jaxtyping
import pytest

from twinstats.episodes import KEEP, RESAMPLE, Episode, Task, Turn
from twinstats.keys import episode_streams, fork_streams
from twinstats.noise import uniform


class Tape:
    """Visits every combination of draws once; `draw` branches on a key not seen before."""

    def __init__(self):
        self._digits = []
        self._seen = {}

    def draw(self, key, base):
        if key not in self._seen:
            if len(self._seen) == len(self._digits):
                self._digits.append([0, base])
            digit, known_base = self._digits[len(self._seen)]
            assert known_base == base
            self._seen[key] = digit
        return self._seen[key]

    def __iter__(self):
        while True:
            self._seen = {}
            yield self
            del self._digits[len(self._seen) :]
            while self._digits and self._digits[-1][0] + 1 == self._digits[-1][1]:
                self._digits.pop()
            if not self._digits:
                return
            self._digits[-1][0] += 1

    @property
    def weight(self):
        result = 1.0
        for _, base in self._digits[: len(self._seen)]:
            result /= base
        return result


class RealNoise:
    """The draws that the house's noise gives."""

    def draw(self, key, base):
        return int(uniform(key, 0) * base)


def probability(history):
    """Chance of action 1: a half, or 2/3 after a lucky turn."""
    return 2 / 3 if history and history[-1][1] == 1 else 1 / 2


def ends(history, limit):
    return len(history) == limit or history[-1] == (1, 0)


def outcome(history):
    earned = sum((2 * turn + 1 - 3 * luck) * action for turn, (action, luck) in history)
    return float(earned + len(history) ** 2)


def scored(history):
    return outcome(list(enumerate(history)))


def value(history, limit):
    chance = probability(history)
    return chance * quality(history, 1, limit) + (1 - chance) * quality(history, 0, limit)


def quality(history, action, limit):
    total = 0.0
    for luck in (0, 1):
        after = (*history, (action, luck))
        total += (scored(after) if ends(after, limit) else value(after, limit)) / 2
    return total


class TinyWorld:
    """The world; `fails` says of a fork whether it breaks, `slots` names turns."""

    def __init__(self, noise, *, limit=2, seed=3, fails=lambda fork: False, slots=None):
        self.noise, self.limit, self.seed = noise, limit, seed
        self.fails, self.slots = fails, slots
        self.calls, self.provided = [], []

    def play(self, tasks, rollouts, step):
        rows = iter(range(len(tasks) * rollouts))
        return [self.episode(task, next(rows), step) for task in tasks for _ in range(rollouts)]

    def episode(self, task=None, row=0, step=0):
        episode = Episode(task or Task("tiny"), step, row, [], None, True, False)
        return self._filled(episode, [], ())

    def fork(self, forks):
        self.calls.append(list(forks))
        return [self._forked(fork) for fork in forks]

    def provide(self, need, episodes):
        self.provided.append((need, list(episodes)))
        for episode in episodes:
            episode.info[need] = len(episode.turns)

    def truth(self, episode):
        result = []
        for turn in episode.turns:
            history, action = turn.state, turn.action
            result.append(quality(history, action, self.limit) - value(history, self.limit))
        return result

    def _forked(self, fork):
        parent = fork.episode
        child = Episode(parent.task, parent.step, parent.row, [], None, True, False, fork=fork)
        if self.fails(fork):
            child.info["reason"] = "the tool did not answer"
            return child
        prefix = list(parent.turns[: fork.turn])
        history = parent.turns[fork.turn].state
        if fork.action is RESAMPLE:
            stream = fork_streams(fork).decision
            action = self._act(stream, parent.step, parent.row, fork.turn, history)
        else:
            action = parent.turns[fork.turn].action if fork.action is KEEP else fork.action
        if fork.takes_equal_tail() and action == parent.turns[fork.turn].action:
            turns = list(parent.turns)
            sampled = turns[fork.turn].num_tokens
            return self._finished(child, turns, parent.outcome, sampled)
        return self._filled(child, prefix, history, first=action)

    def _filled(self, episode, turns, history, first=None):
        streams = episode_streams(episode)
        start, action = len(turns), first
        while True:
            turn = len(turns)
            if action is None:
                action = self._act(streams.tail, episode.step, episode.row, turn, history)
            turns.append(self._turn(turn, action, history))
            slot = self._slot(turn, history)
            luck = self._draw(streams.environment, episode.step, episode.row, slot, 2)
            history = (*history, (action, luck))
            if ends(history, self.limit):
                sampled = sum(one.num_tokens for one in turns[start:])
                return self._finished(episode, turns, scored(history), sampled)
            action = None

    def _turn(self, turn, action, history):
        slot = None if self.slots is None else self.slots(turn, history)
        info = {"state_class": str(history[-1][1]) if history else "start"}
        return Turn(action, None, None, 1 + 2 * action, history, slot, info=info)

    def _act(self, stream, step, row, turn, history):
        slot = self._slot(turn, history)
        if probability(history) == 1 / 2:
            return self._draw(stream, step, row, slot, 2)
        return int(self._draw(stream, step, row, slot, 3) > 0)

    def _slot(self, turn, history):
        return turn if self.slots is None else self.slots(turn, history)

    def _draw(self, stream, step, row, slot, base):
        return self.noise.draw(stream.key(self.seed, step, row, slot), base)

    def _finished(self, draft, turns, total, sampled):
        return Episode(
            task=draft.task,
            step=draft.step,
            row=draft.row,
            turns=turns,
            outcome=total,
            terminated=True,
            truncated=False,
            success=total > 3,
            fork=draft.fork,
            sampled=sampled,
            info=draft.info,
        )


@pytest.fixture
def unchecked():
    """Types unchecked, as outside the tests: for wrong words, and for speed in enumerations."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def tiny():
    """The world's class, its noises and its recursion."""
    return SimpleNamespace(
        World=TinyWorld, Tape=Tape, RealNoise=RealNoise, probability=probability, value=value
    )


def _episode(outcome, actions=(0,), *, row=0, task="task", fork=None, tokens=1, **fields):
    turns = [Turn(action, None, None, tokens, f"s{index}") for index, action in enumerate(actions)]
    sampled = tokens * (len(turns) - (fork.turn if fork else 0))
    fields = {"terminated": True, "truncated": False, "sampled": sampled} | fields
    return Episode(Task(task), 0, row, turns, outcome, fork=fork, **fields)


@pytest.fixture
def scripted():
    """A finished episode from its outcome and actions."""
    return _episode


class ScriptedWorld:
    """Answers each fork with the outcome that `script(fork)` gives."""

    def __init__(self, script=None):
        self.script, self.calls = script, []

    def play(self, tasks, rollouts, step):
        raise AssertionError("factuals are given")

    def fork(self, forks):
        self.calls.append(list(forks))
        return [
            _episode(
                self.script(fork),
                [turn.action for turn in fork.episode.turns],
                row=fork.episode.row,
                fork=fork,
            )
            for fork in forks
        ]

    def provide(self, need, episodes):
        raise AssertionError("nothing is needed")


@pytest.fixture
def scripted_world():
    """A world whose fork outcomes are given by a function of the fork."""
    return ScriptedWorld
