"""What credit methods need besides episodes, by name: `Rollout.provide` asks here.

A provider fills `episode.info[name]` with the shape that the need has (`twinstats.episodes`); some
learn from every step. Leaves out which method needs what (`twinstats.credit`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch

from trainer.config import Config
from trainer.policy import Policy
from trainer.tasks import Environment
from twinstats.episodes import Episode
from twinstats.errors import unknown


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


PROVIDERS: Mapping[str, Callable[[Setup], Provider]] = MappingProxyType({})
"""What makes the provider of each need."""


def make(need: str, setup: Setup) -> Provider:
    """The provider of a need.

    Raises:
        UsageError: Nobody provides it; those that somebody does are named.
    """
    if need not in PROVIDERS:
        raise unknown("need", need, PROVIDERS)
    return PROVIDERS[need](setup)
