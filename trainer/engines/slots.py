"""A key-value cache whose rows grow independently, for batched decoding of ragged episodes.

Rows are slots: each has its own length, and a finished row can be given to another episode. What a
pass adds to a slot comes in strips, and several strips of a pass may belong to one slot. Leaves out
which strips to cut (`batch`).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache

# N layers, S slots, H key-value heads, L cached positions, D head dimension
# R strips of this pass, Q tokens of each

_ROOM = 64  # positions of the first buffer


@dataclass(frozen=True, slots=True)
class Strip:
    """Successive tokens of a slot, which take one row of a pass.

    Attributes:
        slot: Whose.
        begin: Position of the first one in the slot.
        tokens: Their ids; at least one.
    """

    slot: int
    begin: int
    tokens: Sequence[int]


class SlotCache(Cache):
    """Keys and values of every slot, written at each strip's own positions.

    All layers live in one tensor, so that the states of a slot are copied at once: their heads must
    have the same shape in every layer.

    Attributes:
        lengths: Positions of each slot that hold something. A pass does not move them: what it
            wrote is kept by setting them, and forgotten by not doing so.
    """

    def __init__(self, num_layers: int, num_slots: int) -> None:
        super().__init__(layers=[])
        self.lengths = [0] * num_slots
        self._written = [0] * num_slots  # positions that are not zeros any more, padding included
        self._num_layers = num_layers
        self._states: torch.Tensor | None = None  # (N, 2, S, H, L, D)
        self._slots_R: torch.Tensor = torch.zeros(0, dtype=torch.long)
        self._positions_RQ: torch.Tensor = torch.zeros(0, 0, dtype=torch.long)
        self._is_every_slot = False
        self._reach = 0

    def begin(
        self, strips: Sequence[Strip], device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Prepares the pass of these strips.

        All keys and values of a layer are written before any is looked at, so that a strip sees
        those of its slot that come before it, in this pass or earlier. Where there is one strip a
        slot, in order, nothing is copied.

        Returns:
            Ids (R, Q), position ids (R, Q), and a boolean attention mask (R, 1, Q, L), true where
            visible. A short strip is padded with its own last token, past its end: written, never
            visible, overwritten later. (So a token that the model makes NaN of stays in its slot.)
        """
        width = max(len(strip.tokens) for strip in strips)
        ids = [
            [*strip.tokens, *itertools.repeat(strip.tokens[-1], width - len(strip.tokens))]
            for strip in strips
        ]
        begins = torch.tensor([strip.begin for strip in strips], device=device)
        slots = [strip.slot for strip in strips]
        for strip in strips:
            self._written[strip.slot] = max(self._written[strip.slot], strip.begin + width)
        self._is_every_slot = slots == list(range(len(self.lengths)))
        self._slots_R = torch.tensor(slots, device=device)
        self._positions_RQ = begins[:, None] + torch.arange(width, device=device)
        self._reach = max(strip.begin for strip in strips) + width
        places = torch.arange(self._reach, device=device)
        visible = places[None, None, :] <= self._positions_RQ[:, :, None]
        return torch.tensor(ids, device=device), self._positions_RQ, visible[:, None]

    def clear(self, slot: int, begin: int = 0) -> None:
        """Empties a slot from a position on.

        What was there is overwritten, for a NaN weighs in even where it is not visible.
        """
        if self._states is not None and self._written[slot] > begin:
            self._states[:, :, slot, :, begin : self._written[slot]] = 0
        self.lengths[slot] = self._written[slot] = begin

    def keep(self, slots: Sequence[int]) -> None:
        """Keeps the named slots only, in this order."""
        self.lengths = [self.lengths[slot] for slot in slots]
        self._written = [self._written[slot] for slot in slots]
        if self._states is not None:
            self._states = self._states[:, :, list(slots)]

    def read(self, slot: int, begin: int, end: int) -> torch.Tensor:
        """A copy of the states (N, 2, H, end - begin, D) of some positions of a slot."""
        assert self._states is not None
        return self._states[:, :, slot, :, begin:end].clone()

    def write(self, slot: int, begin: int, states: torch.Tensor) -> None:
        """Puts states that `read` returned at a position of a slot."""
        end = begin + states.shape[3]
        self._written[slot] = max(self._written[slot], end)
        self._room(end, states[0, 0])[:, :, slot, :, begin:end] = states

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the pass's keys and values; returns all that the pass may look at."""
        layer = self._room(self._reach, key_states[0])[layer_idx]
        for buffer, states in zip(layer, (key_states, value_states), strict=True):
            # (R, Q, H, D) <- (R, H, Q, D): advanced indices on axes 0 and 2 come first
            buffer[self._slots_R[:, None], :, self._positions_RQ] = states.transpose(1, 2)
        keys, values = layer[:, :, :, : self._reach]
        if self._is_every_slot:
            return keys, values
        return keys.index_select(0, self._slots_R), values.index_select(0, self._slots_R)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The longest row, this pass included."""
        return self._reach

    def _room(self, reach: int, like: torch.Tensor) -> torch.Tensor:
        """The buffer, grown by doubling so that `reach` positions fit; `like` is (H, any, D)."""
        if self._states is None or self._states.shape[4] < reach:
            shape = (self._num_layers, 2, len(self.lengths), like.shape[0])
            larger = like.new_zeros(*shape, max(_ROOM, 2 * reach), like.shape[2])
            if self._states is not None:
                larger[:, :, :, :, : self._states.shape[4]] = self._states
            self._states = larger
        return self._states
