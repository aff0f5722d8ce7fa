"""How undecided the policy is where a turn begins: the need `first_entropy`."""

import math
from collections.abc import Sequence

import numpy as np

from trainer.needs.provider import Computed, Setup, null_turns
from trainer.policy.passes import actions, by_turn, entropies
from twinstats.episodes import Episode

FIRST_TOKENS = 20
"""Tokens of a turn whose entropy counts: as many as in ARPO's repository."""


def first_entropy(setup: Setup) -> Computed:
    """Mean entropy of a turn's first tokens over that of an even choice: one number a turn.

    The first `FIRST_TOKENS` tokens, or all of a shorter turn; 1 is log(vocabulary). That of the
    first token is known before the turn is drawn, that of the others given those before them.

    Source: Dong et al., ARPO, arXiv 2507.19849; repository RUC-NLPIR/ARPO, which has the ten
        likeliest tokens only, where this has all.
    """
    policy, temperature = setup.policy, setup.config.rollout.temperature

    def compute(episodes: Sequence[Episode]) -> list[np.ndarray]:
        largest = math.log(policy.model.get_output_embeddings().weight.shape[0])
        passages = [actions(episode) for episode in episodes]
        found = entropies(policy, passages, temperature=temperature)
        return [
            np.array([own[:FIRST_TOKENS].mean() for own in by_turn(values, episode)]) / largest
            for values, episode in zip(found, episodes, strict=True)
        ]

    return Computed("first_entropy", compute, null_turns)
