"""The need `value`: a critic on the policy's last hidden state, which learns from every step.

Leaves out advantages (`twinstats.credit.ppo`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trainer.learning.optimizer import optimizer_tensors, restore_optimizer
from trainer.needs.provider import Setup
from trainer.policy import Policy
from trainer.policy.passes import Passage, hidden_states
from trainer.policy.tokens import action_spans, episode_ids
from twinstats.credit.inputs import returns_to_go, step_rewards
from twinstats.episodes import Episode

_UPDATES = 16  # on each step's episodes: they cost nothing beside the pass that reads the states

# S states, H hidden size


class Critic:
    """Expected rewards still to come, linear in the direction of the policy's last hidden state.

    The state before a turn is read at the token before the turn's first one; no gradient reaches
    the policy. Weights start at 0, so the first step's values are what was earned.
    The target is the sum of the rewards that did come, undiscounted: what `value` means, and the
    return of lambda = 1, whose critic does not learn from its own errors. An episode that a limit
    cut counts with what it earned; the state behind its last turn has no target.

    Args:
        setup: `needs.critic_learning_rate` is its AdamW's.

    Source: Schulman et al., arXiv 1506.02438, section 5 (regression on returns); Yuan et al.,
        arXiv 2503.01491 (lambda = 1 for the critic, whatever the policy's).
    """

    def __init__(self, setup: Setup) -> None:
        self._policy = setup.policy
        output = setup.policy.model.get_output_embeddings().weight
        self._weight = torch.zeros(output.shape[1], device=output.device, requires_grad=True)
        self._bias = torch.zeros((), device=output.device, requires_grad=True)
        self._optimizer = torch.optim.AdamW(
            [self._weight, self._bias], lr=setup.config.needs.critic_learning_rate, weight_decay=0.0
        )

    def provide(self, episodes: Sequence[Episode]) -> None:
        """The expected outcome before each turn and at the end: T + 1 numbers, earned included.

        At the end of an episode that terminated it is what was earned; of one that a limit cut,
        the critic's own. A failed episode has nulls.
        """
        played = [episode for episode in episodes if episode.outcome is not None]
        for episode, states_SH in zip(played, self._states(played), strict=True):
            ahead = self._predict(states_SH).detach().double().cpu().numpy()
            if episode.terminated:
                ahead[-1] = 0.0
            episode.info["value"] = np.append(0.0, np.cumsum(step_rewards(episode))) + ahead
        for episode in episodes:
            if episode.outcome is None:
                episode.info["value"] = np.full(episode.num_turns + 1, np.nan)

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Regresses on a step's returns; failed episodes teach nothing.

        The states are those of the policy's weights of now, which the next step starts from.

        Returns:
            `critic/loss`, the mean squared error, and `critic/explained_variance_share`,
            1 - Var(return - value) / Var(return), both before learning from these episodes; NaN
            where no episode was played, and the latter where all returns are equal.
        """
        played = [episode for episode in episodes if episode.outcome is not None]
        if not played:
            return _told(float("nan"), float("nan"))
        states_SH = torch.cat([states[:-1] for states in self._states(played)])
        returns_S = torch.as_tensor(
            np.concatenate([returns_to_go(step_rewards(episode)) for episode in played]),
            dtype=torch.float32,
            device=states_SH.device,
        )
        errors_S = (returns_S - self._predict(states_SH)).detach()
        for _ in range(_UPDATES):
            loss = (returns_S - self._predict(states_SH)).square().mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        spread = float(returns_S.var(correction=0))
        missed = float(errors_S.var(correction=0))
        return _told(
            float(errors_S.square().mean()), 1 - missed / spread if spread > 0 else float("nan")
        )

    def state(self) -> dict[str, Any]:
        """Nothing: all it learned are tensors."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights, and the optimizer's tensors under `optimizer/`."""
        own = {"weight": self._weight.detach().clone(), "bias": self._bias.detach().clone()}
        optimizer = optimizer_tensors(self._optimizer)
        return own | {f"optimizer/{name}": value for name, value in optimizer.items()}

    def load(self, state: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes up what `tensors` returned."""
        with torch.no_grad():
            self._weight.copy_(tensors["weight"])
            self._bias.copy_(tensors["bias"])
        kept = {
            name.removeprefix("optimizer/"): value
            for name, value in tensors.items()
            if name.startswith("optimizer/")
        }
        restore_optimizer(self._optimizer, kept)

    def _predict(self, states_SH: torch.Tensor) -> torch.Tensor:
        return states_SH @ self._weight + self._bias

    def _states(self, episodes: Sequence[Episode]) -> list[torch.Tensor]:
        """The direction of the hidden state before each turn and at the end (T + 1, H).

        Of length 1, so that one learning rate serves models of any size.
        """
        passages = [_passage(self._policy, episode) for episode in episodes]
        return [
            torch.nn.functional.normalize(states_SH.float(), dim=-1)
            for states_SH in hidden_states(self._policy, passages)
        ]


def _passage(policy: Policy, episode: Episode) -> Passage:
    """An episode with what was shown at its end; asked are its turns' first tokens and the end."""
    ids = episode_ids(episode) + policy.encode(str(episode.final_state))
    return Passage(ids, [*(begin for begin, _ in action_spans(episode)), len(ids)])


def _told(loss: float, explained: float) -> dict[str, float]:
    return {"critic/loss": loss, "critic/explained_variance_share": explained}
