"""`segments`: a judge says where an episode made progress, and where it went back.

A judge proposes and nothing more: `prover` tests each proposal by rollouts. Leaves out those tests,
and the judges: the policy itself (`policy_judge`) or a chat server (`server_judge`).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch

from twinstats.episodes import Episode

Segment = tuple[int, int, int]
"""First turn, last turn, and 1 for progress or -1 for the contrary."""

PROGRESS, REGRESS = 1, -1


class Verdict(NamedTuple):
    """What a judge proposes for an episode; `reason` says why its answer was of no use."""

    segments: Sequence[Segment]
    reason: str | None = None


Judge = Callable[[Sequence[Episode]], Sequence[Verdict]]
"""A verdict for each of several scored episodes."""


class Segments:
    """Fills `segments` from what a judge proposes; a failed episode has none.

    Where the judge's answer is of no use there are no segments, and the reason stands in the
    episode's row of the log.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def provide(self, episodes: Sequence[Episode]) -> None:
        """Fills the need of each episode."""
        played = [episode for episode in episodes if episode.outcome is not None]
        for episode in episodes:
            episode.info["segments"] = []
        for episode, verdict in zip(played, self._judge(played), strict=True):
            episode.info["segments"] = list(verdict.segments)
            if verdict.reason is not None:
                episode.info["reason"] = f"no segments: {verdict.reason}"

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """How many segments were proposed, and how many answers were of no use."""
        scored = [episode.info for episode in episodes if episode.outcome is not None]
        return {
            "judge/segments_count": float(sum(len(info["segments"]) for info in scored)),
            "judge/unusable_count": float(sum("reason" in info for info in scored)),
        }

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Nothing to take up."""


def runs(signs: Sequence[int]) -> list[Segment]:
    """Neighbouring turns of one sign as segments; turns of sign 0 are in none.

    >>> runs([0, 1, 1, -1, 0])
    [(1, 2, 1), (3, 3, -1)]
    """
    found = []
    for sign, own in groupby(range(len(signs)), key=lambda turn: signs[turn]):
        turns = list(own)
        if sign:
            found.append((turns[0], turns[-1], sign))
    return found
