"""A finite-horizon decision process with deterministic moves, a softmax policy and known truth.

One turn is one sampled action. The environment tosses two coins a turn, keyed by the turn: one
pays a prize, one may end the episode. All luck is keyed noise, so twins share it turn by turn.
Leaves out the tables and the exact solution (`chain_model`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulations.worlds.chain_model import (
    ChainModel,
    ChainSetting,
    ChainValues,
    build_model,
    log_policy,
    solve,
)
from simulations.worlds.checks import refuse_coupling
from twinstats.episodes import DIFFERENT, KEEP, RESAMPLE, Episode, Fork, Task, Turn
from twinstats.errors import unknown
from twinstats.keys import FACTUAL, Stream, Streams, fork_streams
from twinstats.noise import KeyColumns, sample, uniforms

_COIN, _END = 0, 1  # lanes of the environment's uniforms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Batch:
    """Walks to be played together, one entry a walk.

    Attributes:
        start: Its first turn.
        state: The state at that turn.
        forced: The action of that turn; -1 samples it from the tail stream.
        tail: Keys of its decisions, at slot 0.
        environment: Keys of its environment, at slot 0.
    """

    start: np.ndarray
    state: np.ndarray
    forced: np.ndarray
    tail: KeyColumns
    environment: KeyColumns


class _Result(NamedTuple):
    """What a walk came to: table indices, outcome, and the state at its end."""

    places: np.ndarray
    outcome: float
    ending: Any


class Chain:
    """The world of a `ChainSetting`. A step is played by one call of `play`.

    `episode.info["index"]` holds the episode's turns as indices into the world's tables.
    """

    def __init__(self, setting: ChainSetting, *, seed: int) -> None:
        self.setting = setting
        self.seed = seed
        self.model: ChainModel = build_model(setting)
        self.values: ChainValues = solve(self.model)
        self._shape = (*self.model.logits.shape, 2)
        self._turns = _turn_table(self.model)
        coins = np.array([0.0, 1.0])
        prize = self.model.prize[:, None, None, None]
        rewards = self.model.points[..., None] + prize * coins
        self._rewards = np.append(rewards.reshape(-1), 0.0)  # index -1: a turn not played

    def tasks(self, number: int) -> list[Task]:
        """Tasks that start in the states in turn."""
        states = self.setting.states
        return [Task(f"chain-{i}", {"start": i % states}) for i in range(number)]

    def play(self, tasks: Sequence[Task], rollouts: int, step: int) -> list[Episode]:
        """Episodes of each task, rows in order; every call of a step starts at row 0."""
        played = [task for task in tasks for _ in range(rollouts)]
        rows = np.arange(len(played))
        index = self._walk(
            _Batch(
                start=np.zeros(len(played), np.int64),
                state=np.array([task.info.get("start", 0) for task in played], np.int64),
                forced=np.full(len(played), -1),
                tail=self._grid(FACTUAL.tail, step, rows),
                environment=self._grid(FACTUAL.environment, step, rows),
            )
        )
        return [
            self._episode(task, step, row, result, None, len(result.places) * self.setting.tokens)
            for row, (task, result) in enumerate(zip(played, self._results(index), strict=True))
        ]

    def fork(self, forks: Sequence[Fork]) -> list[Episode]:
        """The forked episodes, in the order asked; each has its parent's turns before its own."""
        if not forks:
            return []
        refuse_coupling(forks)
        streams = [fork_streams(fork) for fork in forks]
        turn = np.array([fork.turn for fork in forks])
        taken = np.array([fork.episode.info["index"][fork.turn] for fork in forks])
        _, state, parent, _ = np.unravel_index(taken, self._shape)
        action = self._decisions(forks, streams, turn, state, parent)
        skips = np.array([fork.takes_equal_tail() for fork in forks]) & (action == parent)
        played = np.flatnonzero(~skips)
        index = self._continued(forks, streams, played, turn, state, action)
        episodes: list[Episode | None] = [None] * len(forks)
        for place, result in zip(played.tolist(), self._results(index), strict=True):
            tail = len(result.places) - forks[place].turn - 1
            episodes[place] = self._forked(forks[place], result, tail)
        return [episode or self._equal(fork) for episode, fork in zip(episodes, forks, strict=True)]

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Fills `value`: the exact expected outcome before each turn, and at the end.

        Raises:
            UsageError: Any other need.
        """
        if need != "value":
            raise unknown("need of the chain world", need, ["value"])
        for episode in episodes:
            _, value, _ = self.truth(episode)
            episode.info["value"] = np.append(value, np.float64(episode.outcome or 0.0))

    def truth(self, episode: Episode) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Exact (Q, V, advantage) of each turn, rewards already earned included."""
        index = episode.info["index"]
        turn, state, action, _ = np.unravel_index(index, self._shape)
        earned = np.append(0.0, np.cumsum(self._rewards[index])[:-1])
        value = earned + self.values.value[turn, state]
        advantage = self.values.advantage[turn, state, action]
        return value + advantage, value, advantage

    def places(self, episode: Episode) -> np.ndarray:
        """Turn, state and action of each turn: an array with three rows."""
        return np.array(np.unravel_index(episode.info["index"], self._shape)[:3])

    def policy_table(self) -> np.ndarray:
        """Probability of each action (turn, state, action)."""
        return self.values.policy

    def policy_gradient(self, tasks: Sequence[Task]) -> np.ndarray:
        """Exact gradient of the tasks' mean expected outcome in the logits (turn, state, action).

        dJ / dlogit[t, s, a] = P(episode reaches s at t) * pi(a | s) * A(s, a).
        """
        starts = [task.info.get("start", 0) for task in tasks]
        reached = self.values.occupancy[starts].mean(axis=0)
        return reached[..., None] * self.values.policy * self.values.advantage

    def _grid(self, stream: Stream, step: int, rows: np.ndarray) -> KeyColumns:
        return KeyColumns.grid(self.seed, step, stream.purpose, row=rows, turn=0, luck=stream.luck)

    def _keys(self, forks: Sequence[Fork], streams: Sequence[Stream]) -> KeyColumns:
        """The key of each fork's stream at slot 0."""
        return KeyColumns.of(
            [
                stream.key(self.seed, fork.episode.step, fork.episode.row, 0)
                for fork, stream in zip(forks, streams, strict=True)
            ]
        )

    def _decisions(
        self,
        forks: Sequence[Fork],
        streams: Sequence[Streams],
        turn: np.ndarray,
        state: np.ndarray,
        parent: np.ndarray,
    ) -> np.ndarray:
        """The action at each fork's turn. DIFFERENT is exact: the parent's action cannot win."""
        action = parent.copy()
        draws = np.array([_is_sampled(fork) for fork in forks])
        for place in np.flatnonzero(~draws).tolist():
            if forks[place].action is not KEEP:
                action[place] = self._named(forks[place].action)
        drawn = np.flatnonzero(draws)
        if len(drawn):
            logits = self.model.logits[turn[drawn], state[drawn]]
            own = [forks[place] for place in drawn.tolist()]
            other = np.array([fork.action is DIFFERENT for fork in own])
            logits[other, parent[drawn][other]] = -np.inf
            found = [streams[place].decision for place in drawn.tolist()]
            keys = self._keys(own, [stream for stream in found if stream is not None])
            action[drawn] = sample(logits, _at(keys, turn[drawn]), np.zeros(len(logits), np.int64))
        return action

    def _named(self, action: Any) -> int:
        if not 0 <= int(action) < self.setting.actions:
            raise ValueError(f"`action` must be in 0..{self.setting.actions - 1}, got {action}.")
        return int(action)

    def _continued(
        self,
        forks: Sequence[Fork],
        streams: Sequence[Streams],
        played: np.ndarray,
        turn: np.ndarray,
        state: np.ndarray,
        action: np.ndarray,
    ) -> np.ndarray:
        """Table indices of whole episodes: the parents' turns, then the forks' own."""
        if not len(played):
            return np.zeros((0, self.setting.horizon), np.int64)
        own = [forks[place] for place in played.tolist()]
        driven = [streams[place] for place in played.tolist()]
        batch = _Batch(
            start=turn[played],
            state=state[played],
            forced=action[played],
            tail=self._keys(own, [stream.tail for stream in driven]),
            environment=self._keys(own, [stream.environment for stream in driven]),
        )
        index = self._walk(batch)
        for line, fork in zip(index, own, strict=True):
            line[: fork.turn] = fork.episode.info["index"][: fork.turn]
        return index

    def _walk(self, batch: _Batch) -> np.ndarray:
        """Plays all walks turn by turn: table indices (walk, turn), -1 where not played."""
        horizon = self.setting.horizon
        index = np.full((len(batch.start), horizon), -1)
        state, alive = batch.state.copy(), np.ones(len(batch.start), bool)
        for turn in range(int(batch.start.min(initial=horizon)), horizon):
            live = np.flatnonzero(alive & (batch.start <= turn))
            action = self._actions(batch, live, turn, state[live])
            after = self.model.move[turn, state[live], action]
            keys = _at(batch.environment.take(live), np.full(len(live), turn))
            coin = np.zeros(len(live), np.int64)
            if self.model.prize[turn]:
                coin += uniforms(keys, 0, _COIN) < self.model.chance[turn, after]
            place = (np.full(len(live), turn), state[live], action, coin)
            index[live, turn] = np.ravel_multi_index(place, self._shape)
            state[live] = after
            if self.setting.ends:
                alive[live] = uniforms(keys, 0, _END) >= self.model.hazard[turn, after]
        return index

    def _actions(self, batch: _Batch, live: np.ndarray, turn: int, state: np.ndarray) -> np.ndarray:
        forced = np.where(batch.start[live] == turn, batch.forced[live], -1)
        free = np.flatnonzero(forced < 0)
        if len(free):
            keys = _at(batch.tail.take(live[free]), np.full(len(free), turn))
            logits = self.model.logits[turn, state[free]]
            forced[free] = sample(logits, keys, np.zeros(len(logits), np.int64))
        return forced

    def _results(self, index: np.ndarray) -> list[_Result]:
        """What walks came to: their table indices without padding, outcome and last state."""
        lengths = (index >= 0).sum(axis=1)
        last = index[np.arange(len(index)), lengths - 1]
        turn, state, action, _ = np.unravel_index(last, self._shape)
        columns = (
            self._rewards[index].sum(axis=1).tolist(),
            lengths.tolist(),
            self.model.move[turn, state, action].tolist(),
        )
        return [
            _Result(own[:length], outcome, (length, after))
            for own, outcome, length, after in zip(index, *columns, strict=True)
        ]

    def _forked(self, fork: Fork, result: _Result, tail: int) -> Episode:
        parent = fork.episode
        cost = (tail + _is_sampled(fork)) * self.setting.tokens
        return self._episode(parent.task, parent.step, parent.row, result, fork, cost)

    def _equal(self, fork: Fork) -> Episode:
        """A fork whose decision came out equal: its parent's turns and outcome, not played."""
        assert fork.episode.outcome is not None
        index, ending = fork.episode.info["index"], fork.episode.final_state
        return self._forked(fork, _Result(index, fork.episode.outcome, ending), 0)

    def _episode(
        self, task: Task, step: int, row: int, result: _Result, fork: Fork | None, cost: int
    ) -> Episode:
        return Episode(
            task=task,
            step=step,
            row=row,
            turns=self._turns[result.places].tolist(),
            outcome=result.outcome,
            terminated=True,
            truncated=False,
            success=result.outcome == 1.0 if self.setting.reward == "end" else None,
            final_state=result.ending,
            fork=fork,
            sampled=cost,
            info={"index": result.places},
        )


def _turn_table(model: ChainModel) -> np.ndarray:
    """Every turn that can happen, in the order of the table indices: episodes share them."""
    logprob = log_policy(model)
    entropy = -(np.exp(logprob) * logprob).sum(axis=-1)
    shape = (*model.logits.shape, 2)
    table = np.empty(int(np.prod(shape)), object)
    for index, (turn, state, action, coin) in enumerate(np.ndindex(shape)):
        table[index] = Turn(
            action=action,
            logprob=float(logprob[turn, state, action]),
            entropy=float(entropy[turn, state]),
            num_tokens=model.setting.tokens,
            state=(turn, state),
            reward=float(model.points[turn, state, action] + model.prize[turn] * coin),
            info={"state_class": str(state)},
        )
    return table


def _at(keys: KeyColumns, turn: np.ndarray) -> KeyColumns:
    """Keys at slot 0, moved to the slots of their turns."""
    shifted = keys.turn_luck + (turn.astype(np.uint64) << np.uint64(16))
    return KeyColumns(keys.words, shifted, keys.row)


def _is_sampled(fork: Fork) -> bool:
    return fork.action in (RESAMPLE, DIFFERENT)
