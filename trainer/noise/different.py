"""Noise of a turn that must not be a given one.

Leaves out engines that take nothing but keys: there a turn that came out as the given one is drawn
again (`trainer.rollout.play`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinstats.noise import NoiseKey, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentNoise:
    """Draws a turn from the policy's law of turns, conditioned on not being a given turn.

    Along the given turn's prefix the probability of its next token is multiplied by 1 minus the
    probability of the rest of the turn behind that token; everywhere else the law is the policy's.
    Whatever is not the given turn keeps its probability, over 1 - pi(given).

    Attributes:
        key: Whose noise.
        tokens: The turn that must not be.
        logprobs: Log-probability of each of its tokens at the sampling temperature, nats; their
            product must be below 1, or nothing else can be drawn.
    """

    key: NoiseKey
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @staticmethod
    def draw(
        sources: Sequence["DifferentNoise"],
        logits_RV: np.ndarray,
        before: Sequence[Sequence[int]],
        temperature: float,
    ) -> list[int | None]:
        """The next token of each turn that goes as the given one so far; else the key's own."""
        return [
            one._next(logits_V / temperature, tuple(tokens))
            for one, logits_V, tokens in zip(sources, logits_RV, before, strict=True)
        ]

    def _next(self, scaled_V: np.ndarray, before: tuple[int, ...]) -> int | None:
        position = len(before)
        if position >= len(self.tokens) or before != self.tokens[:position]:
            return None
        scaled_V[self.tokens[position]] += self._left(position)
        return int(sample(scaled_V[None], [self.key], [position])[0])

    def _left(self, position: int) -> float:
        """Log of 1 - probability of the given turn's tokens behind a position."""
        rest = math.fsum(self.logprobs[position + 1 :])
        # what follows has probability 1: nothing (the last token), or nothing else to the float
        return -math.inf if rest >= 0 else math.log(-math.expm1(rest))
