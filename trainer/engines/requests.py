"""Turns as requests to an engine that is not ours: what is asked, what came back, what it cost.

Such an engine draws from keys alone (`trainer.processors`), and tells the log-probabilities of the
clean model at temperature 1. Leaves out how a request travels (`vllm`, `client`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.engines import Counts, SampledTurn, Session
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
    """

    stop: frozenset[int]
    max_tokens: int

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether a turn is over with the last of these tokens."""
        return tokens[-1] in self.stop or len(tokens) >= self.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A turn to be sampled.

    Attributes:
        prompt: All tokens before it.
        keyed: Whose noise draws it, at which temperature.
        ending: When it is over.
    """

    prompt: tuple[int, ...]
    keyed: KeyedRequest
    ending: Ending

    def excess(self, context: int) -> str | None:
        """Why the turn may not fit into a context of so many tokens; null where it does."""
        length = len(self.prompt) + self.ending.max_tokens
        if length <= context:
            return None
        return f"the turn may need {length} tokens, and the context has {context}"

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether tokens are a whole turn: over with the last of them, and not before."""
        ends = [self.ending.ends(tokens[: size + 1]) for size in range(len(tokens))]
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
        """Gives the session its turn; there is another request unless it is over."""
        # greedy turns have the law at temperature 1, as in the `hf` engine
        is_known = self._temperature in (0, 1)
        turn = SampledTurn(
            tokens=answer.tokens,
            logprobs=answer.logprobs if is_known else None,
            entropy=None,
            is_stopped=answer.tokens[-1] in self._ending.stop,
        )
        following = self._session.advance(turn)
        if following is None:
            self.is_over = True
            return
        before = (*self.request.prompt, *answer.tokens)
        self._encoded, self._is_first = len(before) - 1, False  # the last token never went in
        self.attempts = 0
        self.request = self._request((*before, *following))

    def _request(self, prompt: tuple[int, ...]) -> TurnRequest:
        keyed = KeyedRequest(key=_key(self._session.key()), temperature=self._temperature)
        return TurnRequest(prompt=prompt, keyed=keyed, ending=self._ending)


def _key(noise: Noise) -> NoiseKey:
    """The noise of a turn, if it is a key and nothing else."""
    if isinstance(noise, NoiseKey):
        return noise
    raise UsageError(
        f"vLLM draws from keys alone, and the noise of a turn is a {type(noise).__name__} "
        f"of {noise.key}: use `engine.name=hf`."
    )
