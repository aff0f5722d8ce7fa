"""Plays any tabular model with keyed noise, and knows the exact truth about it.

One turn is one sampled action. The environment tosses two coins a turn, keyed by the turn: one
chooses the branch, one may end the episode. All luck is keyed noise, so twins share it turn by
turn. Leaves out the tables (`chain_model`, `errand_model`), the exact solution (`tabular_model`)
and what methods need besides (`tabular_needs`).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from simulations.worlds.forks import players
from simulations.worlds.luck import Ahead
from simulations.worlds.slots import at_slots
from simulations.worlds.tabular_model import TabularModel, TabularValues, log_softmax
from simulations.worlds.tabular_needs import Labels, Provider, Quality
from twinstats.episodes import DIFFERENT, KEEP, Episode, Fork, Task, Turn
from twinstats.keys import FACTUAL, Stream, Streams, fork_streams
from twinstats.maximal import check_coupling, maximal, maximal_stream
from twinstats.noise import KeyColumns, check_logits, gumbels, sample, uniforms

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
        draft: For the maximal coupling: the parents' turns (walk, turn) as table indices, -1 where
            there is none, and the keys of the coins, at slot 0; null: none is coupled so.
    """

    start: np.ndarray
    state: np.ndarray
    forced: np.ndarray
    tail: KeyColumns
    environment: KeyColumns
    draft: tuple[np.ndarray, KeyColumns] | None = None


class _Result(NamedTuple):
    """What a walk came to: table indices, outcome, and what was shown at its end."""

    places: np.ndarray
    outcome: float
    ending: Any


class TabularWorld:
    """The world of a `TabularModel`. A step is played by one call of `play`.

    The horizon is part of the task: an episode that reaches it has terminated.
    `episode.info["index"]` holds the episode's turns as flat indices (turn, state, action, branch)
    into the tables.
    """

    def __init__(
        self, tables: TabularModel, *, seed: int, labels: Labels, quality: Quality, tokens: int = 1
    ) -> None:
        """`tokens` is what a turn counts."""
        check_logits(tables.logits.reshape(-1, tables.logits.shape[-1]))
        self.seed = seed
        self.tables = tables
        self.values = TabularValues(tables)
        self._labels, self._quality, self._tokens = labels, quality, tokens
        self._provider = Provider(
            tables, self.values, labels=labels, quality=quality, tokens=tokens, seed=seed
        )
        self._shape = tables.move.shape
        self._chance, self._move = tables.chance.reshape(-1), tables.move.reshape(-1)
        self._rewards = np.append(tables.reward.reshape(-1), 0.0)  # index -1: a turn not played
        self._tosses = np.any(tables.chance > 0, axis=(1, 2))
        self._ends = np.any((tables.hazard > 0) & (tables.hazard < 1), axis=1)
        self._turns = np.empty(tables.move.size, object)  # made when first met, then shared
        self._is_met = np.zeros(tables.move.size, bool)
        self._logprob = log_softmax(tables.logits)
        self._entropy = -(np.exp(self._logprob) * self._logprob).sum(axis=-1)

    def with_logits(self, logits: np.ndarray) -> "TabularWorld":
        """The same world, seed and noise under another policy (turn, state, action)."""
        tables = dataclasses.replace(self.tables, logits=logits)
        return TabularWorld(
            tables,
            seed=self.seed,
            labels=self._labels,
            quality=self._quality,
            tokens=self._tokens,
        )

    def tasks(self, number: int) -> list[Task]:
        """Tasks that start in the model's starts in turn."""
        name, starts = self._labels.world, self.tables.starts.tolist()
        return [
            Task(f"{name}-{i}", {"start": starts[i % len(starts)], **self._labels.task_info})
            for i in range(number)
        ]

    def play(self, tasks: Sequence[Task], rollouts: int, step: int) -> list[Episode]:
        """Episodes of each task, rows in order; every call of a step starts at row 0."""
        played = [task for task in tasks for _ in range(rollouts)]
        rows = np.arange(len(played))
        index = self._walk(
            _Batch(
                start=np.zeros(len(played), np.int64),
                state=np.array([self._start(task) for task in played], np.int64),
                forced=np.full(len(played), -1),
                tail=self._grid(FACTUAL.tail, step, rows),
                environment=self._grid(FACTUAL.environment, step, rows),
            )
        )
        return [
            self._episode(task, step, row, result, None, len(result.places) * self._tokens)
            for row, (task, result) in enumerate(zip(played, self._results(index), strict=True))
        ]

    def fork(self, forks: Sequence[Fork]) -> list[Episode]:
        """The forked episodes, in the order asked; each has its parent's turns before its own.

        Twins that drew the same decision share their tail: the first plays it, the others pay for
        their decision alone.
        """
        if not forks:
            return []
        check_coupling(forks)
        streams = [fork_streams(fork) for fork in forks]
        turn = np.array([fork.turn for fork in forks])
        taken = np.array([fork.episode.info["index"][fork.turn] for fork in forks])
        _, state, parent, _ = np.unravel_index(taken, self._shape)
        action = self._decisions(forks, streams, turn, state, parent)
        skips = np.array([fork.takes_equal_tail() for fork in forks]) & (action == parent)
        player = players(forks, action.tolist(), skips)
        played = np.flatnonzero(~skips & (np.array(player) == np.arange(len(forks))))
        index = self._continued(forks, streams, played, turn, state, action)
        results = dict(zip(played.tolist(), self._results(index), strict=True))
        episodes = []
        for place, fork in enumerate(forks):
            if skips[place]:
                episodes.append(self._equal(fork))
                continue
            result = results[player[place]]
            tail = len(result.places) - fork.turn - 1 if player[place] == place else 0
            episodes.append(self._forked(fork, result, tail))
        return episodes

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Fills a need of each episode (`tabular_needs`).

        Raises:
            UsageError: A need that this world does not have.
        """
        self._provider.provide(need, episodes)

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
        number = {start: index for index, start in enumerate(self.tables.starts.tolist())}
        starts = [number[self._start(task)] for task in tasks]
        reached = self.values.occupancy[starts].mean(axis=0)
        return reached[..., None] * self.values.policy * self.values.advantage

    def _start(self, task: Task) -> int:
        return int(task.info.get("start", self.tables.starts[0]))

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
        draws = np.array([fork.is_drawn for fork in forks])
        for place in np.flatnonzero(~draws).tolist():
            if forks[place].action is not KEEP:
                action[place] = self._named(forks[place].action)
        drawn = np.flatnonzero(draws)
        if len(drawn):
            logits = self.tables.logits[turn[drawn], state[drawn]]
            own = [forks[place] for place in drawn.tolist()]
            other = np.array([fork.action is DIFFERENT for fork in own])
            logits[other, parent[drawn][other]] = -np.inf
            found = [streams[place].decision for place in drawn.tolist()]
            keys = self._keys(own, [stream for stream in found if stream is not None])
            at = at_slots(keys, turn[drawn])
            action[drawn] = sample(logits, at, np.zeros(len(logits), np.int64))
        return action

    def _named(self, action: Any) -> int:
        last = self._shape[2] - 1
        if not 0 <= int(action) <= last:
            raise ValueError(f"`action` must be in 0..{last}, got {action}.")
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
            return np.zeros((0, self._shape[0]), np.int64)
        own = [forks[place] for place in played.tolist()]
        driven = [streams[place] for place in played.tolist()]
        batch = _Batch(
            start=turn[played],
            state=state[played],
            forced=action[played],
            tail=self._keys(own, [stream.tail for stream in driven]),
            environment=self._keys(own, [stream.environment for stream in driven]),
            draft=self._drafts(own),
        )
        index = self._walk(batch)
        for line, fork in zip(index, own, strict=True):
            line[: fork.turn] = fork.episode.info["index"][: fork.turn]
        return index

    def _drafts(self, forks: Sequence[Fork]) -> tuple[np.ndarray, KeyColumns] | None:
        """The parents' later turns, for the forks that are coupled maximally."""
        if not any(fork.is_maximal for fork in forks):
            return None
        index = np.full((len(forks), self._shape[0]), -1)
        for line, fork in zip(index, forks, strict=True):
            if fork.is_maximal:
                own = fork.episode.info["index"]
                line[fork.turn + 1 : len(own)] = own[fork.turn + 1 :]
        return index, self._keys(forks, [maximal_stream(fork) for fork in forks])

    def _redrawn(
        self, draft: tuple[np.ndarray, KeyColumns], turn: int, walks: np.ndarray, state: np.ndarray
    ) -> np.ndarray:
        """What the maximal coupling draws at a turn; -1 where the parent has no such turn."""
        index, coins = draft
        held = index[walks, turn] >= 0
        action = np.full(len(walks), -1)
        _, before, kept, _ = np.unravel_index(index[walks[held], turn], self._shape)
        keys = at_slots(coins.take(walks[held]), np.full(held.sum(), turn))
        logits = self.tables.logits[turn]
        places = np.zeros(len(kept), np.int64)
        action[held] = maximal(
            logits[before], logits[state[held]], kept, keys=keys, positions=places
        )
        return action

    def _walk(self, batch: _Batch) -> np.ndarray:
        """Plays all walks turn by turn: table indices (walk, turn), -1 where not played."""
        horizon, states, actions, _ = self._shape
        index = np.full((len(batch.start), horizon), -1)
        state, alive = batch.state.copy(), np.ones(len(batch.start), bool)
        ahead = partial(Ahead, start=batch.start, horizon=horizon)
        decisions = ahead(partial(gumbels, position=0, size=actions), batch.tail)
        coins = ahead(partial(uniforms, position=0, lane=_COIN), batch.environment)
        ends = ahead(partial(uniforms, position=0, lane=_END), batch.environment)
        for turn in range(int(batch.start.min(initial=horizon)), horizon):
            live = np.flatnonzero(alive & (batch.start <= turn))
            action = np.where(batch.start[live] == turn, batch.forced[live], -1)
            free = np.flatnonzero(action < 0)
            scores = self.tables.logits[turn, state[live[free]]]
            action[free] = (scores + decisions.at(turn, live[free], alive)).argmax(axis=1)
            if batch.draft is not None:
                redrawn = self._redrawn(batch.draft, turn, live[free], state[live[free]])
                action[free] = np.where(redrawn < 0, action[free], redrawn)
            decision = (turn * states + state[live]) * actions + action
            coin = np.zeros(len(live), np.int64)
            if self._tosses[turn]:
                coin += coins.at(turn, live, alive) < self._chance[decision]
            index[live, turn] = 2 * decision + coin
            after = self._move[2 * decision + coin]
            hazard = self.tables.hazard[turn, after]
            state[live] = after
            goes_on = hazard < 1
            if self._ends[turn]:
                goes_on &= ends.at(turn, live, alive) >= hazard
            alive[live] = goes_on
        return index

    def _results(self, index: np.ndarray) -> list[_Result]:
        """What walks came to: their table indices without padding, outcome and ending."""
        self._meet(index)
        lengths = (index >= 0).sum(axis=1)
        last = index[np.arange(len(index)), lengths - 1]
        columns = (
            self._rewards[index].sum(axis=1).tolist(),
            lengths.tolist(),
            self._move[last].tolist(),
        )
        return [
            _Result(own[:length], outcome, self._labels.shown(length, after))
            for own, outcome, length, after in zip(index, *columns, strict=True)
        ]

    def _meet(self, index: np.ndarray) -> None:
        """Makes the turns that are met for the first time; episodes share them."""
        found = index[index >= 0]
        new = np.unique(found[~self._is_met[found]])
        self._is_met[new] = True
        for place in new.tolist():
            turn, state, action, _ = (int(n) for n in np.unravel_index(place, self._shape))
            self._turns[place] = Turn(
                action=action,
                logprob=float(self._logprob[turn, state, action]),
                entropy=float(self._entropy[turn, state]),
                num_tokens=self._tokens,
                state=self._labels.shown(turn, state),
                reward=float(self._rewards[place]),
                info={"state_class": self._labels.state_class[state]},
            )

    def _forked(self, fork: Fork, result: _Result, tail: int) -> Episode:
        parent = fork.episode
        cost = (tail + fork.is_drawn) * self._tokens
        return self._episode(parent.task, parent.step, parent.row, result, fork, cost)

    def _equal(self, fork: Fork) -> Episode:
        """A fork whose decision came out equal: its parent's turns and outcome, not played."""
        assert fork.episode.outcome is not None
        index, ending = fork.episode.info["index"], fork.episode.final_state
        return self._forked(fork, _Result(index, fork.episode.outcome, ending), 0)

    def _episode(
        self, task: Task, step: int, row: int, result: _Result, fork: Fork | None, cost: int
    ) -> Episode:
        goal = self.tables.goal
        return Episode(
            task=task,
            step=step,
            row=row,
            turns=self._turns[result.places].tolist(),
            outcome=result.outcome,
            terminated=True,
            truncated=False,
            success=None if goal is None else result.outcome == goal,
            final_state=result.ending,
            fork=fork,
            sampled=cost,
            info={"index": result.places},
        )
