"""What a provider of needs is, and one that learns nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from trainer.config import Config
from trainer.policy import Policy
from trainer.tasks import Environment
from twinstats.episodes import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What providers are made from.

    Attributes:
        policy: Model and tokenizer, whose weights change from step to step.
        environment: Makes the environment of one episode.
        config: The run's.
    """

    policy: Policy
    environment: Callable[[], Environment]
    config: Config


class Provider(Protocol):
    """Fills one need of a method."""

    def provide(self, episodes: Sequence[Episode]) -> None:
        """Fills `episode.info` under the need's name, for factuals or forks.

        Raises:
            UsageError: It cannot, for a reason that the user can change.
        """

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Learns from the factuals of a finished step; returns metrics by name."""

    def state(self) -> dict[str, Any]:
        """What it learned, as strict JSON."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """What it learned, as tensors by name."""

    def load(self, state: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes up what `state` and `tensors` returned."""


class Computed:
    """A provider that learns nothing: the need is a function of the episodes.

    Args:
        need: Its name.
        compute: The need of each of several episodes, none of which failed.
        blank: The need of a failed episode, null throughout.
    """

    def __init__(
        self,
        need: str,
        compute: Callable[[Sequence[Episode]], Sequence[Any]],
        blank: Callable[[Episode], Any],
    ) -> None:
        self._need, self._compute, self._blank = need, compute, blank

    def provide(self, episodes: Sequence[Episode]) -> None:
        """Fills the need of each episode."""
        played = [episode for episode in episodes if episode.outcome is not None]
        for episode, found in zip(played, self._compute(played), strict=True):
            episode.info[self._need] = found
        for episode in episodes:
            if episode.outcome is None:
                episode.info[self._need] = self._blank(episode)

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Nothing."""
        return {}

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Nothing to take up."""


def null_turns(episode: Episode) -> np.ndarray:
    """A null for each turn."""
    return np.full(episode.num_turns, np.nan)
