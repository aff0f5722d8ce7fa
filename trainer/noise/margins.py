"""Keyed sampling that counts near-ties: tokens that a small change of their logits would change.

Where numbers are not exact (another batch, another kernel, another machine), these are the tokens
that may come out otherwise. Leaves out what draws them (`sources`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.noise import sources
from trainer.noise.sources import Noise


@dataclass(slots=True)
class Margins:
    """Draws what `sources.sample` draws, twice, and counts.

    A token is at risk if its score, logit / temperature + noise, leads by less than the tolerance:
    with its logit lowered by as much another token is drawn. Greedy tokens are compared by logit.
    A token that a source draws in a way of its own (`sources`) is counted as that source has it.

    Attributes:
        tolerance: In nats.
        drawn: Tokens drawn so far.
        at_risk: Those among them that are at risk.
    """

    tolerance: float
    drawn: int = 0
    at_risk: int = 0

    def __call__(
        self,
        logits_RV: torch.Tensor,
        noises: Sequence[Noise],
        before: Sequence[Sequence[int]],
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """The token of each row.

        Raises:
            LogitsError: As `sources.sample`; nothing is counted then.
        """
        tokens_R = sources.sample(logits_RV, noises, before, temperature)
        lowered_RV = logits_RV.to(torch.float64, copy=True)  # float32 would round a little away
        step = self.tolerance * (temperature or 1.0)
        lowered_RV[torch.arange(len(tokens_R)), tokens_R] -= step
        again_R = sources.sample(lowered_RV, noises, before, temperature)
        self.drawn += len(tokens_R)
        self.at_risk += int((again_R != tokens_R).sum())
        return tokens_R

    def take(self) -> dict[str, float]:
        """The counts so far as metrics, which start again at 0."""
        found = {"drawn": self.drawn, "at_risk": self.at_risk}
        self.drawn = self.at_risk = 0
        return {f"noise/{name}_count": float(count) for name, count in found.items()}
