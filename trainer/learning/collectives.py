"""What the processes of a run do at the same time: take shares, add up, bring weights together.

Each function is called by all of them, but for `deal`, whose other side is `worker`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from trainer.distributed.processes import Message, Processes
from trainer.distributed.weights import whole
from trainer.learning.loss import Batch
from trainer.learning.shares import Given, dealt, packed, share
from trainer.learning.update_sums import UpdateSums
from trainer.policy import Policy

_TOTALS = ("tokens", "clipped", "capped", "entropy", "moved", "kl", "policy")


def deal(
    processes: Processes,
    command: str,
    batch: Batch,
    given: Given,
    values: Mapping[str, Any] | None = None,
) -> tuple[list[torch.Tensor], tuple[Batch, Given]]:
    """Tells every other process its share of a batch; returns the rows of each and rank 0's own.

    Args:
        processes: Rank 0 calls.
        command: What they shall do with it.
        batch: Its rows are dealt out.
        given: Log-probabilities that go with the rows.
        values: What everyone is told besides.
    """
    if processes.size == 1:
        return [torch.arange(len(batch.ids_RL))], (batch, given)
    rows = [
        one.to(batch.ids_RL.device) for one in dealt(batch.mask_RL.sum(1).cpu(), processes.size)
    ]
    size = max(len(one) for one in rows)
    shares = [share(batch, given, one, size) for one in rows]
    processes.tell([packed(command, *one, values) for one in shares])
    return rows, shares[0]


def add_up(processes: Processes, sums: UpdateSums) -> None:
    """Makes rank 0's sums those of all processes; what all know alike (norms) stays."""
    own = {name: getattr(sums, name) for name in (*_TOTALS, "gap")}
    told = [message.values for message in processes.gathered(Message("sums", own))]
    if not told:
        return
    for name in _TOTALS:
        setattr(sums, name, sum(one[name] for one in told))
    sums.gap = float(np.fmax.reduce([one["gap"] for one in told]))


@torch.no_grad()
def bring_together(policy: Policy, model: torch.nn.Module, processes: Processes) -> None:
    """Gives the policy of rank 0, which plays, the weights that are trained in parts.

    One parameter is whole at a time. Of what is not in parts there is nothing to bring.
    """
    for own, part in zip(policy.model.parameters(), model.parameters(), strict=True):
        if not (isinstance(part, DTensor) and part.requires_grad):
            continue
        full = whole(part)
        if processes.leads:
            own.copy_(full)
