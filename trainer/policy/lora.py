"""Low-rank adapters (LoRA, by peft) inside a policy, and its weights under the base model's names.

The model stays what it is, with adapters in its linear layers: nothing wraps it. Leaves out what
trains them (`learning.optimizer`) and writing models to disk (`export`).
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from peft.tuners.lora import Linear as AdaptedLinear
from transformers import PreTrainedModel

from trainer.config import LoraConfig
from twinstats.errors import UsageError
from twinstats.noise import generator

_OWN = "lora_"  # begins the names of an adapter's own parts
_BASE = "base_layer."


def add_adapters(model: PreTrainedModel, config: LoraConfig, *, seed: int) -> None:
    """Puts adapters on all linear layers but the output's, and freezes everything else.

    A layer's weight W becomes W + alpha / rank * B A with A drawn and B = 0: the model computes
    what it did until it is trained. Rank 0 changes nothing.

    Args:
        model: Changed in place.
        config: Rank and alpha.
        seed: Of A; the global generators are left as they were.

    Raises:
        UsageError: The model has adapters already, or the rank is larger than a layer.
    """
    if not config.rank:
        return
    if has_adapters(model):
        raise UsageError("`lora.rank` must be 0 for a model that has adapters already.")
    _refuse_rank(model, config.rank)
    with torch.random.fork_rng():
        torch.manual_seed(int(generator(seed, "lora").integers(2**63)))
        inject_adapter_in_model(
            PeftLoraConfig(
                r=config.rank,
                lora_alpha=config.alpha,  # type: ignore[arg-type]  # only divided by the rank
                target_modules="all-linear",
            ),
            model,
        )


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether any layer of a model has an adapter."""
    return bool(_adapted(model))


@contextlib.contextmanager
def adapters_off(model: PreTrainedModel) -> Iterator[None]:
    """The base model for as long as the context lasts: what adapters started from."""
    layers = _adapted(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def plain_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that a model computes with, by the names that they have without adapters.

    Adapters are added in, one layer at a time; without any these are the parameters themselves.
    """
    adapted = {f"{name}.{_BASE}weight": layer for name, layer in _adapted(model).items()}
    for name, weight in model.named_parameters():
        if _OWN in name:
            continue
        plain = weight.detach()
        if name in adapted:
            plain = plain + sum(map(adapted[name].get_delta_weight, adapted[name].active_adapters))
        yield name.replace(_BASE, ""), plain


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A model without adapters that computes what this one does with them."""
    with torch.device("meta"):
        plain = type(model)(copy.deepcopy(model.config))
    weights: Mapping[str, torch.Tensor] = dict(plain_weights(model))
    missing = plain.load_state_dict(weights, strict=False, assign=True).unexpected_keys
    assert not missing, missing
    plain.tie_weights()
    return plain


def _adapted(model: PreTrainedModel) -> dict[str, AdaptedLinear]:
    """The layers that have an adapter, by name."""
    return {n: one for n, one in model.named_modules() if isinstance(one, AdaptedLinear)}


def _refuse_rank(model: PreTrainedModel, rank: int) -> None:
    """A product of rank r has less to say than a whole matrix only below the matrix's own rank."""
    output = model.get_output_embeddings()
    least = min(
        min(module.weight.shape)
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module is not output
    )
    if rank > least:
        raise UsageError(
            f"`lora.rank` must be at most {least}, the smallest side of the model's linear "
            f"layers, got {rank}."
        )
