"""The learned budget: a logistic model of how much of its advantage a turn gets.

Leaves out tokens. It learns from what happened to the turns' likelihood, never from outcomes of
the step it is used in.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

from twinstats.credit._checks import at_least_zero, probability
from twinstats.credit.baseline import outcomes, standardised
from twinstats.credit.registry import Ratios
from twinstats.episodes import Credit, Episode

_NUM_FEATURES = 5


def turn_features(episode: Episode) -> np.ndarray:
    """One row a turn: 1, log(1 + t), log(1 + entropy), entropy unknown, state seen before.

    All of it is known before the action is drawn.
    """
    seen, again = set(), []
    for turn in episode.turns:
        again.append(turn.state in seen)
        seen.add(turn.state)
    entropy = episode.column("entropy")
    missing = np.isnan(entropy)
    depth = np.log1p(np.arange(episode.num_turns))
    surprise = np.log1p(np.where(missing, 0.0, entropy))
    return np.column_stack([np.ones(len(depth)), depth, surprise, missing, again]).astype(float)


class BudgetModel:
    """b = sigmoid(w x); `observe` moves w up the gradient that `budget_gate` states.

    Raises:
        ValueError: An option out of range.
    """

    def __init__(
        self,
        *,
        target: float = 0.4,
        regulariser: float = 0.1,
        decay: float = 0.99,
        rate: float = 0.1,
    ) -> None:
        if not 0 < target < 1:
            raise ValueError(f"`target` must be between 0 and 1, got {target}.")
        at_least_zero(regulariser=regulariser, rate=rate)
        probability(decay=decay)
        self.target, self.regulariser, self.decay, self.rate = target, regulariser, decay, rate
        self._weights = np.zeros(_NUM_FEATURES)
        self._weights[0] = logit(target)
        self._num_steps = 0

    def coefficient(self, features: np.ndarray) -> np.ndarray:
        """The budget in (0, 1) of each row of features."""
        return np.asarray(expit(features @ self._weights))

    def observe(self, credits: Sequence[Credit], ratios: Ratios | None = None) -> None:
        """Learns from a finished step; turns whose advantage or ratio is null teach nothing."""
        rows, gains = _examples(credits, ratios)
        if len(rows):
            budgets = self.coefficient(rows)
            strength = self.regulariser * self.decay**self._num_steps
            pull = 2 * strength * (math.fsum(budgets) / len(budgets) - self.target)
            slopes = (gains - pull) * budgets * (1 - budgets)
            gradient = [math.fsum(slopes * column) / len(rows) for column in rows.T]
            self._weights = self._weights + self.rate * np.array(gradient)
        self._num_steps += 1

    def state(self) -> dict[str, Any]:
        """Everything it carries, as strict JSON."""
        return {"weights": self._weights.tolist(), "num_steps": self._num_steps}

    def load(self, state: dict[str, Any]) -> None:
        """Takes up what `state` returned."""
        self._weights = np.array(state["weights"], np.float64)
        self._num_steps = state["num_steps"]


def _examples(credits: Sequence[Credit], ratios: Ratios | None) -> tuple[np.ndarray, np.ndarray]:
    """The features of a step's turns, and A * r of each."""
    rows, gains = [np.empty((0, _NUM_FEATURES))], [np.empty(0)]
    for index, credit in enumerate(credits):
        factuals = [place for place, e in enumerate(credit.episodes) if e.fork is None]
        advantages = standardised(outcomes([credit.episodes[place] for place in factuals]))
        for place, advantage in zip(factuals, advantages, strict=True):
            features = turn_features(credit.episodes[place])
            ratio = np.ones(len(features)) if ratios is None else ratios[index][place]
            gain = advantage * np.asarray(ratio, np.float64)
            known = np.isfinite(gain)
            rows.append(features[known])
            gains.append(gain[known])
    return np.concatenate(rows), np.concatenate(gains)
