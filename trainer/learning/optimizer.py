"""What the optimizer trains, at which rate, and its state as tensors.

The rate is a function of the step and of the tokens used so far, and of nothing else: there is no
schedule to save, and a resumed run goes on at the rate it would have had.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from trainer.config import Config
from trainer.distributed.weights import spread, whole
from trainer.policy import Policy
from twinstats.errors import UsageError


def trained_parameters(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained, by name: all of them, or with LoRA those of the adapters."""
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def check_schedule(config: Config) -> None:
    """Refuses a warm-up that the run would not see the end of.

    Raises:
        UsageError: It has more steps than the run.
    """
    warmup, steps = config.optimizer.warmup_steps, config.length.steps
    if warmup > steps:
        raise UsageError(
            f"`optimizer.warmup_steps` must be at most `length.steps`, {steps}, got {warmup}."
        )


def make_optimizer(policy: Policy, config: Config) -> torch.optim.AdamW:
    """AdamW over the trained parameters.

    Raises:
        UsageError: What `check_schedule` refuses.
    """
    check_schedule(config)
    return torch.optim.AdamW(
        trained_parameters(policy.model).values(),
        lr=config.optimizer.learning_rate,
        weight_decay=config.optimizer.weight_decay,
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state as tensors, `index/name` by parameter."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}/{name}": torch.as_tensor(value).clone()
        for index, values in state.items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Gives an optimizer the state that `optimizer_tensors` took."""
    full = optimizer.state_dict()
    state: dict[int, dict[str, torch.Tensor]] = {}
    for path, value in tensors.items():
        index, name = path.split("/")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": full["param_groups"]})


def gathered_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """What `optimizer_tensors` returns, each tensor whole. All call it together.

    What is in parts comes to the CPU, one tensor at a time.
    """
    return {
        name: whole(one).cpu() if isinstance(one, DTensor) else one
        for name, one in optimizer_tensors(optimizer).items()
    }


def spread_optimizer(
    optimizer: torch.optim.Optimizer,
    dimensions: Mapping[str, int],
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Gives every process its part of an optimizer's state. All processes call it together.

    Args:
        optimizer: Takes the state up, in place of its own.
        dimensions: Of each tensor of the state, `index/name` by parameter; 0 for a single number.
        tensors: The whole state; read on rank 0 only.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    state: dict[Any, dict[str, torch.Tensor]] = {}
    for path, count in dimensions.items():
        index, name = path.split("/")
        parameter = parameters[int(index)]
        own = torch.zeros_like(parameter) if count else torch.zeros(())
        spread(own, tensors.get(path))
        state.setdefault(parameter, {})[name] = own
    optimizer.state.clear()
    optimizer.state.update(state)


def learning_rate(config: Config, *, step: int, total_tokens: int) -> float:
    """The rate of a step's updates.

    learning_rate * min(1, step / W) * decay(x), with W `optimizer.warmup_steps` and decay 1
    (constant), 1 - x (linear) or (1 + cos(pi x)) / 2 (cosine). x is the part of the run that is
    over when the step begins: (step - 1 - W) / (steps - W) after the warm-up, or the share of
    `length.total_tokens` used where that is larger, since training ends with whichever comes first.
    The first update has a rate above 0, and so has the last.

    Args:
        config: Rate, schedule and length.
        step: From 1.
        total_tokens: Tokens sampled in the steps before.
    """
    own, length = config.optimizer, config.length
    over = (step - 1 - own.warmup_steps) / max(1, length.steps - own.warmup_steps)
    if length.total_tokens is not None:
        over = max(over, total_tokens / length.total_tokens)
    over = min(1.0, max(0.0, over))
    decay = {"constant": 1.0, "linear": 1 - over, "cosine": (1 + math.cos(math.pi * over)) / 2}
    rise = min(1.0, step / own.warmup_steps) if own.warmup_steps else 1.0
    return own.learning_rate * rise * decay[own.schedule]
