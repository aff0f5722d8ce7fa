"""Which credit of a step is trained, and what the engine said of its tokens."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from trainer.config import LossConfig
from trainer.learning.loss import Batch, trained_rows
from trainer.policy.tokens import action_spans
from twinstats.episodes import Credit

# R rows, L positions


def filtered(
    credits: Sequence[Credit], config: LossConfig
) -> tuple[list[Credit], dict[str, float]]:
    """The credit that is trained, and how much was dropped.

    Truncated episodes and groups whose outcomes are all equal lose their credit where the
    configuration says so; the credit of the others was computed with them, and stays.
    """
    kept, counts = [], Counter(truncated=0, equal=0)
    for credit in credits:
        factuals = [one for one in credit.episodes if one.fork is None and one.outcome is not None]
        is_equal = len(factuals) > 1 and len({one.outcome for one in factuals}) == 1
        drops_all = config.drop_equal_groups and is_equal
        drops = [config.drop_truncated and one.truncated for one in credit.episodes]
        counts["equal"] += drops_all
        counts["truncated"] += sum(drops)
        values = [
            np.full(len(own), np.nan) if drops_all or drop else own
            for own, drop in zip(credit.values, drops, strict=True)
        ]
        kept.append(replace(credit, values=values))
    return kept, {
        "loss/dropped_groups_count": counts["equal"],
        "loss/dropped_episodes_count": counts["truncated"],
    }


def engine_logprobs(
    credits: Sequence[Credit], batch: Batch, *, required: bool = False
) -> torch.Tensor:
    """What the engine said of each trained token when it sampled it (R, L), zero elsewhere.

    NaN where it told nothing.

    Raises:
        ValueError: It told nothing of a trained turn, and that is `required`.
    """
    found = torch.zeros(batch.ids_RL.shape)
    for row, (credit, place) in enumerate(trained_rows(credits)):
        episode = credit.episodes[place]
        for index, (begin, end) in enumerate(action_spans(episode)):
            if not bool(batch.trained_RL[row, begin]):
                continue
            told = episode.turns[index].info.get("logprobs")
            if told is None and required:
                raise ValueError(
                    "`loss.importance_cap` needs the engine's log-probabilities, which turn "
                    f"{index} of episode {episode.name} does not have."
                )
            found[row, begin:end] = torch.tensor(np.nan if told is None else told)
    return found


def has_credit(credit: Credit) -> bool:
    """Whether any turn of a group has credit."""
    return any(bool(np.isfinite(values).any()) for values in credit.values)
