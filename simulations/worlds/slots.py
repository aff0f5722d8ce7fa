"""Where the keys of an episode's turns are: its key at slot 0, moved to a turn's slot."""

import numpy as np

from twinstats.noise import KeyColumns


def at_slots(keys: KeyColumns, slot: np.ndarray) -> KeyColumns:
    """Keys at slot 0, moved to other slots, one each."""
    shifted = keys.turn_luck + (slot.astype(np.uint64) << np.uint64(16))
    return KeyColumns(keys.words, shifted, keys.row)
