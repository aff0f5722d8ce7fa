"""The pheromone on transitions between tools: what it is, and how a step changes it.

Leaves out how it becomes credit.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from twinstats.credit._checks import at_least_zero, positive, probability
from twinstats.credit.baseline import outcomes, standardised
from twinstats.credit.inputs import needed
from twinstats.episodes import Credit, Episode

Edge = tuple[str | None, str]
"""The tool before, null at the start, and the tool."""


def edges(episode: Episode) -> list[Edge]:
    """The transitions of a scored episode, one a turn; none of a failed one.

    Raises:
        ValueError: `tool` is missing, or a name that is no text.
    """
    if episode.outcome is None:
        return []
    tools = needed("phgpo", episode, "tool")
    if wrong := [tool for tool in tools if not isinstance(tool, str)]:
        raise ValueError(f"'tool' of episode {episode.name} must be names, got {wrong[0]!r}.")
    return list(zip([None, *tools[:-1]], tools, strict=True))


class Pheromones:
    """tau by transition; `initial` where none was taken.

    Raises:
        ValueError: An option out of range.
    """

    def __init__(
        self,
        *,
        initial: float = 1.0,
        evaporation: float = 0.01,
        success: float = 0.5,
        failure: float = 0.03,
        local: float = 0.3,
        bounds: tuple[float, float] = (0.5, 20.0),
    ) -> None:
        probability(evaporation=evaporation)
        at_least_zero(success=success, failure=failure, local=local)
        least, most = bounds
        positive(least=least, most=most)
        if not least <= initial <= most:
            raise ValueError(f"`initial` must be within `bounds` {tuple(bounds)}, got {initial}.")
        self.initial, self.evaporation, self.bounds = initial, evaporation, (least, most)
        self.success, self.failure, self.local = success, failure, local
        self._tau: dict[Edge, float] = {}

    def tau(self, edge: Edge) -> float:
        """The pheromone on a transition."""
        return self._tau.get(edge, self.initial)

    def tools(self) -> set[str]:
        """All tools that were taken."""
        return {tool for _, tool in self._tau}

    def bonus(self, edge: Edge, tools: Sequence[str]) -> float:
        """The log tau of a transition minus its mean over `tools`; exactly 0 where all agree."""
        logs = np.log([self.tau((edge[0], tool)) for tool in tools])
        if logs.max() == logs.min():
            return 0.0
        return math.log(self.tau(edge)) - math.fsum(logs) / len(logs)

    def observe(self, credits: Sequence[Credit], ratios: object = None) -> None:
        """Evaporates once, and takes up a step's deposits."""
        deposits: dict[Edge, list[float]] = {edge: [] for edge in self._tau}
        for credit in credits:
            for edge, deposit in self._deposits(credit):
                deposits.setdefault(edge, []).append(deposit)
        for edge, amounts in deposits.items():
            after = (1 - self.evaporation) * self.tau(edge) + math.fsum(amounts)
            self._tau[edge] = min(max(after, self.bounds[0]), self.bounds[1])

    def state(self) -> dict[str, Any]:
        """Everything it carries, as strict JSON."""
        return {"tau": sorted(([*edge, tau] for edge, tau in self._tau.items()), key=repr)}

    def load(self, state: dict[str, Any]) -> None:
        """Takes up what `state` returned."""
        self._tau = {(before, tool): tau for before, tool, tau in state["tau"]}

    def _deposits(self, credit: Credit) -> Iterator[tuple[Edge, float]]:
        factuals = [episode for episode in credit.episodes if episode.fork is None]
        for episode, advantage in zip(factuals, standardised(outcomes(factuals)), strict=True):
            if episode.outcome is None:
                continue
            quality = min(max(float(episode.outcome), 0.0), 1.0)
            won = quality >= 0.5 if episode.success is None else episode.success
            deposit = self.success * quality if won else -self.failure * quality
            if not np.isnan(advantage):
                deposit += self.local * (advantage if advantage > 0 else advantage / 2)
            for edge in edges(episode):
                yield edge, float(deposit)
