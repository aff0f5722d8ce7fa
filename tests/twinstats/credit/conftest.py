"""A world small enough to enumerate: every draw of a keyed atom is a branch of a tape.

Two actions a turn, at most `limit` turns; action 1 with a bad environment draw ends the episode
early, so that the length depends on luck. Decisions and environment draw from the very streams
that `twinstats.keys` names. `truth` is a recursion over histories and knows nothing of forks.
"""

import math
from fractions import Fraction
from types import SimpleNamespace

import jaxtyping
import numpy as np
import pytest

from twinstats.credit import assign
from twinstats.episodes import DIFFERENT, KEEP, RESAMPLE, SHARED, Episode, Group, Task, Turn
from twinstats.keys import Stream, episode_streams, fork_streams
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
            self._seen[key] = digit, base
        digit, known_base = self._seen[key]
        assert known_base == base, "a key that two worlds share has one base in both"
        return digit

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


def swayed(history):
    """Chance of action 1 where the last action matters: twins' later decisions differ in law."""
    return 2 / 3 if history and history[-1][0] == 1 else 1 / 2


def ends(history, limit):
    return len(history) == limit or history[-1] == (1, 0)


def outcome(history):
    earned = sum((2 * turn + 1 - 3 * luck) * action for turn, (action, luck) in history)
    return float(earned + len(history) ** 2)


def scored(history):
    return outcome(list(enumerate(history)))


def value(history, limit, chance=probability):
    one = chance(history)
    return one * quality(history, 1, limit, chance) + (1 - one) * quality(history, 0, limit, chance)


def quality(history, action, limit, chance=probability):
    total = 0.0
    for luck in (0, 1):
        after = (*history, (action, luck))
        total += (scored(after) if ends(after, limit) else value(after, limit, chance)) / 2
    return total


class TinyWorld:
    """The world; `fails` says of a fork whether it breaks, `slots` names turns."""

    def __init__(
        self,
        noise,
        *,
        limit=2,
        seed=3,
        fails=lambda fork: False,
        slots=None,
        chance=probability,
    ):
        self.noise, self.limit, self.seed = noise, limit, seed
        self.fails, self.slots, self.chance = fails, slots, chance
        self.calls, self.provided = [], []

    def play(self, tasks, rollouts, step):
        rows = iter(range(len(tasks) * rollouts))
        return [self.episode(task, next(rows), step) for task in tasks for _ in range(rollouts)]

    def episode(self, task=None, row=0, step=0):
        episode = Episode(task or Task("tiny"), step, row, [], None, True, False)
        return self._filled(episode, [], ())

    def fork(self, forks):
        self.calls.append(list(forks))
        played = {}
        return [self._forked(fork, played) for fork in forks]

    def provide(self, need, episodes):
        self.provided.append((need, list(episodes)))
        for episode in episodes:
            episode.info[need] = len(episode.turns)

    def truth(self, episode):
        result = []
        for turn in episode.turns:
            history, action = turn.state, turn.action
            world = self.limit, self.chance
            result.append(quality(history, action, *world) - value(history, *world))
        return result

    def _forked(self, fork, played):
        parent = fork.episode
        child = Episode(parent.task, parent.step, parent.row, [], None, True, False, fork=fork)
        if self.fails(fork):
            child.info["reason"] = "the tool did not answer"
            return child
        prefix = list(parent.turns[: fork.turn])
        history = parent.turns[fork.turn].state
        own = parent.turns[fork.turn].action
        decided = fork.action in (RESAMPLE, DIFFERENT)
        if fork.action is RESAMPLE:
            stream = fork_streams(fork).decision
            action = self._act(stream, parent.step, parent.row, fork.turn, history)
        else:
            action = {KEEP: own, DIFFERENT: 1 - own}.get(fork.action, fork.action)
        known = parent if fork.takes_equal_tail() and action == own else None
        key = fork.tail_key()
        known = known or (key and played.get((key, action)))
        if known:
            return self._finished(child, list(known.turns), known.outcome, 1 + 2 * action)
        result = self._filled(child, prefix, history, first=action, decided=decided)
        if key:
            played[key, action] = result
        return result

    def _filled(self, episode, turns, history, first=None, decided=True):
        streams = episode_streams(episode)
        start, action = len(turns) + (not decided), first
        while True:
            turn = len(turns)
            if action is None:
                action = self._continued(episode, streams.tail, turn, history)
            turns.append(self._turn(turn, action, history))
            slot = self._slot(turn, history)
            luck = self._draw(streams.environment, episode.step, episode.row, slot, 2)
            history = (*history, (action, luck))
            if ends(history, self.limit):
                sampled = sum(one.num_tokens for one in turns[start:])
                return self._finished(episode, turns, scored(history), sampled)
            action = None

    def _continued(self, episode, stream, turn, history):
        """A tail's action; coupled maximally it is the parent's of the same slot, if that is kept.

        Kept with probability min(1, q/p), else from the positive part of q - p: the other action.
        """
        fork, slot = episode.fork, self._slot(turn, history)
        if fork is not None and fork.luck is SHARED and fork.coupling == "maximal":
            for index, known in enumerate(fork.episode.turns):
                if index > fork.turn and fork.episode.slot(index) == slot:
                    above = fork.episode.path
                    coins = Stream("maximal" + (f"/{above}" if above else ""))
                    place = (episode.step, episode.row, slot)
                    kept = self._keeps(coins, place, known, history)
                    return known.action if kept else 1 - known.action
        return self._act(stream, episode.step, episode.row, turn, history)

    def _keeps(self, coins, place, known, history):
        was, now = self._law(known.state)[known.action], self._law(history)[known.action]
        ratio = Fraction(now / was).limit_denominator(12)
        return ratio >= 1 or self._draw(coins, *place, ratio.denominator) < ratio.numerator

    def _law(self, history):
        return 1 - self.chance(history), self.chance(history)

    def _turn(self, turn, action, history):
        slot = None if self.slots is None else self.slots(turn, history)
        info = {"state_class": str(history[-1][1]) if history else "start"}
        logprob = math.log(self._law(history)[action])
        return Turn(action, logprob, None, 1 + 2 * action, history, slot, info=info)

    def _act(self, stream, step, row, turn, history):
        slot = self._slot(turn, history)
        if self.chance(history) == 1 / 2:
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


def enumerated(method, *, groups=None, world_type=TinyWorld, **options):
    """Sums over all draws of the world's noise, exact: what the method errs by, and where.

    `groups(tape, world)` gives the groups; the first one's first episode is the tiny world's.

    Returns:
        factual, forks: By (state, action), the sum of credit - A over the turns trained there.
        gradient: By state, the sum of share * score * credit, minus that of score * A over the
            factual's turns: what is added to the policy gradient of one episode.
        unshared: The same with every share 1.
        tokens: Expected tokens of the forks.
        leaves: Number of combinations of draws.
    """
    found = SimpleNamespace(factual={}, forks={}, gradient={}, unshared={}, tokens=0.0, leaves=0)
    for tape in Tape():
        world = world_type(tape, **options)
        given = groups(tape, world) if groups else [Group(Task("tiny"), [world.episode()], 3, 0)]
        credit = assign(world, given, method())[0]
        factual = given[0].episodes[0]
        for index, episode in enumerate(credit.episodes):
            if episode is not factual and episode.fork is None:
                continue
            places = found.factual if episode is factual else found.forks
            share = np.ones(episode.num_turns) if credit.share is None else credit.share[index]
            truth = world.truth(episode)
            for turn, credited, exact, part in zip(
                episode.turns, credit.values[index], truth, share, strict=True
            ):
                if episode is not factual and np.isnan(credited):
                    continue
                score = turn.action - world.chance(turn.state)
                owed = score * exact if episode is factual else 0.0
                place = (turn.state, turn.action)
                _add(places, place, tape.weight * (credited - exact))
                _add(found.gradient, turn.state, tape.weight * (part * score * credited - owed))
                _add(found.unshared, turn.state, tape.weight * (score * credited - owed))
        found.tokens += tape.weight * sum(fork.sampled for fork in credit.info["forks"])
        found.leaves += 1
    return found


def _add(sums, key, value):
    sums[key] = sums.get(key, 0.0) + value


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
        World=TinyWorld,
        Tape=Tape,
        RealNoise=RealNoise,
        probability=probability,
        swayed=swayed,
        enumerated=enumerated,
        value=value,
    )


@pytest.fixture
def enumerated_coin(monkeypatch):
    """The count coin becomes a draw of the tape with few values: q = .5 or .25 is exact."""

    def install(tape, base):
        def coins(group, turns, position, lane=0):
            if position:
                return np.full(len(turns), 0.999)
            drawn = [tape.draw(("coin", episode.row, turn), base) for episode, turn in turns]
            return (np.array(drawn) + 0.5) / base

        monkeypatch.setattr("twinstats.credit.budget.coins", coins)

    return install


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


def _leaf(outcome, surprisals, *, row=0, entropies=None, tokens=None, prefix=(), fork=None, **info):
    """An episode whose turns are given by their mean -logprob, behind a shared prefix."""
    size = len(surprisals)
    entropies = [None] * size if entropies is None else entropies
    turns = list(prefix)
    for surprisal, entropy, count in zip(surprisals, entropies, tokens or [1] * size, strict=True):
        logprob = None if surprisal is None else -surprisal * count
        turns.append(Turn(len(turns), logprob, entropy, count, f"s{len(turns)}"))
    fields = {"terminated": True, "truncated": False, "sampled": sum(tokens or [1] * size)}
    return Episode(Task("task"), 0, row, turns, outcome, fork=fork, info=info, **fields)


@pytest.fixture
def leaf():
    """A finished episode from its outcome and the surprisals of its turns."""
    return _leaf


class TreeWorld:
    """Answers each fork with the outcome, surprisals and fields that `script(fork)` gives.

    `inputs(need, episode)` is what the world provides.
    """

    def __init__(self, script=None, inputs=None):
        self.script, self.inputs, self.calls = script, inputs, []

    def play(self, tasks, rollouts, step):
        raise AssertionError("factuals are given")

    def fork(self, forks):
        self.calls.append(list(forks))
        return [self._played(fork) for fork in forks]

    def provide(self, need, episodes):
        for episode in episodes:
            if self.inputs is not None and need not in episode.info:
                episode.info[need] = self.inputs(need, episode)

    def _played(self, fork):
        outcome, surprisals, *fields = self.script(fork)
        prefix = fork.episode.turns[: fork.turn]
        own = fields[0] if fields else {}
        row = fork.episode.row
        return _leaf(outcome, surprisals, row=row, prefix=prefix, fork=fork, **own)


@pytest.fixture
def tree_world():
    """A world whose forks have the outcome and the turns that a function of the fork gives."""
    return TreeWorld


def _walk(outcome, states, actions=None, *, row=0, rewards=None, **fields):
    actions = [0] * len(states) if actions is None else actions
    rewards = [0.0] * len(states) if rewards is None else rewards
    turns = [
        Turn(action, None, None, 1, state, reward=reward)
        for state, action, reward in zip(states, actions, rewards, strict=True)
    ]
    fields = {"terminated": True, "truncated": False, "sampled": len(turns)} | fields
    return Episode(Task("task"), 0, row, turns, outcome, **fields)


@pytest.fixture
def walk():
    """A finished episode from its outcome and the states it came through."""
    return _walk


class GivenWorld(ScriptedWorld):
    """A scripted world whose episodes carry already what there is to provide."""

    def provide(self, need, episodes):
        pass


@pytest.fixture
def given_world():
    """A scripted world that provides nothing more than what is in `Episode.info`."""
    return GivenWorld


def _gapped(outcome, gaps, *, row=0, state=str, **fields):
    turns = [Turn(0, None, None, len(gap), state(turn)) for turn, gap in enumerate(gaps)]
    info = {"teacher_gap": [np.array(gap, float) for gap in gaps]} | fields.pop("info", {})
    outcome = None if outcome is None else float(outcome)
    return Episode(Task("task"), 0, row, turns, outcome, True, False, info=info, **fields)


@pytest.fixture
def gapped():
    """A finished episode from its outcome and a teacher's gap for every token of every turn."""
    return _gapped
