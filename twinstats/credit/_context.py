"""The turns whose outcome is known: what a regressor is fitted to.

Leaves out how a prediction becomes credit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from twinstats.credit._checks import count
from twinstats.credit.baseline import outcomes
from twinstats.credit.inputs import needed
from twinstats.episodes import Credit, Episode


class Context:
    """The turns of earlier steps, newest last, as (features, outcome).

    At most `context` turns, whole episodes only: the oldest go first.

    Raises:
        ValueError: `context` below 1.
    """

    def __init__(self, context: int = 10_000) -> None:
        count(context=context)
        self.size = context
        self._earlier: list[tuple[np.ndarray, float]] = []

    def without(
        self, left_out: Credit, credits: Sequence[Credit]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Features and outcomes of earlier steps and of a step's other groups; null if none.

        In row order, so that the order of the groups changes no bit.

        Raises:
            ValueError: Rows of unequal length.
        """
        others = _examples([credit for credit in credits if credit is not left_out])
        examples = self._earlier + others
        if not examples:
            return None
        widths = {rows.shape[1] for rows, _ in examples}
        if len(widths) > 1:
            raise ValueError(f"'features' must have one length everywhere, got {sorted(widths)}.")
        lengths = [len(rows) for rows, _ in examples]
        return (
            np.concatenate([rows for rows, _ in examples]),
            np.repeat([outcome for _, outcome in examples], lengths),
        )

    def observe(self, credits: Sequence[Credit], ratios: object = None) -> None:
        """Takes up a finished step."""
        self._earlier += _examples(credits)
        total = sum(len(rows) for rows, _ in self._earlier)
        while total > self.size:
            total -= len(self._earlier.pop(0)[0])

    def state(self) -> dict[str, Any]:
        """Everything it carries, as strict JSON."""
        return {"earlier": [[rows.tolist(), outcome] for rows, outcome in self._earlier]}

    def load(self, state: dict[str, Any]) -> None:
        """Takes up what `state` returned."""
        self._earlier = [(np.array(rows), outcome) for rows, outcome in state["earlier"]]


def decision_features(episode: Episode) -> np.ndarray:
    """The features of the states in which an episode's turns were decided: one row a turn.

    Raises:
        ValueError: `features` are missing, of another number, of unequal length or not finite.
    """
    rows = [np.ravel(row) for row in needed("t2spo", episode, "features")]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"'features' of episode {episode.name} must have one length.")
    found = np.array(rows, np.float64)
    if not np.isfinite(found).all():
        raise ValueError(f"'features' of episode {episode.name} must be finite.")
    return found[:-1]


def _examples(credits: Sequence[Credit]) -> list[tuple[np.ndarray, float]]:
    episodes = [e for c in credits for e in c.episodes if e.fork is None and e.outcome is not None]
    episodes.sort(key=lambda episode: episode.row)
    ends = outcomes(episodes).tolist()
    return [(decision_features(e), end) for e, end in zip(episodes, ends, strict=True)]
