"""The keyed coins by which methods choose turns: uniforms of the purpose `choose`.

Leaves out what a coin decides.
"""

from collections.abc import Sequence

import numpy as np

from twinstats.episodes import Episode, Group
from twinstats.noise import KeyColumns, NoiseKey, uniforms

COUNT, FRESH, NULL, TREE = 0, 1, 2, 3
"""Positions: how many twins, which have a control or a null twin, where trees branch."""


def coins(
    group: Group, turns: Sequence[tuple[Episode, int]], position: int, lane: int = 0
) -> np.ndarray:
    """A uniform in (0, 1) for each turn of an episode; their order changes no coin."""
    if not turns:
        return np.empty(0)
    keys = [
        NoiseKey(group.seed, group.step, episode.row, episode.slot(turn), purpose=_purpose(episode))
        for episode, turn in turns
    ]
    return uniforms(KeyColumns.of(keys), position, lane)


def _purpose(episode: Episode) -> str:
    return f"choose/{episode.path}" if episode.path else "choose"
