"""Engines sample the turns of many sessions at once, with keyed noise.

A session is one episode being played. The engine encodes its tokens, samples a turn, hands the
turn over, and gets the tokens that follow it, until the session is over. Where the noise of a
turn comes from is the session's business; how sessions are batched is the engine's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.noise.logged import Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """A turn as it was sampled.

    Attributes:
        tokens: Its ids, stop token included.
        logprob: Their summed log-probability at the sampling temperature, nats.
        entropy: Mean entropy of the distributions they were drawn from, nats a token.
        is_stopped: It ended with a stop token; else a limit cut it.
    """

    tokens: tuple[int, ...]
    logprob: float
    entropy: float
    is_stopped: bool


class Session(Protocol):
    """One episode being played."""

    def start(self) -> list[int]:
        """The tokens before the first sampled turn; at least one."""

    def key(self) -> Noise:
        """The noise of the turn that is sampled next, asked for once a turn.

        Its key, or with `LoggedNoise` the noise that explains a turn which was sampled elsewhere.
        """

    def advance(self, turn: SampledTurn) -> list[int] | None:
        """Takes a turn and returns the tokens that follow it; null when the episode is over."""


class Engine(Protocol):
    """Samples the turns of sessions."""

    def run(self, sessions: Sequence[Session], *, temperature: float) -> None:
        """Plays all sessions to their ends."""

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether a turn is over with the last of these tokens."""
