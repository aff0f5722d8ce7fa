"""One update of the policy from a step's credit, and what it tells about itself."""

from collections.abc import Sequence

import numpy as np
import torch

from trainer.config import Config
from trainer.loss import Batch, action_spans, make_batch, padded_episodes, policy_loss
from trainer.policy import Policy, token_logprobs
from twinstats.episodes import Credit, Episode


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    credits: Sequence[Credit],
    config: Config,
) -> dict[str, float]:
    """Takes one gradient step and returns metrics by name.

    Without any credit nothing is updated, and the loss is NaN (logged as null).

    Raises:
        RuntimeError: The gradient is not finite; nothing is updated.
    """
    if not any(has_credit(credit) for credit in credits):
        return {"loss/policy_nats": float("nan"), "loss/gradient_norm": float("nan")}
    batch = make_batch(credits)
    policy.model.eval()  # no dropout: the behaviour policy is the one that is updated
    logp, entropy = token_logprobs(
        policy.model,
        batch.ids_RL,
        batch.mask_RL,
        batch.trained_RL,
        temperature=config.rollout.temperature,
    )
    loss, clipped = policy_loss(logp, logp.detach(), batch, config.loss)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(
        policy.model.parameters(), config.optimizer.max_gradient_norm, error_if_nonfinite=True
    )
    optimizer.step()
    return {
        "loss/policy_nats": float(loss.detach()),
        "loss/gradient_norm": float(norm),
        "loss/clipped_share": float(clipped),
        "loss/entropy_nats": _trained_mean(entropy, batch),
        "loss/trained_tokens": float(batch.num_tokens),
    }


def has_credit(credit: Credit) -> bool:
    """Whether any turn of a group has credit."""
    return any(bool(np.isfinite(values).any()) for values in credit.values)


@torch.inference_mode()
def engine_gap(policy: Policy, episodes: Sequence[Episode], config: Config) -> float:
    """Largest difference between the engine's and the learner's log-probability of a turn, nats.

    Called before an update: both sides then have the same weights.
    """
    ids, mask, wanted = padded_episodes(episodes)
    logp, _ = token_logprobs(
        policy.model, ids, mask, wanted, temperature=config.rollout.temperature
    )
    return max(
        abs(float(logp[row, begin:end].sum()) - turn.logprob)
        for row, episode in enumerate(episodes)
        for turn, (begin, end) in zip(episode.turns, action_spans(episode), strict=True)
        if turn.logprob is not None
    )


def _trained_mean(values: torch.Tensor, batch: Batch) -> float:
    return float(values[batch.trained_RL].mean())
