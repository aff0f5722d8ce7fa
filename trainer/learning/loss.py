"""The clipped policy gradient. It takes credit as numbers and knows no method by name.

Leaves out where log-probabilities come from, and steps of the optimizer (`learner`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from trainer.config import KlKind, LossConfig
from trainer.policy import padded
from trainer.policy.tokens import action_spans, episode_ids
from twinstats.episodes import Credit, Episode

# R rows, L positions

TABLES = ("ids_RL", "mask_RL", "trained_RL", "advantage_RL", "turn_RL")
"""Tensors of a batch that have its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Episodes as the learner sees them.

    Attributes:
        ids_RL: Token ids, right-padded.
        mask_RL: True at real tokens, by length.
        trained_RL: True at sampled tokens whose turn has credit.
        advantage_RL: Credit of the token's turn, times its share and the token's weight.
        turn_RL: Index of the token's turn within the batch, -1 where not trained.
        lengths: Number of trained tokens of each turn that `turn_RL` may name; a minibatch
            keeps those of the whole.
        num_tokens: Number of trained tokens.
        num_turns: Number of trained turns.
        num_episodes: Number of factual episodes of the step, with or without credit: twins that
            are trained share their factual's part of the gradient.
    """

    ids_RL: torch.Tensor
    mask_RL: torch.Tensor
    trained_RL: torch.Tensor
    advantage_RL: torch.Tensor
    turn_RL: torch.Tensor
    lengths: torch.Tensor
    num_tokens: int
    num_turns: int
    num_episodes: float

    def to(self, device: torch.device) -> "Batch":
        """The same batch with its tensors on a device."""
        names = (*TABLES, "lengths")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def rows(self, begin: int, end: int) -> "Batch":
        """A micro-batch: some rows without their common padding, with the totals of the whole."""
        return self._taken(torch.arange(begin, min(end, len(self.ids_RL))))

    def minibatch(self, rows: torch.Tensor) -> "Batch":
        """A batch of its own: some rows, their totals, their part of the episodes."""
        part = self._taken(rows)
        share = len(rows) / len(self.ids_RL)
        return replace(
            part,
            num_tokens=int(part.trained_RL.sum()),
            num_turns=len(part.turn_RL[part.trained_RL].unique()),
            num_episodes=self.num_episodes * share,
        )

    def _taken(self, rows: torch.Tensor) -> "Batch":
        width = int(self.mask_RL[rows].sum(1).max())
        return replace(self, **{name: getattr(self, name)[rows, :width] for name in TABLES})


def make_batch(credits: Sequence[Credit]) -> Batch:
    """The trained turns of a step's credits; an episode without any is left out.

    Only tokens that were sampled by the policy are trained, whatever the text around them looks
    like. A turn whose credit is null is context.

    Raises:
        ValueError: No turn has credit, or a turn has another number of weights than of tokens.
    """
    rows = trained_rows(credits)
    if not rows:
        raise ValueError("`credits` must hold at least one turn with credit.")
    ids_RL, mask_RL = padded([episode_ids(credit.episodes[index]) for credit, index in rows])
    trained_RL = torch.zeros(ids_RL.shape, dtype=torch.bool)
    advantage_RL = torch.zeros(ids_RL.shape, dtype=torch.float32)
    turn_RL = torch.full(ids_RL.shape, -1, dtype=torch.long)
    num_turns = 0
    for row, (credit, index) in enumerate(rows):
        episode, values = credit.episodes[index], credit.values[index]
        share, weights = _share(credit, index), _weights(credit, index)
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
        lengths=torch.bincount(turn_RL[trained_RL], minlength=num_turns),
        num_tokens=int(trained_RL.sum()),
        num_turns=num_turns,
        num_episodes=sum(one.fork is None for credit in credits for one in credit.episodes),
    )


def trained_rows(credits: Sequence[Credit]) -> list[tuple[Credit, int]]:
    """The episodes with credit, in the order of a batch's rows: a group's credit, and which one."""
    return [
        (credit, index)
        for credit in credits
        for index, values in enumerate(credit.values)
        if np.isfinite(values).any()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log-probabilities of the batch's tokens, each (R, L), nats; read where trained only.

    Attributes:
        current: Under the weights that are trained, with gradient.
        behaviour: Under the weights the episodes were sampled with, by the learner's own pass.
        engine: As the engine said when it sampled, NaN where it told nothing; null where
            importance weights are not asked for.
        reference: Under the reference policy; null where no KL is asked for.
        entropy: Entropy of each token's distribution, with gradient where it is in the loss.
    """

    current: torch.Tensor
    behaviour: torch.Tensor
    engine: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is minimised, and its parts as numbers (sums over micro-batches are the whole's).

    Attributes:
        total: With gradient.
        policy: The clipped policy gradient.
        clipped: Number of tokens at which clipping is active.
        capped: Number of tokens whose importance weight was cut.
    """

    total: torch.Tensor
    policy: float
    clipped: int
    capped: int


def policy_loss(logp: Logprobs, batch: Batch, config: LossConfig) -> Loss:
    """The loss of a batch, or of a micro-batch of it: losses of micro-batches add up.

    Per token -w * min(r * A, clip(r, 1 - low, 1 + high) * A), with r the ratio to the behaviour
    policy of the token, or of its turn (exp of the mean log-ratio of its tokens), and w the
    importance weight min(behaviour / engine, cap) where one is asked for. The KL estimate of each
    token (`kl`) joins times `kl_coefficient`, or lowers its A ("credit"); its entropy leaves times
    `entropy_coefficient`. All are aggregated alike (`_aggregated`).

    Args:
        logp: Log-probabilities; nothing outside the trained tokens is read.
        batch: The trained tokens, and the totals that sums are divided by.
        config: Ratio, aggregation, clip range and coefficients.
    """
    trained = batch.trained_RL
    current, behaviour = logp.current[trained], logp.behaviour[trained]
    advantage, turn = batch.advantage_RL[trained], batch.turn_RL[trained]
    estimate = None if logp.reference is None else kl(current, logp.reference[trained], config.kl)
    if estimate is not None and config.kl_in == "credit":
        advantage = advantage - config.kl_coefficient * estimate.detach()
    ratio = _ratio(current - behaviour, batch, config)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    weight, capped = _importance(logp, trained, config)
    each = -weight * torch.minimum(ratio * advantage, clipped * advantage)
    policy = _aggregated(each, turn, batch, config)
    total = policy
    if estimate is not None and config.kl_in == "loss":
        total = total + config.kl_coefficient * _aggregated(estimate, turn, batch, config)
    if config.entropy_coefficient:
        assert logp.entropy is not None
        spread = _aggregated(logp.entropy[trained], turn, batch, config)
        total = total - config.entropy_coefficient * spread
    return Loss(
        total=total,
        policy=float(policy.detach()),
        clipped=int((clipped * advantage < ratio * advantage).sum()),
        capped=capped,
    )


def kl(logp: torch.Tensor, reference: torch.Tensor, kind: KlKind) -> torch.Tensor:
    """An estimate of KL(policy, reference) from each sampled token, nats.

    With d = logp - reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. k1 and k3 have the KL as
    their mean, k2 nearly; k2 and k3 are never negative. As a loss on tokens that the policy sampled
    their gradients are others: of k1 nothing in the mean, of k2 that of KL(policy, reference), of
    k3 that of KL(reference, policy). k1 in the credit has the gradient of k2 in the loss.

    Source: Schulman, Approximating KL divergence (2020), for the estimates; the gradients follow by
    differentiation.

    >>> one, other = torch.tensor([-1.0]), torch.tensor([-1.2])
    >>> [round(kl(one, other, kind).item(), 6) for kind in ("k1", "k2", "k3")]
    [0.2, 0.02, 0.018731]
    """
    difference = logp - reference
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    return torch.expm1(-difference) + difference


def _ratio(log_ratio: torch.Tensor, batch: Batch, config: LossConfig) -> torch.Tensor:
    """The ratio to the behaviour policy of each trained token, or of its turn."""
    if config.ratio == "token":
        return log_ratio.exp()
    turn = batch.turn_RL[batch.trained_RL]
    return (turn_sums(log_ratio, batch)[turn] / batch.lengths[turn]).exp()


def turn_sums(each: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Sums (turns) over the tokens of each turn of values of a batch's trained tokens.

    Turns of other rows than the batch's have 0.
    """
    turn = batch.turn_RL[batch.trained_RL]
    return each.new_zeros(len(batch.lengths)).index_add(0, turn, each)


def _importance(
    logp: Logprobs, trained: torch.Tensor, config: LossConfig
) -> tuple[torch.Tensor | float, int]:
    """Weights that make tokens of another engine those of the learner, and how many were cut."""
    if config.importance_cap is None:
        return 1.0, 0
    assert logp.engine is not None
    weight = (logp.behaviour[trained] - logp.engine[trained]).detach().exp()
    return weight.clamp(max=config.importance_cap), int((weight > config.importance_cap).sum())


def _aggregated(
    each: torch.Tensor, turn: torch.Tensor, batch: Batch, config: LossConfig
) -> torch.Tensor:
    """Values of trained tokens as one number.

    `token`: their mean. `turn`: the mean within each turn, summed, over the number of episodes: a
    turn's weight does not depend on its length. `turn_mean`: the same over the number of turns,
    which is random: a ratio, not a sum of independent terms. `constant`: the sum over episodes.
    """
    if config.aggregation == "token":
        return each.sum() / batch.num_tokens
    if config.aggregation == "constant":
        return each.sum() / batch.num_episodes
    sums = (each / batch.lengths[turn]).sum()
    return sums / (batch.num_turns if config.aggregation == "turn_mean" else batch.num_episodes)


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
