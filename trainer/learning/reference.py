"""The policy that training started from, to which a KL is measured."""

import copy

from transformers import PreTrainedModel

from trainer.config import LossConfig
from trainer.policy import Policy
from trainer.policy.lora import has_adapters


def needs_reference(config: LossConfig) -> bool:
    """Whether updates look at the policy that training started from."""
    return config.kl_coefficient > 0 or config.max_kl is not None


def reference_of(policy: Policy, config: LossConfig) -> PreTrainedModel | None:
    """A copy of a policy to measure the KL to, where one is needed; null with adapters."""
    if not needs_reference(config) or has_adapters(policy.model):
        return None
    return copy.deepcopy(policy.model).eval().requires_grad_(False)
