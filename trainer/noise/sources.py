"""Where the tokens of a turn come from: a key, or a source that knows more than one.

A source is a key with something to say about some of its positions: what explains a logged turn,
what keeps a factual's tokens, what avoids them. Leaves out keyed sampling itself (`trainer.noise`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from trainer import noise
from twinstats.noise import LogitsError, NoiseKey

# R rows, V vocabulary


class Source(Protocol):
    """Draws some tokens of a turn in a way of its own."""

    @property
    def key(self) -> NoiseKey:
        """Whose noise draws the other tokens."""

    @staticmethod
    def draw(
        sources: Sequence[Any],
        logits_RV: np.ndarray,
        before: Sequence[Sequence[int]],
        temperature: float,
    ) -> list[int | None]:
        """The next token of each turn; null leaves it to the key.

        Args:
            sources: One a row, all of this kind.
            logits_RV: What the tokens are drawn from, float64, after truncation.
            before: Each turn's tokens so far.
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
    kinds: dict[type[Source], list[int]] = {}
    for row, one in enumerate(noises):
        if not isinstance(one, NoiseKey):
            kinds.setdefault(type(one), []).append(row)
    for kind, rows in kinds.items():
        drawn = _drawn(kind, rows, logits_RV, noises=noises, before=before, temperature=temperature)
        for row, token in zip(rows, drawn, strict=True):
            tokens_R[row] = tokens_R[row] if token is None else token
    return tokens_R


def _drawn(
    kind: type[Source],
    rows: list[int],
    logits_RV: torch.Tensor,
    *,
    noises: Sequence[Noise],
    before: Sequence[Sequence[int]],
    temperature: float,
) -> list[int | None]:
    """What the sources of one kind draw; the row that an error names is that of all rows."""
    logits = logits_RV[rows].detach().double().cpu().numpy()
    own = [noises[row] for row in rows], logits, [before[row] for row in rows]
    try:
        return kind.draw(*own, temperature)
    except LogitsError as error:
        if len(rows) == 1:
            raise LogitsError(str(error), rows[0]) from error
    one_by_one = (
        _drawn(kind, [row], logits_RV, noises=noises, before=before, temperature=temperature)
        for row in rows
    )
    return [token for (token,) in one_by_one]
