"""Top-k and top-p on tensors, the rule of `twinstats.noise.truncate`, with settings row by row."""

import math

import torch

# R rows, V vocabulary


def truncate(
    logits_RV: torch.Tensor,
    *,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    temperature: torch.Tensor,
) -> torch.Tensor:
    """Logits with everything outside top-k, then outside top-p of the rest, set to -inf.

    Exactly k are kept, lower ids first on ties; off: top_k 0, top_p 1. All settings are one a row;
    a temperature of 0 counts as 1 (the largest logit is kept either way), and a `top_p` rounded to
    float32 is another number.
    """
    if bool(((top_k == 0) & (top_p == 1)).all()):
        return logits_RV
    ranked_RV, order_RV = logits_RV.double().sort(dim=1, descending=True, stable=True)
    rank_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    kept_RV = (top_k[:, None] == 0) | (rank_V < top_k[:, None])
    scale = torch.where(temperature > 0, temperature, 1.0)[:, None]
    weight_RV = ((ranked_RV - ranked_RV[:, :1]) / scale).exp().where(kept_RV, 0.0)
    mass_RV = weight_RV.cumsum(1) / weight_RV.sum(1, keepdim=True)
    # A token stays while the mass before it is short of top_p; 1e-12 forgives rounding of sums.
    kept_RV[:, 1:] &= (mass_RV[:, :-1] < top_p[:, None] - 1e-12) | (top_p[:, None] == 1)
    mask_RV = torch.zeros_like(kept_RV).scatter(1, order_RV, kept_RV)
    return logits_RV.masked_fill(~mask_RV, -math.inf)
