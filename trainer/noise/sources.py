"""Where the tokens of a turn come from: a key, or a source that knows more than one.

A source is a key with something to say about some of its positions: what explains a logged turn,
what keeps a factual's tokens, what avoids them. Leaves out keyed sampling itself (`trainer.noise`).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from trainer import noise
from twinstats.noise import NoiseKey

# R rows, V vocabulary


class Source(Protocol):
    """Draws some tokens of a turn in a way of its own."""

    @property
    def key(self) -> NoiseKey:
        """Whose noise draws the other tokens."""

    def draw(self, logits_V: np.ndarray, before: Sequence[int], temperature: float) -> int | None:
        """The token after `before` (the turn's tokens so far); null leaves it to the key.

        Args:
            logits_V: What it is drawn from, float64, after truncation.
            before: The turn's tokens so far.
            temperature: Positive.
        """


Noise = NoiseKey | Source
"""Where a turn's noise comes from."""

Sampler = Callable[[torch.Tensor, Sequence[Noise], Sequence[Sequence[int]], float], torch.Tensor]
"""Token ids (R,) from logits (R, V), noise, each turn's tokens so far, and a temperature."""


def sample(
    logits_RV: torch.Tensor,
    noises: Sequence[Noise],
    before: Sequence[Sequence[int]],
    temperature: float = 1.0,
) -> torch.Tensor:
    """The token of each row, as `trainer.noise.sample` has it, where some rows have a source.

    Raises:
        LogitsError: NaN or +inf logits, a row without a finite logit; names the row and its key.
        ValueError: Shapes that do not agree, or a temperature outside its range.
    """
    keys = [one if isinstance(one, NoiseKey) else one.key for one in noises]
    tokens_R = noise.sample(logits_RV, keys, [len(tokens) for tokens in before], temperature)
    if temperature == 0:
        return tokens_R
    for row, (one, tokens) in enumerate(zip(noises, before, strict=True)):
        if not isinstance(one, NoiseKey):
            drawn = one.draw(logits_RV[row].detach().double().cpu().numpy(), tokens, temperature)
            tokens_R[row] = tokens_R[row] if drawn is None else drawn
    return tokens_R
