"""The `World` of language-model agents: episodes, forks, and what may go wrong with them."""

from trainer.rollout.world import Rollout

__all__ = ["Rollout"]
