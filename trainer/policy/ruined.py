"""Weights that are of no use any more."""

import torch

from trainer.policy import Policy


@torch.no_grad()
def refuse_ruined(policy: Policy, where: str, *, remedy: str = "`optimizer.learning_rate`") -> None:
    """Refuses weights that no token can be drawn with.

    Finite weights may be as useless as NaN: the square of 1e30 is not finite any more, and neither
    is what a norm or a layer makes of it.

    Raises:
        RuntimeError: A weight's square, or a logit after some tokens, is not finite.
    """
    model = policy.model
    ids = torch.linspace(0, model.config.vocab_size - 1, 32, device=model.device).long()
    if not (
        all(bool(one.float().square().sum().isfinite()) for one in model.parameters())
        and bool(model(input_ids=ids[None]).logits.isfinite().all())
    ):
        raise RuntimeError(
            f"The weights of {where} are ruined: they, or the logits that they give, are not "
            f"finite. A lower {remedy} may help."
        )
