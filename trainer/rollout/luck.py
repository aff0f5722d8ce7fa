"""The noise of one episode: where its turns and its tools draw from, slot by slot.

Mostly a key of the streams of `twinstats.keys`; a source where more is known: a tail that explains
what was logged or keeps the parent's tokens, a decision that must not be the parent's. Leaves out
how sources draw (`trainer.noise`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from trainer.noise.different import DifferentNoise
from trainer.noise.maximal import MaximalNoise
from trainer.noise.sources import Noise
from trainer.rollout.adoption import logged_noise
from twinstats.episodes import DIFFERENT, RESAMPLE, SHARED, Episode, Fork
from twinstats.keys import FACTUAL, Stream, Streams, fork_streams, rejection
from twinstats.maximal import maximal_stream
from twinstats.noise import NoiseKey

RESET_SLOT = 2**16 - 1
"""The slot whose noise an environment's `reset` gets: the last one, which no turn may have."""

TurnLogits = Mapping[Episode, Sequence[np.ndarray]]
"""Of episodes, turn by turn, the logits (tokens, vocabulary) that the tokens were drawn from."""


class Luck:
    """Whose noise drives an episode.

    Args:
        blank: The episode before its first turn.
        seed: The run's seed.
        factual: The streams of a factual; an evaluation has its own.
        explains: The engine draws with sources; else with keys alone.
        shares_tools: A fork's tools share the luck that its tail shares; else they have their own.
        logits: Of the parents that forks are coupled with maximally.
    """

    def __init__(
        self,
        blank: Episode,
        *,
        seed: int,
        factual: Streams = FACTUAL,
        explains: bool = True,
        shares_tools: bool = True,
        logits: TurnLogits | None = None,
    ) -> None:
        self._blank, self._seed, self._factual = blank, seed, factual
        self._explains, self._shares_tools = explains, shares_tools
        self._streams = self._streams_of(blank)
        self._logged = logged_noise(blank.fork)
        self._later = _later_turns(blank.fork)
        self._logits = logits or {}

    def reset(self) -> NoiseKey:
        """What the environment's start draws from: a fork starts as its factual did."""
        return self._key(self._factual.environment, RESET_SLOT)

    def tool(self, slot: int) -> NoiseKey:
        """What the environment draws from after a turn of the episode's own."""
        return self._key(self._streams.environment, slot)

    def replayed_tool(self, turn: int, slot: int) -> NoiseKey:
        """What it drew from after a turn of the prefix: the luck of the turn's owner."""
        assert self._blank.fork is not None
        owner = self._blank.fork.episode.owner(turn)
        return self._key(self._streams_of(owner).environment, slot)

    def decision(self, slot: int, attempt: int = 0) -> Noise:
        """What a fork's turn is drawn from.

        Where it must not be the parent's: a source that never draws it, if the engine has sources
        and the parent's log-probabilities are known; else the key of a try of a rejection.
        """
        fork, stream = self._blank.fork, self._streams.decision
        assert fork is not None and stream is not None
        parent = fork.episode.turns[fork.turn]
        logprobs = parent.info["logprobs"]
        if fork.action is DIFFERENT and self._explains and logprobs is not None:
            key = self._key(stream, slot)
            return DifferentNoise(key=key, tokens=parent.action, logprobs=logprobs)
        return self._key(rejection(stream, attempt), slot)

    def tail(self, slot: int) -> Noise:
        """What a turn after the fork's, or any of a factual, is drawn from."""
        stream = self._streams.tail
        is_logged = stream == FACTUAL.tail and slot in self._logged
        rest: Noise = self._logged[slot] if is_logged else self._key(stream, slot)
        fork = self._blank.fork
        if fork is None or not fork.is_maximal or slot not in self._later:
            return rest
        turn = self._later[slot]
        return MaximalNoise(
            coins=self._key(maximal_stream(fork), slot),
            tokens=fork.episode.turns[turn].action,
            logits=self._logits[fork.episode][turn],
            rest=rest,
        )

    def draft(self, slot: int, *, is_decision: bool) -> tuple[int, ...]:
        """What the parent said where the luck, or the context, makes it likely to be said again."""
        fork = self._blank.fork
        if fork is None:
            return ()
        if is_decision:
            turn = fork.turn if fork.action is RESAMPLE else None
        else:
            turn = self._later.get(slot) if fork.luck is SHARED else None
        return () if turn is None else tuple(fork.episode.turns[turn].action)

    def _streams_of(self, episode: Episode) -> Streams:
        """The streams of this episode or an ancestor, from its fork turn on."""
        if episode.fork is None:
            return self._factual
        streams = fork_streams(episode.fork)
        if self._shares_tools:
            return streams
        return replace(streams, environment=Stream(f"environment/{episode.fork.path}"))

    def _key(self, stream: Stream, slot: int) -> NoiseKey:
        return stream.key(self._seed, self._blank.step, self._blank.row, slot)


def _later_turns(fork: Fork | None) -> dict[int, int]:
    """The parent's turns after the fork, by their slots."""
    if fork is None:
        return {}
    parent = fork.episode
    return {parent.slot(turn): turn for turn in range(fork.turn + 1, parent.num_turns)}
