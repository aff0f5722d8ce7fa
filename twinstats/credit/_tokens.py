"""Statistics over turns in which every turn counts as often as it has tokens."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from twinstats.episodes import Credit

PENDING, DONE = "pending", "done"  # values of `info["whitening"]`
_FLOOR = 1e-8  # added to the variance


def centred_by_tokens(values: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Each turn's value minus the mean over tokens; equal values give exactly 0."""
    if not tokens.any() or values.max() == values.min():
        return np.zeros(len(values))
    return values - math.fsum(tokens * values) / math.fsum(tokens)


def whitened(credits: list[Credit]) -> list[Credit]:
    """The step's credits with mean 0 and variance 1 over all tokens: a method's `finish`.

    (value - mean) / sqrt(variance + 1e-8), mean and variance (over tokens - 1) taken over the
    credits whose `info["whitening"]` is "pending"; others stay as they are, so that nothing is
    whitened twice. Nulls are left out and stay null. Equal values give exactly 0.
    """
    pending = [credit for credit in credits if credit.info.get("whitening") == PENDING]
    if not pending:
        return credits
    turns = iter(_whitened_turns(pending))
    return [
        dataclasses.replace(
            credit,
            values=[next(turns) for _ in credit.episodes],
            info=credit.info | {"whitening": DONE},
        )
        if credit.info.get("whitening") == PENDING
        else credit
        for credit in credits
    ]


def _whitened_turns(credits: Sequence[Credit]) -> list[np.ndarray]:
    """One array an episode."""
    own = [values for credit in credits for values in credit.values]
    episodes = [episode for credit in credits for episode in credit.episodes]
    values = np.concatenate(own)
    tokens = np.concatenate([episode.column("num_tokens") for episode in episodes])
    scored = ~np.isnan(values)
    if scored.any():
        weights = tokens[scored]
        deviations = centred_by_tokens(values[scored], weights)
        variance = math.fsum(weights * deviations**2) / max(math.fsum(weights) - 1, 1)
        values[scored] = deviations / math.sqrt(variance + _FLOOR)
    return np.split(values, np.cumsum([len(turns) for turns in own])[:-1])
