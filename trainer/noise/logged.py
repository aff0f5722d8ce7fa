"""Noise that explains a turn which somebody else sampled.

Leaves out where the logits come from (`rollout.adoption`) and the noise itself
(`twinstats.coupling`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinstats.coupling import posterior_gumbel
from twinstats.noise import NoiseKey


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoggedNoise:
    """The noise of a turn that was logged: given its logits, it draws its tokens.

    Averaged over tokens that the softmax of `logits / temperature` drew, it is iid standard Gumbel
    noise: whatever else is drawn with it has the law of its own logits. Past the logged tokens
    nothing is known of the noise, and it is the key's own.

    Attributes:
        key: Whose noise.
        tokens: The logged ids.
        logits: What each was drawn from, (tokens, vocabulary), after truncation.
        temperature: At which they were drawn, positive.
    """

    key: NoiseKey
    tokens: tuple[int, ...]
    logits: np.ndarray
    temperature: float

    @staticmethod
    def draw(
        sources: Sequence["LoggedNoise"],
        logits_RV: np.ndarray,
        before: Sequence[Sequence[int]],
        temperature: float,
    ) -> list[int | None]:
        """The largest perturbed logits under the noise that explains the logged tokens."""
        return [
            int(np.argmax(logits_V / temperature + one.at(len(tokens))))
            if len(tokens) < len(one.tokens)
            else None
            for one, logits_V, tokens in zip(sources, logits_RV, before, strict=True)
        ]

    def at(self, position: int) -> np.ndarray:
        """Noise of every id at one of the logged tokens."""
        return posterior_gumbel(
            self.logits[position], self.tokens[position], self.key, position, self.temperature
        )
