"""Draws the turns of a tokens world, token by token, over the whole vocabulary.

Every token is drawn by `twinstats.noise.sample` or `twinstats.maximal.maximal`; what the model
knows of classes is only used for log-probabilities. Turns are arrays (walk, position), -1 after
their end. Leaves out which keys drive which turn (`tokens`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulations.worlds.tabular_model import log_softmax
from simulations.worlds.tokens_model import STOP, TokensModel
from twinstats.maximal import maximal
from twinstats.noise import KeyColumns, sample

_CELLS = 1_000_000  # logits held at once: more would leave the cache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """What the maximal coupling keeps of the parents' turns, one entry a walk.

    Attributes:
        tokens: The parent's turn in the same slot (walk, position); -1 where it has no token.
        state: The state in which the parent said it.
        keys: Where coins and residual noise come from, at the slot.
    """

    tokens: np.ndarray
    state: np.ndarray
    keys: KeyColumns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Speech:
    """Turns to be drawn together, one entry a walk.

    Attributes:
        turn: Number of the turn.
        state: State it is said in.
        keys: Key of its tokens.
        start: Position of its first token under that key.
        other: Turns that must not be said (walk, position); null: none. A row of -1 forbids none.
        draft: For the maximal coupling; null: none.
    """

    turn: np.ndarray
    state: np.ndarray
    keys: KeyColumns
    start: np.ndarray
    other: np.ndarray | None = None
    draft: Draft | None = None


class Voice:
    """Draws turns from the policy of a model, and says how likely turns are."""

    def __init__(self, model: TokensModel) -> None:
        self._model = model
        self._limit = model.setting.limit
        self._class_of = model.class_of
        self._logprob = log_softmax(model.logits)

    def draw(self, speech: Speech) -> np.ndarray:
        """The turns (walk, position)."""
        tokens = np.full((len(speech.turn), self._limit), -1)
        live = np.arange(len(speech.turn))
        banned = None if speech.other is None else self._banned(speech, speech.other)
        most = max(1, _CELLS // self._model.setting.vocabulary)
        for position in range(self._limit):
            for begin in range(0, len(live), most):
                part = live[begin : begin + most]
                drafted = self._keep(speech, tokens, part, position)
                part = part[~drafted]
                if len(part):
                    tokens[part, position] = self._next(speech, tokens, part, position, banned)
            live = live[tokens[live, position] != STOP]
        return tokens

    def classes(self, tokens: np.ndarray) -> np.ndarray:
        """The class of each token; -1 where there is none."""
        return np.where(tokens >= 0, self._class_of[tokens], -1)

    def logprobs(self, turn: np.ndarray, state: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Log-probability of each token of each turn (walk, position); 0 where there is none."""
        classes = self.classes(tokens)
        previous = np.column_stack([np.zeros(len(tokens), np.int64), classes[:, :-1]])
        context = turn[:, None], state[:, None], np.maximum(previous, 0)
        style = self._model.style_of[context]
        found = self._logprob[(*context, classes)] + self._model.styles[style, tokens]
        return np.where(tokens >= 0, found, 0.0)

    def meanings(self, tokens: np.ndarray) -> np.ndarray:
        """What each turn means: the mode that the automaton ends in."""
        mode = np.zeros(len(tokens), np.int64)
        for classes in self.classes(tokens).T:
            mode = np.where(classes >= 0, self._model.after[mode, classes], mode)
        return mode

    def _next(
        self,
        speech: Speech,
        tokens: np.ndarray,
        part: np.ndarray,
        position: int,
        banned: np.ndarray | None,
    ) -> np.ndarray:
        """The next token of some walks."""
        logits = self._logits(speech.turn[part], speech.state[part], tokens[part], position)
        if banned is not None and speech.other is not None:
            _lower(logits, tokens[part], speech.other[part], banned[part], position)
        return sample(logits, speech.keys.take(part), speech.start[part] + position)

    def _logits(
        self, turn: np.ndarray, state: np.ndarray, tokens: np.ndarray, position: int
    ) -> np.ndarray:
        previous = self._class_of[tokens[:, position - 1]] if position else np.zeros_like(turn)
        return self._model.token_logits((turn, state, previous))

    def _keep(
        self, speech: Speech, tokens: np.ndarray, part: np.ndarray, position: int
    ) -> np.ndarray:
        """Draws the token of walks whose draft has one, by the maximal coupling; says of which."""
        draft = speech.draft
        if draft is None:
            return np.zeros(len(part), bool)
        drafted: np.ndarray = draft.tokens[part, position] >= 0
        own = part[drafted]
        if len(own):
            tokens[own, position] = maximal(
                self._logits(speech.turn[own], draft.state[own], draft.tokens[own], position),
                self._logits(speech.turn[own], speech.state[own], tokens[own], position),
                draft.tokens[own, position],
                keys=draft.keys.take(own),
                positions=np.full(len(own), position),
            )
        return drafted

    def _banned(self, speech: Speech, other: np.ndarray) -> np.ndarray:
        """log(1 - probability of the rest of the turn) behind each token of a forbidden turn.

        pi(. | not a) along a's prefix: the probability of a's next token times one minus the
        probability of what follows it in a. Nothing follows its last token, which is ruled out.
        """
        logprob = self.logprobs(speech.turn, speech.state, other)
        rest = logprob.sum(axis=1, keepdims=True) - np.cumsum(logprob, axis=1)
        follows = np.column_stack([other[:, 1:] >= 0, np.zeros(len(other), bool)])
        with np.errstate(divide="ignore"):
            left = np.log(-np.expm1(np.minimum(rest, 0.0)))
        return np.where(follows, left, -np.inf)


def padded(turns: Sequence[Sequence[int]], limit: int) -> np.ndarray:
    """Turns as an array (turn, position), -1 after their end."""
    tokens = np.full((len(turns), limit), -1)
    for row, turn in zip(tokens, turns, strict=True):
        row[: len(turn)] = turn
    return tokens


def unpadded(tokens: np.ndarray) -> list[tuple[int, ...]]:
    """Turns as tuples, of an array (turn, position) with -1 after their end."""
    lengths = (tokens >= 0).sum(axis=1).tolist()
    return [tuple(own[:length]) for own, length in zip(tokens.tolist(), lengths, strict=True)]


def _lower(
    logits: np.ndarray, said: np.ndarray, other: np.ndarray, banned: np.ndarray, position: int
) -> None:
    """Takes away from the forbidden turn's next token, in walks that have followed it so far."""
    follows = (said[:, :position] == other[:, :position]).all(axis=1) & (other[:, position] >= 0)
    row = np.flatnonzero(follows)
    logits[row, other[row, position]] += banned[row, position]
