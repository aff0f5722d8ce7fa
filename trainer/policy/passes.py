"""Passes of the policy over given tokens: hidden states, log-probabilities, entropies.

Without a gradient, and in batches of bounded size, so that memory does not grow with the number of
episodes. Leaves out sampling (engines) and what an update learns from (`learning.loss`).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from trainer.policy import Policy, last_hidden, padded
from trainer.policy import entropies as entropies_of
from trainer.policy.tokens import action_spans, episode_ids
from twinstats.episodes import Episode

_POSITIONS = 8192  # of a pass, padding included, unless one passage alone is longer
_LAWS = 256  # tokens whose laws exist at a time: 160 MB at a vocabulary of 152,000

# R rows, L positions, N wanted tokens, H hidden size, V vocabulary


class Passage(NamedTuple):
    """Token ids, and the places in them of the tokens that are asked about.

    A place is from 1, because nothing stands before the first token, to `len(ids)`, the token
    that would follow.
    """

    ids: Sequence[int]
    wanted: Sequence[int]


def actions(episode: Episode, before: Sequence[int] = ()) -> Passage:
    """All sampled tokens of an episode, with `before` put in front of it."""
    places = [len(before) + k for begin, end in action_spans(episode) for k in range(begin, end)]
    return Passage([*before, *episode_ids(episode)], places)


def by_turn(values: np.ndarray, episode: Episode) -> list[np.ndarray]:
    """One number a sampled token as one array a turn."""
    ends = np.cumsum([len(turn.action) for turn in episode.turns])
    return np.split(values, ends[:-1])


@torch.inference_mode()
def hidden_states(policy: Policy, passages: Sequence[Passage]) -> list[torch.Tensor]:
    """The last hidden state (N, H) that every wanted token follows from, one tensor a passage."""
    policy.model.eval()  # no dropout: the policy is the one that sampled
    device = policy.model.device
    found: dict[int, torch.Tensor] = {}
    for rows in _batches([len(passage.ids) for passage in passages]):
        ids_RL, mask_RL = padded([passages[row].ids for row in rows])
        states_RLH = last_hidden(policy.model, ids_RL.to(device), mask_RL.to(device))
        for states_LH, row in zip(states_RLH, rows, strict=True):
            found[row] = states_LH[torch.tensor(passages[row].wanted, device=device) - 1]
    return [found[row] for row in range(len(passages))]


@torch.inference_mode()
def logprobs(
    policy: Policy, passages: Sequence[Passage], *, temperature: float
) -> list[np.ndarray]:
    """Log-probability of each wanted token given those before it, nats, one array a passage."""
    found = []
    for passage, laws in zip(passages, _laws(policy, passages, temperature), strict=True):
        ids_N = torch.tensor([passage.ids[k] for k in passage.wanted], dtype=torch.long)
        parts = zip(laws, ids_N.to(policy.model.device).split(_LAWS), strict=True)
        logp_N = torch.cat([law_NV.gather(1, own_N[:, None])[:, 0] for law_NV, own_N in parts])
        found.append(logp_N.double().cpu().numpy())
    return found


@torch.inference_mode()
def entropies(
    policy: Policy, passages: Sequence[Passage], *, temperature: float
) -> list[np.ndarray]:
    """Entropy of what each wanted token was drawn from, nats, one array a passage."""
    return [
        torch.cat([entropies_of(law_NV) for law_NV in laws]).double().cpu().numpy()
        for laws in _laws(policy, passages, temperature)
    ]


def _laws(
    policy: Policy, passages: Sequence[Passage], temperature: float
) -> Iterator[Iterator[torch.Tensor]]:
    """Log-probabilities (N, V) of each passage's wanted tokens, a bounded number at a time.

    Args:
        policy: Model and tokenizer.
        passages: What is asked about.
        temperature: Logits are divided by it, as they were when the tokens were sampled.
    """
    output = policy.model.get_output_embeddings()
    for states_NH in hidden_states(policy, passages):
        yield (
            torch.log_softmax(output(part_NH).float() / temperature, dim=-1)
            for part_NH in states_NH.split(_LAWS)
        )


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Passages of similar length that go through the model together."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if batch and (len(batch) + 1) * lengths[row] > _POSITIONS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
