"""Keyed noise on tensors: the integers of `twinstats.noise` bit for bit, the same tokens.

`sample` takes the best way there is: NumPy on the CPU, one fused kernel on CUDA where Triton is
installed, plain torch elsewhere.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence

import numpy as np
import torch

from trainer.noise import blocks
from trainer.noise.blocks import gumbel, key_words
from trainer.noise.truncation import truncate
from twinstats import noise
from twinstats.noise import KeyColumns, NoiseKey, check_logits

__all__ = ["gumbel", "key_words", "sample", "sample_words", "truncate"]

_Sampler = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]
]


def sample(
    logits_RV: torch.Tensor,
    keys: Sequence[NoiseKey] | KeyColumns,
    positions: Sequence[int] | np.ndarray,
    temperature: float | np.ndarray = 1.0,
) -> torch.Tensor:
    """The token of each row, as `twinstats.noise.sample` has it, on the device of the logits.

    Raises:
        LogitsError: What `twinstats.noise.sample` refuses; names the row and its key.
        ValueError: Shapes that do not agree, logits that are no floats, a temperature or position
            outside its range.
    """
    if logits_RV.ndim != 2 or not logits_RV.is_floating_point():
        raise ValueError(
            "`logits` must be (rows, vocabulary) of floats, "
            f"got {tuple(logits_RV.shape)} of {logits_RV.dtype}."
        )
    logits_RV = logits_RV.detach()
    if logits_RV.device.type == "cpu":
        exact = logits_RV if logits_RV.dtype == torch.float64 else logits_RV.float()
        return torch.from_numpy(noise.sample(exact.numpy(), keys, positions, temperature))
    columns, at, temperatures = noise.checked_rows(len(logits_RV), keys, positions, temperature)
    device = logits_RV.device
    at_R, temperature_R = (torch.tensor(one, device=device) for one in (at, temperatures))
    return sample_words(logits_RV, key_words(columns, device), at_R, temperature_R, keys)


def sample_words(
    logits_RV: torch.Tensor,
    words: torch.Tensor,
    positions: torch.Tensor,
    temperature: torch.Tensor,
    keys: Sequence[NoiseKey] | KeyColumns | None = None,
) -> torch.Tensor:
    """The token of each row where `words` (`key_words`), positions and temperatures are tensors.

    They were checked before; `keys` only names a row whose logits have no law.

    Raises:
        LogitsError: What `twinstats.noise.sample` refuses; names the row.
    """
    ids, score = device_sampler(logits_RV.device.type)(logits_RV, words, positions, temperature)
    if not bool(torch.isfinite(score).all()):
        check_logits(logits_RV.detach().double().cpu().numpy(), keys, temperature.cpu().numpy())
    return ids


@functools.cache
def device_sampler(kind: str) -> _Sampler:
    """What samples on a kind of device: the fused kernel where it can run, else plain torch."""
    if kind == "cuda" and importlib.util.find_spec("triton"):
        from trainer.noise import kernel

        return kernel.sample
    return blocks.sample
