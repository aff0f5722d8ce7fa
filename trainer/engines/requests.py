"""Turns as requests to an engine that is not ours: what is asked, what came back, what it cost.

Such an engine draws from keys alone (`trainer.processors`), and tells the log-probabilities of the
clean model at temperature 1. Leaves out how a request travels (`vllm`, `client`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer.engines import Counts, SampledTurn, Session
from trainer.engines.stops import StopTexts
from trainer.noise.sources import Noise
from trainer.processors.request import KeyedRequest
from twinstats.errors import UsageError
from twinstats.noise import NoiseKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """When a turn is over.

    Attributes:
        stop: Ids that end it.
        max_tokens: It ends here without one.
        texts: Texts that end it.
    """

    stop: frozenset[int]
    max_tokens: int
    texts: StopTexts | None = None

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether a turn is over with the last of these tokens."""
        return self.is_stopped(tokens) or len(tokens) >= self.max_tokens

    def is_stopped(self, tokens: Sequence[int]) -> bool:
        """Whether the last of these tokens ends a turn, whatever the limit."""
        by_text = self.texts is not None and self.texts.end(tokens)
        return tokens[-1] in self.stop or by_text

    @property
    def pauses(self) -> frozenset[int]:
        """Ids at which an engine that knows ids alone hands a turn over: they may end it."""
        return self.stop if self.texts is None else self.stop | self.texts.closers


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A turn to be sampled, or the rest of one.

    Attributes:
        prompt: All tokens before it; then those of the turn that are sampled already.
        keyed: Whose noise draws it, at which temperature.
        ending: When it is over.
        sampled: The tokens of the turn that are sampled already.
    """

    prompt: tuple[int, ...]
    keyed: KeyedRequest
    ending: Ending
    sampled: tuple[int, ...] = ()

    @property
    def max_tokens(self) -> int:
        """The most that is left to be sampled."""
        return self.ending.max_tokens - len(self.sampled)

    def rest(self, tokens: Sequence[int]) -> "TurnRequest":
        """The request for what comes after some more tokens of the turn."""
        sampled = (*self.sampled, *tokens)
        keyed = replace(self.keyed, position=len(sampled))
        return replace(self, prompt=(*self.prompt, *tokens), keyed=keyed, sampled=sampled)

    def excess(self, context: int) -> str | None:
        """Why the turn may not fit into a context of so many tokens; null where it does."""
        length = len(self.prompt) + self.max_tokens
        if length <= context:
            return None
        return f"the turn may need {length} tokens, and the context has {context}"

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether tokens go to where the turn may be over: with the last of them, not before."""
        turn, pauses = (*self.sampled, *tokens), self.ending.pauses
        ends = [
            turn[size - 1] in pauses or size >= self.ending.max_tokens
            for size in range(len(self.sampled) + 1, len(turn) + 1)
        ]
        return bool(ends) and ends[-1] and not any(ends[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was sampled for a request.

    Attributes:
        tokens: The turn's ids.
        logprobs: Log-probability of each under the clean model at temperature 1, nats.
        cached: Tokens of the prompt that were served from the engine's prefix cache.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: int


class Player:
    """A session, and the request for the turn that it samples next.

    Args:
        session: The session; `start` and `key` are asked here.
        ending: When its turns are over.
        temperature: Of sampling.

    Raises:
        UsageError: The noise of its turn is more than a key.

    Attributes:
        request: For the turn that is sampled next.
        attempts: Times that it was asked for in vain.
        is_over: Whether nothing is left to sample.
    """

    def __init__(self, session: Session, *, ending: Ending, temperature: float) -> None:
        self._session = session
        self._ending, self._temperature = ending, temperature
        self._encoded = 0  # tokens of the prompt that went into the model for the turn before
        self._is_first = True
        self._logprobs: tuple[float, ...] = ()  # of the turn, so far
        self.attempts, self.is_over = 0, False
        self.request = self._request(tuple(session.start()))

    def count(self, answer: Answer, counts: Counts) -> None:
        """Adds what an answer to the player's request has cost."""
        counts.sampled += len(answer.tokens)
        counts.encoded += len(self.request.prompt) - answer.cached + len(answer.tokens) - 1
        counts.reencoded += max(0, self._encoded - answer.cached)
        counts.reused += answer.cached if self._is_first else 0

    def fail(self, reason: str) -> None:
        """Ends the session: its turn cannot be sampled."""
        self.is_over = True
        self._session.fail(reason)

    def take(self, answer: Answer) -> None:
        """Gives the session its turn if it is whole; there is another request unless it is over."""
        before = (*self.request.prompt, *answer.tokens)
        tokens = (*self.request.sampled, *answer.tokens)
        self._logprobs += answer.logprobs
        self._encoded, self._is_first = len(before) - 1, False  # the last token never went in
        self.attempts = 0
        if not self._ending.ends(tokens):
            self.request = self.request.rest(answer.tokens)
            return
        # greedy turns have the law at temperature 1, as in the `hf` engine
        is_known = self._temperature in (0, 1)
        turn = SampledTurn(
            tokens=tokens,
            logprobs=self._logprobs if is_known else None,
            entropy=None,
            is_stopped=self._ending.is_stopped(tokens),
        )
        following = self._session.advance(turn)
        self.is_over, self._logprobs = following is None, ()
        if following is not None:
            self.request = self._request((*before, *following))

    def _request(self, prompt: tuple[int, ...]) -> TurnRequest:
        key, temperature = _key(self._session.key()), self._temperature
        keyed = KeyedRequest(key=key, temperature=temperature, is_tolerant=True)
        return TurnRequest(prompt=prompt, keyed=keyed, ending=self._ending)


def _key(noise: Noise) -> NoiseKey:
    """The noise of a turn, if it is a key and nothing else."""
    if isinstance(noise, NoiseKey):
        return noise
    raise UsageError(
        f"vLLM draws from keys alone, and the noise of a turn is a {type(noise).__name__} "
        f"of {noise.key}: use `engine.name=hf`."
    )
