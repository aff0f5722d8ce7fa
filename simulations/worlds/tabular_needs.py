"""What credit methods ask a tabular world for, computed from its exact solution.

Judge, teacher and critic see quality * truth + (1 - quality) * noise, the critic's noise around
the mean outcome. It is keyed by row and slot, under purposes of their own: a twin's shared prefix
is judged as its parent's was.
Leaves out playing (`tabular`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri

from simulations.worlds.slots import at_slots
from simulations.worlds.tabular_model import ReturnLaw, TabularModel, TabularValues, log_softmax
from twinstats.episodes import Episode
from twinstats.errors import unknown
from twinstats.noise import KeyColumns, NoiseKey, uniforms

LEAST_LOGPROB = -20.0
"""Stands for the logarithm of any smaller probability."""
TEACHER_STRENGTH = 4.0
"""The teacher's policy is the student's times exp(strength * advantage), normalised."""
NOTABLE = 0.05
"""A judge names turns whose advantage looks larger than this."""
CRITIC_NOISE, TEACHER_NOISE, JUDGE_NOISE = 0.25, 1.0, 0.1
"""Standard deviation of what is seen at quality 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How good the helpers are: 0 sees noise alone, 1 the exact truth.

    Raises:
        ValueError: A quality outside [0, 1].
    """

    critic: float
    teacher: float
    judge: float

    def __post_init__(self) -> None:
        for name in ("critic", "teacher", "judge"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must be in [0, 1], got {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """How a world calls things.

    Attributes:
        world: Its name, in names of tasks and in messages.
        shown: What the environment shows in a state at a turn, hashable; the number of turns
            played is the turn at an episode's end.
        state_class: A class of each state.
        actions: The name of each action.
        states: Needs that depend on the state alone: for each one, an entry a state (numbers as
            an array). `features` get the share of turns played as one more column.
        task_info: Constants of every task.
    """

    world: str
    shown: Callable[[int, int], Any]
    state_class: Sequence[str]
    actions: Sequence[str]
    states: Mapping[str, Any]
    task_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Walk:
    """An episode by its numbers: one entry a turn, `states` one more."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray

    @property
    def turns(self) -> np.ndarray:
        return np.arange(len(self.actions))

    @property
    def earned(self) -> np.ndarray:
        """Rewards so far, before each turn and at the end."""
        return np.append(0.0, np.cumsum(self.rewards))


class Provider:
    """Fills `Episode.info` for the needs of credit methods."""

    def __init__(
        self,
        model: TabularModel,
        values: TabularValues,
        *,
        labels: Labels,
        quality: Quality,
        tokens: int,
        seed: int,
    ) -> None:
        self._model, self._values = model, values
        self._labels, self._quality = labels, quality
        self._tokens, self._seed = tokens, seed

    @property
    def needs(self) -> list[str]:
        """The needs that can be filled."""
        found = {*self._known, *self._labels.states}
        return sorted(found if self._model.goal is not None else found - {"gold_logprob"})

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Fills one need of each episode.

        Raises:
            UsageError: A need that this world does not have.
        """
        if need not in self.needs:
            raise unknown(f"need of the {self._labels.world} world", need, self.needs)
        if not episodes:
            return
        walks = [self._walk(episode) for episode in episodes]
        if need in self._labels.states:
            found = [self._of_states(need, walk) for walk in walks]
        else:
            found = self._known[need](episodes, walks)
        for episode, own in zip(episodes, found, strict=True):
            episode.info[need] = own

    @cached_property
    def _known(self) -> Mapping[str, Callable[[Sequence[Episode], Sequence[_Walk]], list[Any]]]:
        return {
            "value": self._value,
            "teacher_gap": self._teacher_gap,
            "gold_logprob": lambda _, walks: [self._gold_logprob(walk) for walk in walks],
            "hindsight_logprob": lambda _, walks: [self._hindsight(walk) for walk in walks],
            "first_entropy": lambda _, walks: [self._first_entropy(walk) for walk in walks],
            "segments": self._segments,
            "tool": lambda _, walks: [self._tools(walk) for walk in walks],
            "turn_reward": lambda _, walks: [np.diff(self._score(walk)) for walk in walks],
            "state_score": lambda _, walks: [self._score(walk) for walk in walks],
            "signature": lambda episodes, walks: [
                [(t.state, name) for t, name in zip(e.turns, self._tools(walk), strict=True)]
                for e, walk in zip(episodes, walks, strict=True)
            ],
        }

    @cached_property
    def _law(self) -> ReturnLaw:
        return ReturnLaw(self._model, self._values.policy)

    @cached_property
    def _logprob(self) -> np.ndarray:
        return log_softmax(self._model.logits)

    @cached_property
    def _teacher_table(self) -> np.ndarray:
        """An exact teacher's log pi_teacher - log pi of each action (turn, state, action)."""
        gain = TEACHER_STRENGTH * self._values.advantage
        mean = (self._values.policy * np.exp(gain)).sum(axis=-1, keepdims=True)
        return np.asarray(gain - np.log(mean))

    def _walk(self, episode: Episode) -> _Walk:
        index = episode.info["index"]
        shape = self._model.move.shape
        _, state, action, _ = np.unravel_index(index, shape)
        return _Walk(
            states=np.append(state, self._model.move.reshape(-1)[index[-1]]),
            actions=action,
            rewards=self._model.reward.reshape(-1)[index],
        )

    def _of_states(self, need: str, walk: _Walk) -> Any:
        table = self._labels.states[need]
        if not isinstance(table, np.ndarray):
            return [table[state] for state in walk.states.tolist()]
        found = table[walk.states]
        played = np.arange(len(found)) / len(self._model.logits)
        return np.column_stack([found, played]) if need == "features" else found

    def _score(self, walk: _Walk) -> np.ndarray:
        if "state_score" in self._labels.states:
            return np.asarray(self._of_states("state_score", walk))
        return walk.earned

    def _tools(self, walk: _Walk) -> list[str]:
        return [self._labels.actions[action] for action in walk.actions.tolist()]

    def _first_entropy(self, walk: _Walk) -> np.ndarray:
        """The decision's entropy over that of an even choice: a turn's tokens are one decision."""
        at = walk.turns, walk.states[:-1]
        entropy = -(self._values.policy[at] * self._logprob[at]).sum(axis=-1)
        return np.asarray(entropy / np.log(self._logprob.shape[-1]))

    def _value(self, episodes: Sequence[Episode], walks: Sequence[_Walk]) -> list[Any]:
        """Expected outcome, what is earned included; at the end what came, which all can see."""
        exact = [
            walk.earned[:-1] + self._values.value[walk.turns, walk.states[:-1]] for walk in walks
        ]
        mean = float(self._values.value[0, self._model.starts].mean())
        seen = self._seen("critic", CRITIC_NOISE, episodes, exact, mean=mean)
        return [np.append(own, walk.earned[-1]) for own, walk in zip(seen, walks, strict=True)]

    def _teacher_gap(self, episodes: Sequence[Episode], walks: Sequence[_Walk]) -> list[Any]:
        """A turn's log-ratio, spread evenly over its tokens, each with noise of its own."""
        exact = [
            self._teacher_table[walk.turns, walk.states[:-1], walk.actions] / self._tokens
            for walk in walks
        ]
        lanes = [
            self._seen("teacher", TEACHER_NOISE, episodes, exact, lane=lane)
            for lane in range(self._tokens)
        ]
        return [list(np.stack(own, axis=1)) for own in zip(*lanes, strict=True)]

    def _segments(self, episodes: Sequence[Episode], walks: Sequence[_Walk]) -> list[Any]:
        """Runs of turns that look notably good, or bad, to the judge."""
        exact = [
            self._values.advantage[walk.turns, walk.states[:-1], walk.actions] for walk in walks
        ]
        seen = self._seen("judge", JUDGE_NOISE, episodes, exact)
        return [_runs(np.sign(own) * (np.abs(own) > NOTABLE)) for own in seen]

    def _gold_logprob(self, walk: _Walk) -> np.ndarray:
        """The log-probability of success in each state, under the policy."""
        assert self._model.goal is not None
        missing = self._model.goal - walk.earned
        chance = self._law.before(walk.turns, walk.states[:-1], missing[:-1])
        return np.maximum(_log(np.append(chance, missing[-1] == 0)), LEAST_LOGPROB)

    def _hindsight(self, walk: _Walk) -> np.ndarray:
        """Bayes: log P(a | s, end) = log pi(a | s) + log P(end | s, a) - log P(end | s)."""
        at = walk.turns, walk.states[:-1]
        to_come = walk.earned[-1] - walk.earned[:-1]
        after = self._law.after(*at, walk.actions, to_come)
        before = self._law.before(*at, to_come)
        hindsight = self._logprob[(*at, walk.actions)] + _log(after) - _log(before)
        return np.minimum(np.maximum(hindsight, LEAST_LOGPROB), 0.0)

    def _seen(
        self,
        who: str,
        spread: float,
        episodes: Sequence[Episode],
        exact: Sequence[np.ndarray],
        *,
        mean: float = 0.0,
        lane: int = 0,
    ) -> list[np.ndarray]:
        """What a helper sees of the truth, one array an episode: keyed noise blended in."""
        quality = getattr(self._quality, who)
        counts = [len(own) for own in exact]
        keys = KeyColumns.of(
            [NoiseKey(self._seed, e.step, e.row, 0, purpose=who) for e in episodes]
        )
        slots = np.concatenate([np.arange(count) for count in counts])
        turns = at_slots(keys.take(np.repeat(np.arange(len(counts)), counts)), slots)
        noise = mean + spread * ndtri(uniforms(turns, 0, lane))
        seen = quality * np.concatenate(exact) + (1 - quality) * noise
        return np.split(seen, np.cumsum(counts)[:-1])


def _runs(signs: np.ndarray) -> list[tuple[int, int, int]]:
    """Runs of equal signs other than 0 as (begin, end, sign), end included.

    >>> _runs(np.array([0, 1, 1, -1, 0]))
    [(1, 2, 1), (3, 3, -1)]
    """
    starts = np.flatnonzero(np.diff(signs, prepend=0.0))
    ends = np.append(starts, len(signs))[1:] - 1
    return [
        (int(begin), int(end), int(signs[begin]))
        for begin, end in zip(starts, ends, strict=True)
        if signs[begin]
    ]


def _log(probability: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probability, 1e-300))
