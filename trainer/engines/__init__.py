"""Engines sample the turns of many sessions at once, with keyed noise.

A session is one episode being played. The engine encodes its tokens, samples a turn, hands the
turn over, and gets the tokens that follow it, until the session is over. Where the noise of a
turn comes from is the session's business; how sessions are batched is the engine's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from trainer.noise.sources import Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """A turn as it was sampled.

    Attributes:
        tokens: Its ids, stop token included.
        logprobs: Log-probability of each under the clean model at the sampling temperature, nats;
            null where the engine does not know them.
        entropy: Mean entropy of the distributions they were drawn from, nats a token; or null.
        is_stopped: It ended with a stop token; else a limit cut it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    entropy: float | None
    is_stopped: bool

    @property
    def logprob(self) -> float | None:
        """Log-probability of the whole turn."""
        return None if self.logprobs is None else math.fsum(self.logprobs)


class Session(Protocol):
    """One episode being played."""

    def start(self) -> list[int]:
        """The tokens before the first sampled turn; at least one."""

    def key(self) -> Noise:
        """The noise of the turn that is sampled next, asked for once a turn."""

    def draft(self) -> Sequence[int]:
        """Tokens that the turn sampled next may well have, asked for once a turn; often none.

        A guess for speed: it never changes what is sampled.
        """

    def advance(self, turn: SampledTurn) -> list[int] | None:
        """Takes a turn and returns the tokens that follow it; null when the episode is over."""

    def fail(self, reason: str) -> None:
        """The engine cannot sample the turn, for a reason: the episode is over, without outcome."""


@dataclass(slots=True)
class Counts:
    """What an engine did since it was last asked, in tokens but for `passes`.

    Attributes:
        passes: Forward passes of the model (null passes of a server's are not known: 0).
        encoded: Tokens that went into the model.
        reencoded: Those among them that had been encoded before with the same weights: a prefix
            whose cache was not kept.
        reused: Tokens before a session's first turn whose cache was taken over.
        sampled: Tokens that were sampled.
        drafted: Tokens of drafts that were verified.
        accepted: Those among them that were sampled.
    """

    passes: int = 0
    encoded: int = 0
    reencoded: int = 0
    reused: int = 0
    sampled: int = 0
    drafted: int = 0
    accepted: int = 0

    def take(self) -> "Counts":
        """The counts so far, which start again at 0."""
        taken = Counts(**{item.name: getattr(self, item.name) for item in fields(self)})
        for item in fields(self):
            setattr(self, item.name, 0)
        return taken


class Engine(Protocol):
    """Samples the turns of sessions.

    Attributes:
        counts: What it did.
        explains: Whether it draws with noise that is more than a key: `trainer.noise.sources`.
    """

    counts: Counts
    explains: bool

    def run(self, sessions: Sequence[Session], *, temperature: float) -> None:
        """Plays all sessions to their ends.

        A session whose turn cannot be sampled fails (`Session.fail`), and the others go on.
        """

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether a turn is over with the last of these tokens."""

    def sync(self) -> None:
        """Takes up the policy's weights of now; called after each change of them.

        Raises:
            RuntimeError: The engine's log-probabilities are not the learner's after it.
        """
