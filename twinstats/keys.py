"""Which noise drives which turn of which episode.

An episode's turns draw from three streams: the decision at its fork turn, its tail, and its
environment from the fork turn on. A stream is a purpose and a luck number; with seed, step, row
and slot it is a `NoiseKey`. Every episode has one constant tail stream, found once per episode.

| episode | resampled turn | later turns | environment |
|---|---|---|---|
| factual | - | sample, 0 | environment, 0 |
| SHARED | alternative + parent's path, alternative + 1 | the parent's | the parent's |
| FRESH | as SHARED | fresh/ + own path, 0 | environment/ + own path, 0 |
| luck j | draw + parent's path, j | draw + parent's path, j | environment + parent's path, j |
"""

from dataclasses import dataclass

from twinstats.episodes import FRESH, Episode, Fork, Luck
from twinstats.noise import NoiseKey


@dataclass(frozen=True, slots=True)
class Stream:
    """A purpose and a luck number."""

    purpose: str
    luck: int = 0

    def key(self, seed: int, step: int, row: int, slot: int) -> NoiseKey:
        """The noise key of a turn that draws from this stream."""
        return NoiseKey(seed, step, row, slot, self.luck, self.purpose)


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of an episode from its fork turn on; `decision` is null for a factual."""

    decision: Stream | None
    tail: Stream
    environment: Stream


FACTUAL = Streams(None, Stream("sample"), Stream("environment"))


def episode_streams(episode: Episode) -> Streams:
    """The streams that drive an episode's turns after its own fork turn (all, if factual)."""
    return FACTUAL if episode.fork is None else fork_streams(episode.fork)


def fork_streams(fork: Fork) -> Streams:
    """The streams of the episode that a fork asks for."""
    if fork.alternative is None:
        raise ValueError("`alternative` must be a number before a fork is played.")
    above = fork.episode.path
    below = f"/{above}" if above else ""
    if isinstance(fork.luck, Luck):
        decision = Stream(f"alternative{below}", fork.alternative + 1)
        if fork.luck is FRESH:
            return Streams(
                decision, Stream(f"fresh/{fork.path}"), Stream(f"environment/{fork.path}")
            )
        parent = episode_streams(fork.episode)
        return Streams(decision, parent.tail, parent.environment)
    draw = Stream(f"draw{below}", fork.luck)
    return Streams(draw, draw, Stream(f"environment{below}", fork.luck))


def rejection(stream: Stream, attempt: int) -> Stream:
    """The stream of try number `attempt` of a rejection; try 0 is the stream itself."""
    return Stream(f"{stream.purpose}~{attempt}", stream.luck) if attempt else stream
