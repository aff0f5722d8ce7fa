"""The tokens of an episode in a row: their ids, and which of them were sampled.

Leaves out what is trained of them (`learning.loss`).
"""

from collections.abc import Sequence

import torch

from trainer.policy import padded
from twinstats.episodes import Episode

# R rows, L positions


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
