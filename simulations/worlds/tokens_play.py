"""Plays walks through a tokens world: turns from the voice, coins from the environment.

Leaves out which streams drive a fork (`tokens`).
"""

from dataclasses import dataclass

import numpy as np

from simulations.worlds.slots import at_slots
from simulations.worlds.tabular_model import TabularModel
from simulations.worlds.tokens_model import TokensModel, TurnLaw
from simulations.worlds.tokens_voice import Draft, Speech, Voice, unpadded
from twinstats.episodes import Turn
from twinstats.noise import KeyColumns, uniforms

_COIN, _END = 0, 1  # lanes of the environment's uniforms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Walks to be played together, one entry a walk.

    Attributes:
        start: Its first turn.
        state: The state at that turn.
        first: What is said in that turn (walk, position); a row of -1 is drawn from the tail.
        before: Tokens before that turn: shown, and sampled (two rows).
        tail: Keys of its turns, at slot 0.
        environment: Keys of its environment, at slot 0.
        draft: For the maximal coupling: the parents' turns (walk, turn, position), the states they
            were said in (walk, turn), and keys at slot 0; null: no walk is coupled so.
    """

    start: np.ndarray
    state: np.ndarray
    first: np.ndarray
    before: np.ndarray
    tail: KeyColumns
    environment: KeyColumns
    draft: tuple[np.ndarray, np.ndarray, KeyColumns] | None = None


class Player:
    """Plays batches of walks."""

    def __init__(
        self, model: TokensModel, tables: TabularModel, law: TurnLaw, voice: Voice
    ) -> None:
        self._model, self._tables, self._law, self._voice = model, tables, law, voice
        self._rewards = tables.reward.reshape(-1)
        self._shape = tables.move.shape

    def play(self, batch: Batch) -> list[tuple[list[Turn], np.ndarray]]:
        """The turns that each walk played and their table indices, from its first turn on."""
        said, index = self._walk(batch)
        walk, turn = (index >= 0).nonzero()
        turns = self._turns(said[walk, turn], index[walk, turn])
        lengths = (index >= 0).sum(axis=1)
        ends = np.cumsum(lengths)
        own = index[walk, turn]
        return [
            (turns[begin:end], own[begin:end])
            for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        ]

    def _walk(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Plays all walks: tokens (walk, turn, position), table indices (walk, turn), else -1."""
        horizon = self._shape[0]
        said = np.full((len(batch.start), horizon, self._model.setting.limit), -1)
        index = np.full((len(batch.start), horizon), -1)
        state, before = batch.state.copy(), batch.before.copy()
        alive = np.ones(len(batch.start), bool)
        for turn in range(int(batch.start.min(initial=horizon)), horizon):
            live = np.flatnonzero(alive & (batch.start <= turn))
            before[0, live] += self._model.shown[state[live]]
            tokens = self._say(batch, live, turn, state[live], before[:, live])
            before[1, live] += (tokens >= 0).sum(axis=1)
            said[live, turn] = tokens
            environment = at_slots(batch.environment.take(live), np.full(len(live), turn))
            index[live, turn], state[live], alive[live] = self._answer(
                environment, turn, state[live], self._voice.meanings(tokens)
            )
        return said, index

    def _say(
        self, batch: Batch, live: np.ndarray, turn: int, state: np.ndarray, before: np.ndarray
    ) -> np.ndarray:
        """What is said in a turn: what was decided, or drawn from the tail's noise."""
        tokens = np.where((batch.start[live] == turn)[:, None], batch.first[live], -1)
        free = np.flatnonzero(tokens[:, 0] < 0)
        if not len(free):
            return tokens
        walks = live[free]
        turns = np.full(len(free), turn)
        keys, start = self.named(batch.tail.take(walks), turns, before[:, free])
        draft = None
        if batch.draft is not None:
            parents, states, coins = batch.draft
            draft = Draft(
                tokens=parents[walks, turn],
                state=states[walks, turn],
                keys=at_slots(coins.take(walks), turns),
            )
        speech = Speech(turn=turns, state=state[free], keys=keys, start=start, draft=draft)
        tokens[free] = self._voice.draw(speech)
        return tokens

    def _answer(
        self, keys: KeyColumns, turn: int, state: np.ndarray, meaning: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The environment's coins: table index, state moved to, whether the episode goes on."""
        tables = self._tables
        coin = uniforms(keys, 0, _COIN) < tables.chance[turn, state, meaning]
        place = np.full_like(state, turn), state, meaning, coin.astype(np.int64)
        after = tables.move[place]
        goes_on = uniforms(keys, 0, _END) >= tables.hazard[turn, after]
        return np.ravel_multi_index(place, self._shape), after, goes_on

    def _turns(self, said: np.ndarray, index: np.ndarray) -> list[Turn]:
        """Turns from their tokens (turn, position) and table indices."""
        turn, state, _, _ = np.unravel_index(index, self._shape)
        columns = (
            unpadded(said),
            self._voice.logprobs(turn, state, said).sum(axis=1).tolist(),
            self._law.entropy[turn, state].tolist(),
            turn.tolist(),
            state.tolist(),
            self._rewards[index].tolist(),
        )
        return [
            Turn(
                action=action,
                logprob=logprob,
                entropy=entropy,
                num_tokens=len(action),
                state=(number, place),
                reward=reward,
                info={"state_class": str(place)},
            )
            for action, logprob, entropy, number, place, reward in zip(*columns, strict=True)
        ]

    def named(
        self, keys: KeyColumns, turn: np.ndarray, before: np.ndarray
    ) -> tuple[KeyColumns, np.ndarray]:
        """Keys of turns and the positions that their tokens start at, by the setting's keying."""
        if self._model.setting.keying == "position":
            return keys, before.sum(axis=0)
        if self._model.setting.keying == "generator":
            return keys, before[1]
        return at_slots(keys, turn), np.zeros_like(turn)
