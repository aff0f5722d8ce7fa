"""The clipped policy gradient. It takes credit as numbers and knows no method by name.

Leaves out KL terms, importance weights for another engine and several epochs over one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer.config import LossConfig
from trainer.policy import padded
from twinstats.episodes import Credit, Episode

# R rows, L positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Episodes as the learner sees them.

    Attributes:
        ids_RL: Token ids, right-padded.
        mask_RL: True at real tokens, by length.
        trained_RL: True at sampled tokens whose turn has credit.
        advantage_RL: Credit of the token's turn, times its share and the token's weight.
        turn_RL: Index of the token's turn within the batch, -1 where not trained.
        num_turns: Number of trained turns.
        num_episodes: Number of factual episodes of the step, with or without credit: twins that
            are trained share their factual's part of the gradient.
    """

    ids_RL: torch.Tensor
    mask_RL: torch.Tensor
    trained_RL: torch.Tensor
    advantage_RL: torch.Tensor
    turn_RL: torch.Tensor
    num_turns: int
    num_episodes: int

    @property
    def num_tokens(self) -> int:
        """Number of trained tokens."""
        return int(self.trained_RL.sum())


def make_batch(credits: Sequence[Credit]) -> Batch:
    """The trained turns of a step's credits; an episode without any is left out.

    Only tokens that were sampled by the policy are trained, whatever the text around them looks
    like. A turn whose credit is null is context.

    Raises:
        ValueError: No turn has credit, or a turn has another number of weights than of tokens.
    """
    rows = [
        (episode, credit.values[index], _share(credit, index), _weights(credit, index))
        for credit in credits
        for index, episode in enumerate(credit.episodes)
        if np.isfinite(credit.values[index]).any()
    ]
    if not rows:
        raise ValueError("`credits` must hold at least one turn with credit.")
    ids_RL, mask_RL = padded([episode_ids(episode) for episode, *_ in rows])
    trained_RL = torch.zeros(ids_RL.shape, dtype=torch.bool)
    advantage_RL = torch.zeros(ids_RL.shape, dtype=torch.float32)
    turn_RL = torch.full(ids_RL.shape, -1, dtype=torch.long)
    num_turns = 0
    for row, (episode, values, share, weights) in enumerate(rows):
        for turn, (begin, end) in enumerate(action_spans(episode)):
            if not np.isfinite(values[turn]):
                continue
            span = slice(begin, end)
            scale = _scale(episode, turn, weights)
            trained_RL[row, span] = True
            advantage_RL[row, span] = float(values[turn] * share[turn]) * scale
            turn_RL[row, span] = num_turns
            num_turns += 1
    return Batch(
        ids_RL=ids_RL,
        mask_RL=mask_RL,
        trained_RL=trained_RL,
        advantage_RL=advantage_RL,
        turn_RL=turn_RL,
        num_turns=num_turns,
        num_episodes=sum(one.fork is None for credit in credits for one in credit.episodes),
    )


def episode_ids(episode: Episode) -> list[int]:
    """All token ids of an episode in order: what was shown and what was sampled, by turns."""
    return [token for turn in episode.turns for token in (*turn.info["shown"], *turn.action)]


def action_spans(episode: Episode) -> list[tuple[int, int]]:
    """Begin and end of each turn's sampled tokens within `episode_ids`."""
    spans, position = [], 0
    for turn in episode.turns:
        begin = position + len(turn.info["shown"])
        position = begin + len(turn.action)
        spans.append((begin, position))
    return spans


def padded_episodes(
    episodes: Sequence[Episode],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids (R, L) of whole episodes, right-padded, their mask, and which tokens were sampled."""
    ids_RL, mask_RL = padded([episode_ids(episode) for episode in episodes])
    sampled_RL = torch.zeros_like(mask_RL)
    for row, episode in enumerate(episodes):
        for begin, end in action_spans(episode):
            sampled_RL[row, begin:end] = True
    return ids_RL, mask_RL, sampled_RL


def policy_loss(
    logp_RL: torch.Tensor, behaviour_RL: torch.Tensor, batch: Batch, config: LossConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss to minimise, and the share of tokens at which clipping is active.

    Per token -min(r * A, clip(r, 1 - low, 1 + high) * A), with r the ratio to the behaviour policy
    of the token, or of its turn (exp of the mean log-ratio of its tokens). Aggregated over trained
    tokens as `token` (mean), `turn` (mean within each turn, summed, divided by the number
    of episodes: a turn's weight does not depend on its length) or `constant` (sum / episodes).

    Args:
        logp_RL: Log-probabilities under the current weights.
        behaviour_RL: Log-probabilities when sampled, no gradient.
        batch: The trained tokens; nothing outside them is read.
        config: Ratio, aggregation and clip range.
    """
    trained = batch.trained_RL
    log_ratio = (logp_RL - behaviour_RL)[trained]
    advantage, turn = batch.advantage_RL[trained], batch.turn_RL[trained]
    lengths = torch.zeros(batch.num_turns).index_add(0, turn, torch.ones(len(turn)))
    if config.ratio == "turn":
        sums = torch.zeros(batch.num_turns).index_add(0, turn, log_ratio)
        log_ratio = (sums / lengths)[turn]
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    each = -torch.minimum(ratio * advantage, clipped * advantage)
    is_clipped = (clipped * advantage < ratio * advantage).float().mean()
    if config.aggregation == "token":
        return each.mean(), is_clipped
    if config.aggregation == "turn":
        return (each / lengths[turn]).sum() / batch.num_episodes, is_clipped
    return each.sum() / batch.num_episodes, is_clipped


def _scale(episode: Episode, turn: int, weights: Sequence[np.ndarray] | None) -> torch.Tensor:
    """The weight of each token of a turn."""
    length = len(episode.turns[turn].action)
    if weights is None:
        return torch.ones(length)
    if len(weights[turn]) != length:
        raise ValueError(
            f"Episode {episode.name}, turn {turn}: {len(weights[turn])} weights "
            f"for {length} tokens."
        )
    return torch.as_tensor(weights[turn])


def _share(credit: Credit, index: int) -> np.ndarray:
    if credit.share is None:
        return np.ones(credit.episodes[index].num_turns)
    return credit.share[index]


def _weights(credit: Credit, index: int) -> Sequence[np.ndarray] | None:
    return None if credit.weights is None else credit.weights[index]
