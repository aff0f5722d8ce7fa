"""A learner among processes: made, and the state of its optimizer saved and taken up again."""

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch

from trainer.config import Config
from trainer.distributed.processes import ALONE, Message, Processes
from trainer.distributed.weights import equalise, shard, spread
from trainer.learning.learner import Learner
from trainer.learning.optimizer import (
    gathered_optimizer,
    make_optimizer,
    restore_optimizer,
    spread_optimizer,
)
from trainer.learning.reference import reference_of
from trainer.policy import Policy


def make_learner(policy: Policy, config: Config, processes: Processes = ALONE) -> Learner:
    """The learner of a policy that has not been trained yet. All processes call it together.

    All start from rank 0's weights. With `learner.sharding=fsdp2` each holds a part of model,
    gradients, optimizer and reference; rank 0 has the policy besides, whole, to play with.

    Args:
        policy: Its model is moved to the device of its process.
        config: The run's.
        processes: Those of the run.
    """
    equalise(policy.model, processes)
    if processes.size == 1 or config.learner.sharding == "ddp":
        return Learner.of(policy, make_optimizer(policy, config), config, processes)
    reference = reference_of(policy, config.loss)
    parts = copy.deepcopy(policy.model) if processes.leads else policy.model
    for model in (parts, reference):
        if model is not None:
            shard(model, processes)
    optimizer = make_optimizer(replace(policy, model=parts), config)
    return Learner(policy, optimizer, config, reference, processes, parts)


def optimizer_tensors(learner: Learner) -> dict[str, torch.Tensor]:
    """The whole state of the optimizer, as one process would have it; rank 0 calls."""
    learner.processes.tell(Message("save"))
    return gathered_optimizer(learner.optimizer)


def restore_learner(learner: Learner, optimizer: Mapping[str, torch.Tensor]) -> None:
    """Gives every process the policy's weights of now and a state of the optimizer; rank 0 calls.

    Args:
        learner: Rank 0's.
        optimizer: What `optimizer_tensors` returned, of any number of processes.
    """
    if learner.processes.size == 1:
        restore_optimizer(learner.optimizer, dict(optimizer))
        return
    message = Message("load", {name: one.dim() for name, one in optimizer.items()})
    learner.processes.tell(message)
    take_up(learner, message, optimizer)


def take_up(learner: Learner, message: Message, optimizer: Mapping[str, torch.Tensor]) -> None:
    """One process's side of `restore_learner`; only on rank 0 is anything read."""
    own = learner.policy.model.parameters()
    for full, part in zip(own, learner.model.parameters(), strict=True):
        spread(part, full if learner.processes.leads else None)
    spread_optimizer(learner.optimizer, message.values, optimizer)
