"""`features`: the history before each turn as a row of numbers, for the regressor of `t2spo`.

A row follows from what came before its turn, never from the turn itself. Leaves out the regressor
(`regressor`), though it tells the log which one predicts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trainer.needs.provider import Setup
from trainer.needs.regressor import chosen
from trainer.needs.task import refuse_untold, tell, tellers
from twinstats.episodes import Episode
from twinstats.errors import UsageError

HISTORY = (
    "turns",
    "sampled_tokens",
    "shown_tokens",
    "last_tokens",
    "mean_logprob",
    "last_logprob",
    "known_logprob",
    "mean_entropy",
    "last_entropy",
    "known_entropy",
)
"""Columns that every task has: counts so far; of the turns so far, log-probability and entropy a
token (nats), their mean, the last one, and the share of turns where it is known (0 before any turn;
mean and last are 0 where nothing is known)."""


class Features:
    """Fills `features`: the columns of `HISTORY`, then those of the task.

    Raises:
        UsageError: The task tells no features, or the regressor that was asked for is not there.
    """

    def __init__(self, setup: Setup) -> None:
        told = tellers(setup.environment())
        config = setup.config
        refuse_untold("features", told, method=config.credit.method, task=config.task.name)
        self._tell = told["features"]
        self._regressor = chosen(config.needs.regressor)

    def provide(self, episodes: Sequence[Episode]) -> None:
        """Fills the need of each episode, failed ones as far as they went."""
        for episode in episodes:
            own = np.array(tell(self._tell, episode), np.float64)
            episode.info["features"] = np.hstack([history(episode), own])

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Which regressor predicts: 1 for TabPFN, 0 for scikit-learn."""
        return {"regressor/is_tabpfn_flag": float(self._regressor == "tabpfn")}

    def state(self) -> dict[str, Any]:
        """The regressor's name."""
        return {"regressor": self._regressor}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Checks that a run goes on with the regressor it began with.

        Raises:
            UsageError: It began with the other one.
        """
        if state["regressor"] != self._regressor:
            raise UsageError(
                f"The run began with the {state['regressor']} regressor, and `needs.regressor` is "
                f"{self._regressor} here: go on where the former is installed."
            )


def history(episode: Episode) -> np.ndarray:
    """The columns of `HISTORY` for each state of an episode (turns + 1, 10)."""
    sampled = episode.column("num_tokens")
    shown = np.array([len(turn.info["shown"]) for turn in episode.turns], np.int64)
    tokens = np.maximum(sampled, 1)
    columns = [
        np.arange(len(sampled) + 1),
        np.append(0, np.cumsum(sampled)),
        np.append(np.cumsum(shown), shown.sum()),
        np.append(0, sampled),
        *_so_far(episode.column("logprob") / tokens),
        *_so_far(episode.column("entropy")),
    ]
    return np.column_stack(columns).astype(np.float64)


def _so_far(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Before each turn and at the end: the mean so far, the last value, the share that is known."""
    is_known = ~np.isnan(values)
    known = np.append(0, np.cumsum(is_known))
    filled = np.where(is_known, values, 0.0)
    mean = np.append(0.0, np.cumsum(filled)) / np.maximum(known, 1)
    share = known / np.maximum(np.arange(len(values) + 1), 1)
    return mean, np.append(0.0, filled), share
