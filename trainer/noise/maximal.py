"""Noise of a turn that keeps the tokens of another as often as can be.

Leaves out the coupling of one token (`twinstats.maximal`), and where the other turn's logits come
from (`rollout.adoption`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.noise.sources import Noise
from twinstats.maximal import maximal
from twinstats.noise import NoiseKey


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaximalNoise:
    """The noise of a turn in the slot where another episode has a turn.

    If the other's tokens were drawn from the softmax of `logits / temperature`, what is drawn has
    the law of its own logits, and is the other's token at a position with the largest probability
    that there is.

    Attributes:
        coins: Key of purpose `maximal`: coins, and what replaces a token that is not kept.
        tokens: The other turn.
        logits: What each of its tokens was drawn from, (tokens, vocabulary).
        rest: The noise of positions past the other turn's end.
    """

    coins: NoiseKey
    tokens: tuple[int, ...]
    logits: np.ndarray
    rest: Noise

    @property
    def key(self) -> NoiseKey:
        """Whose noise draws what neither the other turn nor `rest` decides."""
        return self.rest if isinstance(self.rest, NoiseKey) else self.rest.key

    @staticmethod
    def draw(
        sources: Sequence["MaximalNoise"],
        logits_RV: np.ndarray,
        before: Sequence[Sequence[int]],
        temperature: float,
    ) -> list[int | None]:
        """The other turn's tokens at these positions, or what replaces them."""
        places = [len(tokens) for tokens in before]
        drawn: list[int | None] = [None] * len(sources)
        within = [row for row, one in enumerate(sources) if places[row] < len(one.tokens)]
        if within:
            kept = maximal(
                np.stack([sources[row].logits[places[row]] for row in within]),
                logits_RV[within],
                [sources[row].tokens[places[row]] for row in within],
                keys=[sources[row].coins for row in within],
                positions=[places[row] for row in within],
                temperature=temperature,
            )
            for row, token in zip(within, kept.tolist(), strict=True):
                drawn[row] = token
        for row in set(range(len(sources))).difference(within):
            rest = sources[row].rest
            if not isinstance(rest, NoiseKey):
                (drawn[row],) = rest.draw([rest], logits_RV[[row]], [before[row]], temperature)
        return drawn
