"""What the updates of a step come to, in numbers, summed over their tokens.

Leaves out how they are made (`learner`).
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from trainer.learning.loss import Batch, Logprobs, Loss, kl, turn_sums

_NAN = float("nan")


@dataclass(slots=True)
class UpdateSums:
    """Sums over all tokens of all updates of a step; several processes add theirs up.

    Attributes:
        has_reference: Whether there is a policy to measure the KL to.
        trained: Trained tokens of the step's batch.
        tokens: Tokens that updates went over: those trained, once an epoch.
        clipped: Tokens at which clipping was active.
        capped: Tokens whose importance weight was cut.
        entropy: Of the tokens' distributions, nats.
        moved: k3 estimates of the KL from the behaviour policy, nats.
        kl: k3 estimates of the KL to the reference, nats.
        policy: The policy gradient's losses.
        gap: Largest distance of engine and learner over a turn, nats; NaN where none was told.
        gradient_norms: One an update that was made.
        refused: Updates that were not made, because the gradient was not finite.
    """

    has_reference: bool
    trained: int = 0
    tokens: int = 0
    clipped: int = 0
    capped: int = 0
    entropy: float = 0.0
    moved: float = 0.0
    kl: float = 0.0
    policy: float = 0.0
    gap: float = _NAN
    refused: int = 0
    gradient_norms: list[float] = field(default_factory=list)

    @torch.no_grad()
    def add(self, loss: Loss, logp: Logprobs, batch: Batch) -> None:
        """Counts a micro-batch in."""
        trained = batch.trained_RL
        assert logp.entropy is not None and logp.engine is not None
        self.tokens += int(trained.sum())
        self.clipped += loss.clipped
        self.capped += loss.capped
        self.policy += loss.policy
        self.entropy += float(logp.entropy[trained].sum())
        current = logp.current[trained].double()
        self.moved += float(kl(logp.behaviour[trained].double(), current, "k3").sum())
        if logp.reference is not None:
            self.kl += float(kl(current, logp.reference[trained].double(), "k3").sum())
        told = turn_sums((logp.behaviour - logp.engine)[trained].double(), batch).abs()
        self.gap = float(np.fmax(self.gap, _largest(told[_turns(batch)])))

    def metrics(self) -> dict[str, float]:
        """By name: means over tokens, and over updates for loss and gradient norm.

        The same names in every step; without an update, means are NaN (null in the log).
        """
        found = {
            "loss/policy_nats": _mean(self.policy, len(self.gradient_norms)),
            "loss/gradient_norm": _mean(sum(self.gradient_norms), len(self.gradient_norms)),
            "loss/clipped_share": _mean(self.clipped, self.tokens),
            "loss/capped_share": _mean(self.capped, self.tokens),
            "loss/entropy_nats": _mean(self.entropy, self.tokens),
            "loss/moved_nats": _mean(self.moved, self.tokens),
            "loss/trained_tokens": float(self.trained),
            "loss/updates_count": len(self.gradient_norms),
            "loss/refused_updates_count": self.refused,
            "engine/logprob_gap_nats": self.gap,
        }
        return found | ({"loss/kl_nats": _mean(self.kl, self.tokens)} if self.has_reference else {})


def _turns(batch: Batch) -> torch.Tensor:
    """The turns that a micro-batch's tokens belong to."""
    return batch.turn_RL[batch.trained_RL].unique()


def _largest(values: torch.Tensor) -> float:
    """The largest of the values that are numbers; NaN where none is."""
    known = values[~values.isnan()]
    return float(known.max()) if len(known) else _NAN


def _mean(total: float, count: int) -> float:
    return total / count if count else _NAN
