"""Tensors that are whole on rank 0 and, for an update, on every rank or in parts on all of them.

Leaves out files (`loop.checkpoint`): what is gathered here is what one process would have.
"""

import functools
import types
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from trainer.distributed.processes import Processes
from trainer.policy import token_logprobs

_LOGPROBS = "token_logprobs"  # the method by which a model in parts is called


def shard(model: PreTrainedModel, processes: Processes) -> None:
    """Lays a model's parameters out over the processes (FSDP2), each decoder layer for itself.

    A layer is whole only while it computes, and the rest while the model does. Gradients are
    sums over processes, never means.

    Args:
        model: Changed in place; it cannot be copied any more, and computes by `logprobs_of`.
        processes: All of them hold a part.
    """
    mesh = init_device_mesh(processes.device.type, (processes.size,))
    layers = model._no_split_modules  # class names, as transformers and accelerate use them
    inner = [module for module in model.modules() if type(module).__name__ in layers]
    for module in (*inner, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    setattr(model, _LOGPROBS, types.MethodType(token_logprobs, model))
    register_fsdp_forward_method(model, _LOGPROBS)


def logprobs_of(model: PreTrainedModel) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """`token_logprobs` of a model, for which one in parts is made whole layer by layer."""
    if isinstance(model, FSDPModule):
        return getattr(model, _LOGPROBS)
    return functools.partial(token_logprobs, model)


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Adds the gradients of all processes up; those of parts (FSDP2) are sums already."""
    whole = [one.grad for one in parameters if one.grad is not None]
    waits = [
        dist.all_reduce(gradient, async_op=True)
        for gradient in whole
        if not isinstance(gradient, DTensor)
    ]
    for wait in waits:
        wait.wait()


@torch.no_grad()
def spread(target: torch.Tensor, full: torch.Tensor | None) -> None:
    """Gives every process rank 0's tensor, or its part of it. All processes call it together.

    Args:
        target: Where it goes, on each process.
        full: The whole of it; read on rank 0 only.
    """
    given = torch.empty(target.shape, dtype=target.dtype, device=target.device)
    if full is not None:
        given.copy_(full)
    if isinstance(target, DTensor):
        target.copy_(distribute_tensor(given, target.device_mesh, target.placements))
    else:
        dist.broadcast(given, 0)
        target.copy_(given)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor of which each process may hold a part. All call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def equalise(model: PreTrainedModel, processes: Processes) -> None:
    """Puts a model where its process computes, and gives every process rank 0's parameters."""
    if processes.size == 1:
        return
    processes.wait()  # some may still load or warm up what others have in their cache
    model.to(processes.device)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
