"""A key-value cache whose rows grow independently, for batched decoding of ragged episodes.

Rows are slots: each has its own length, a finished row can be given to another episode, and a
forward pass may serve a subset of rows with any number of new tokens each.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache

# R rows of this pass, H key-value heads, L cached positions, Q new tokens, D head dimension


class SlotCache(Cache):
    """Keys and values of every slot, written at each row's own positions."""

    def __init__(self, num_layers: int, num_slots: int) -> None:
        super().__init__(layers=[])
        self.lengths = torch.zeros(num_slots, dtype=torch.long)
        self._keys: list[torch.Tensor | None] = [None] * num_layers
        self._values: list[torch.Tensor | None] = [None] * num_layers
        self._rows: torch.Tensor | None = None
        self._positions_RQ = torch.zeros(0, 0, dtype=torch.long)
        self._reach = 0

    def begin(self, rows: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepares a pass that adds counts[i] tokens to slot rows[i].

        Returns:
            Position ids (R, Q) and a boolean attention mask (R, 1, Q, L), true where visible.
            Positions past a row's count are padding: written, never visible, overwritten later.
        """
        width = int(counts.max())
        self._rows = None if len(rows) == len(self.lengths) else rows
        self._positions_RQ = self.lengths[rows][:, None] + torch.arange(width)[None, :]
        self._reach = int(self._positions_RQ.max()) + 1
        visible = torch.arange(self._reach)[None, None, :] <= self._positions_RQ[:, :, None]
        return self._positions_RQ, visible[:, None]

    def end(self, rows: torch.Tensor, counts: torch.Tensor) -> None:
        """Counts the tokens of the pass in."""
        self.lengths[rows] += counts

    def clear(self, row: int) -> None:
        """Makes a slot empty, for another episode."""
        self.lengths[row] = 0

    def keep(self, rows: torch.Tensor) -> None:
        """Keeps the named slots only, in this order."""
        self.lengths = self.lengths[rows]
        for store in (self._keys, self._values):
            for layer, tensor in enumerate(store):
                store[layer] = None if tensor is None else tensor[rows].contiguous()

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the pass's keys and values; returns all that the pass may look at."""
        keys = self._store(self._keys, layer_idx, key_states)
        values = self._store(self._values, layer_idx, value_states)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The longest row, this pass included."""
        return self._reach

    def _store(
        self, store: list[torch.Tensor | None], layer: int, states: torch.Tensor
    ) -> torch.Tensor:
        buffer = self._room(store, layer, states)
        rows = torch.arange(len(self.lengths)) if self._rows is None else self._rows
        # (R, Q, H, D) <- (R, H, Q, D): advanced indices on axes 0 and 2 come first
        buffer[rows[:, None], :, self._positions_RQ] = states.transpose(1, 2)
        seen = buffer[:, :, : self._reach]
        return seen if self._rows is None else seen[self._rows]

    def _room(
        self, store: list[torch.Tensor | None], layer: int, states: torch.Tensor
    ) -> torch.Tensor:
        """The layer's buffer, grown by doubling so that the pass fits."""
        buffer = store[layer]
        if buffer is None or buffer.shape[2] < self._reach:
            length = max(64, 2 * self._reach)
            heads, width = states.shape[1], states.shape[3]
            larger = states.new_zeros(len(self.lengths), heads, length, width)
            if buffer is not None:
                larger[:, :, : buffer.shape[2]] = buffer
            store[layer] = buffer = larger
        return buffer
