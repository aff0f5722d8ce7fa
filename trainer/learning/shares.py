"""Deals the rows of a batch out to processes, and puts what comes back in order.

A share keeps the totals of the whole batch, so that the losses of all shares add up to its loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from trainer.distributed.processes import Message
from trainer.learning.loss import TABLES, Batch

# R rows, L positions

Given = Mapping[str, torch.Tensor | None]
"""Log-probabilities (R, L) of a batch's rows by name; null where none are asked for."""


def dealt(lengths: torch.Tensor, count: int) -> list[torch.Tensor]:
    """The rows of each of `count` shares: the longest first, to and fro.

    Shares differ by at most one row, and by at most the longest row in tokens. Where there are
    fewer rows than shares, some shares are empty.

    Args:
        lengths: Tokens of each row.
        count: Number of shares.

    >>> [rows.tolist() for rows in dealt(torch.tensor([5, 1, 4, 2, 3]), 2)]
    [[0, 3, 1], [2, 4]]
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    lap = torch.arange(len(order)) // count
    seat = torch.arange(len(order)) % count
    owner = torch.where(lap % 2 == 0, seat, count - 1 - seat)
    return [order[owner == share] for share in range(count)]


def share(batch: Batch, given: Given, rows: torch.Tensor, size: int) -> tuple[Batch, Given]:
    """Some rows of a batch with its totals, filled up to `size` rows by rows of one token.

    Nothing is trained in the rows that fill up: they add exactly 0 to loss and gradients, but
    take part in the passes, which all processes must make equally often.

    Args:
        batch: The whole.
        given: Its log-probabilities.
        rows: Those of the share, none more than `size`.
        size: Rows that it has in the end.
    """
    width = int(batch.mask_RL[rows].sum(1).max()) if len(rows) else 1
    fill = (size - len(rows), width)

    def taken(values_RL: torch.Tensor) -> torch.Tensor:
        return torch.cat([values_RL[rows, :width], values_RL.new_zeros(fill)])

    own: dict[str, Any] = {name: taken(getattr(batch, name)) for name in TABLES}
    own["mask_RL"][len(rows) :, 0] = True
    own["turn_RL"][len(rows) :] = -1
    return replace(batch, **own), {
        name: None if values is None else taken(values) for name, values in given.items()
    }


def packed(
    command: str, batch: Batch, given: Given, values: Mapping[str, Any] | None = None
) -> Message:
    """A batch, log-probabilities and further numbers as one message; `unpacked` reads it."""
    parts = {f"batch/{item.name}": getattr(batch, item.name) for item in fields(Batch)}
    parts |= {f"given/{name}": one for name, one in given.items()}
    tensors = {name: one for name, one in parts.items() if isinstance(one, torch.Tensor)}
    numbers = {name: one for name, one in parts.items() if name not in tensors}
    return Message(command, {**numbers, **(values or {})}, tensors)


def unpacked(message: Message, device: torch.device) -> tuple[Batch, Given]:
    """The batch and the log-probabilities that `packed` put into a message, on a device."""
    parts = {**message.values, **{name: one.to(device) for name, one in message.tensors.items()}}
    batch = Batch(**{item.name: parts[f"batch/{item.name}"] for item in fields(Batch)})
    given = {
        name.removeprefix("given/"): one for name, one in parts.items() if name.startswith("given/")
    }
    return batch, given


def assembled(
    parts: Sequence[torch.Tensor], rows: Sequence[torch.Tensor], like: torch.Tensor
) -> torch.Tensor:
    """Values of a batch from those of its shares; of rows that filled a share up, none.

    Args:
        parts: Values (R, L) of each share.
        rows: Of each share, its rows in the batch.
        like: A float tensor (R, L) of the batch, whose shape and device the result has.
    """
    found = torch.zeros_like(like)
    for values, own in zip(parts, rows, strict=True):
        found[own, : values.shape[1]] = values[: len(own)].to(found)
    return found
