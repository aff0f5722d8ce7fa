"""What a step leaves in the log: the tables of its episodes, and what they came to in numbers.

Leaves out what an update or an evaluation measures (`learning`, `evaluation`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.config import Config
from trainer.loop.twin_metrics import twin_metrics
from trainer.policy import Policy
from twinstats.credit.baseline import group_info
from twinstats.credit.budget import allocation_rows
from twinstats.episodes import Credit, Episode, Group
from twinstats.records import Run
from twinstats.rows import credit_rows, episode_rows, pair_rows, turn_rows


def log_step(
    run: Run,
    step: int,
    groups: Sequence[Group],
    credits: Sequence[Credit],
    *,
    policy: Policy,
    config: Config,
) -> None:
    """Writes the tables of a step: its factuals, their forks and their credit."""
    episodes = [episode for group in groups for episode in group.episodes]
    forks = forks_of(credits)
    run.write("episodes", step, episode_rows([*episodes, *forks]))
    run.write("turns", step, turn_rows(episodes))
    run.write("pairs", step, pair_rows(forks))
    run.write("allocations", step, allocation_rows(credits))
    run.write("credit", step, credit_rows(credits, config.credit.method))
    told = [one for one in (*episodes, *forks) if one.row < config.log.text_rows]
    run.write("texts", step, _text_rows(policy, told))


def _text_rows(policy: Policy, episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Rows of the table `texts`; of a fork, its own turns only."""
    return [
        {"episode": episode.name, "turn": index, "role": role, "text": policy.decode(ids)}
        for episode in episodes
        for index, turn in enumerate(episode.turns)
        if episode.owner(index) is episode
        for role, ids in (("observation", turn.info["shown"]), ("action", turn.action))
    ]


def play_metrics(groups: Sequence[Group], credits: Sequence[Credit]) -> dict[str, float]:
    """What a step's factuals and forks came to, by name; NaN where undefined.

    The same names in every step and for every method: `twin_metrics` explains those of forks.
    """
    forks = forks_of(credits)
    episodes = [episode for group in groups for episode in group.episodes]
    outcomes = [episode.outcome for episode in episodes if episode.outcome is not None]
    known = [one.success for one in episodes if one.outcome is not None]
    successes = [success for success in known if success is not None]
    said = [group_info(group) for group in groups]  # a method of one's own need not say it
    uninformative = sum(bool(one["zero_variance"] or one["singleton_groups"]) for one in said)
    metrics = {
        "train/outcome_share": _mean(outcomes),
        "train/success_share": _mean(successes),
        "train/truncated_count": sum(episode.truncated for episode in episodes),
        "train/failed_count": sum(e.outcome is None for e in [*episodes, *forks]),
        "train/sampled_tokens": sum(episode.sampled for episode in episodes),
        "train/auxiliary_tokens": sum(fork.sampled for fork in forks),
        "credit/informative_groups_share": 1 - uninformative / len(groups),
    }
    return metrics | twin_metrics(episodes, forks, credits)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def forks_of(credits: Sequence[Credit]) -> list[Episode]:
    """The forks that the credit of a step was read from."""
    return [fork for credit in credits for fork in credit.info["forks"]]
