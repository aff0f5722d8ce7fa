"""Noise that explains a turn which somebody else sampled, beside ordinary keys.

Leaves out where the logits come from (`adoption`) and the noise itself (`twinstats.coupling`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer import noise
from twinstats.coupling import posterior_gumbel
from twinstats.noise import NoiseKey

# R rows, V vocabulary


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

    def at(self, position: int) -> np.ndarray:
        """Noise of every id at one of the logged tokens."""
        return posterior_gumbel(
            self.logits[position], self.tokens[position], self.key, position, self.temperature
        )


Noise = NoiseKey | LoggedNoise
"""Where a turn's noise comes from."""


def sample(
    logits_RV: torch.Tensor,
    noises: Sequence[Noise],
    positions: Sequence[int],
    temperature: float = 1.0,
) -> torch.Tensor:
    """The token of each row, as `trainer.noise.sample` has it, where some rows have logged noise.

    Those are drawn again, densely: argmax(logits / temperature + noise) in float64, the lowest id
    on ties.

    Raises:
        LogitsError: NaN or +inf logits, a row without a finite logit; names the row and its key.
        ValueError: Shapes that do not agree, a temperature or position outside its range.
    """
    keys = [one.key if isinstance(one, LoggedNoise) else one for one in noises]
    tokens_R = noise.sample(logits_RV, keys, positions, temperature)
    if temperature == 0:
        return tokens_R
    for row, (one, position) in enumerate(zip(noises, positions, strict=True)):
        if isinstance(one, LoggedNoise) and position < len(one.tokens):
            scaled = logits_RV[row].detach().double().cpu().numpy() / temperature
            tokens_R[row] = int(np.argmax(scaled + one.at(position)))
    return tokens_R
