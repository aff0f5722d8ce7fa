"""The updates of a step: from credit to new weights, and what they tell about themselves.

Leaves out the loss itself (`loss`) and when steps are taken (`train`).
"""

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.config import Config, LossConfig
from trainer.loss import Batch, Logprobs, Loss, action_spans, make_batch, policy_loss
from trainer.policy import Policy, token_logprobs
from trainer.policy.passes import actions, by_turn, logprobs
from twinstats.episodes import Credit, Episode
from twinstats.noise import generator


@dataclass(slots=True)
class Learner:
    """What a run's updates carry from step to step.

    Attributes:
        policy: What is trained.
        optimizer: Over its parameters.
        config: The run's.
        reference: The policy that training started from; null where no KL to it is asked for.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    config: Config
    reference: PreTrainedModel | None = field(default=None)

    @classmethod
    def of(cls, policy: Policy, optimizer: torch.optim.Optimizer, config: Config) -> "Learner":
        """A learner of a policy that has not been trained yet: the reference is what it is now."""
        reference = frozen(policy.model) if needs_reference(config.loss) else None
        return cls(policy, optimizer, config, reference)

    def update(self, credits: Sequence[Credit], step: int) -> dict[str, float]:
        """Takes the updates of a step and returns metrics by name.

        Without any credit nothing is updated, and the loss is NaN (logged as null).

        Raises:
            RuntimeError: A gradient is not finite; that update and later ones are not made.
        """
        loss = self.config.loss
        kept, dropped = filtered(credits, loss)
        if not any(has_credit(credit) for credit in kept):
            nothing = {"loss/policy_nats": float("nan"), "loss/gradient_norm": float("nan")}
            return nothing | dropped
        self.policy.model.eval()  # no dropout: the behaviour policy is the one that is updated
        batch, engine = make_batch(kept), None
        if loss.importance_cap is not None:
            engine = engine_logprobs(kept, batch)
        told = _Told()
        behaviour = self._frozen_pass(self.policy.model, batch) if self._is_repeated else None
        reference = None if self.reference is None else self._frozen_pass(self.reference, batch)
        for rows in _updates(batch, loss, seed=self.config.seed, step=step):
            own = [None if one is None else one[rows] for one in (behaviour, engine, reference)]
            part = batch if len(rows) == len(batch.ids_RL) else batch.minibatch(rows)
            self._one(part, *own, told=told)
        return told.metrics(batch) | dropped

    @property
    def _is_repeated(self) -> bool:
        """Whether weights change before all of a batch was seen: its first pass must be kept."""
        return self.config.loss.epochs * self.config.loss.minibatches > 1

    def _one(
        self,
        batch: Batch,
        behaviour: torch.Tensor | None,
        engine: torch.Tensor | None,
        reference: torch.Tensor | None,
        *,
        told: "_Told",
    ) -> None:
        """One update, a micro-batch at a time: their gradients add up to the batch's."""
        self.optimizer.zero_grad()
        size = self.config.loss.micro_rows
        for begin in range(0, len(batch.ids_RL), size):
            part = batch.rows(begin, begin + size)
            current, entropy = self._pass(self.policy.model, part)
            if not self.config.loss.entropy_coefficient:
                entropy = entropy.detach()  # its graph is as large as the logits
            before, by_engine, anchor = (
                None if one is None else one[begin : begin + size, : part.ids_RL.shape[1]]
                for one in (behaviour, engine, reference)
            )
            given = Logprobs(
                current=current,
                behaviour=current.detach() if before is None else before,
                engine=by_engine,
                reference=anchor,
                entropy=entropy,
            )
            loss = policy_loss(given, part, self.config.loss)
            loss.total.backward()
            told.add(loss, entropy.detach()[part.trained_RL], given, part)
        norm = torch.nn.utils.clip_grad_norm_(
            self.policy.model.parameters(),
            self.config.optimizer.max_gradient_norm,
            error_if_nonfinite=True,
        )
        self.optimizer.step()
        told.gradient_norms.append(float(norm))

    def _pass(self, model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        temperature = self.config.rollout.temperature
        return token_logprobs(
            model, batch.ids_RL, batch.mask_RL, batch.trained_RL, temperature=temperature
        )

    @torch.no_grad()
    def _frozen_pass(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Log-probabilities (R, L) of a batch, a micro-batch at a time, without a gradient."""
        found, size = torch.zeros(batch.ids_RL.shape), self.config.loss.micro_rows
        for begin in range(0, len(batch.ids_RL), size):
            part = batch.rows(begin, begin + size)
            logp, _ = self._pass(model, part)
            found[begin : begin + size, : part.ids_RL.shape[1]] = logp
        return found


def needs_reference(config: LossConfig) -> bool:
    """Whether updates look at the policy that training started from."""
    return config.kl_coefficient > 0 or config.max_kl is not None


def frozen(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model that is never trained."""
    return copy.deepcopy(model).eval().requires_grad_(False)


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


def engine_logprobs(credits: Sequence[Credit], batch: Batch) -> torch.Tensor:
    """What the engine said of each trained token when it sampled it (R, L), zero elsewhere.

    Raises:
        ValueError: The engine told none for a trained turn.
    """
    found = torch.zeros(batch.ids_RL.shape)
    trained = [
        one
        for credit in credits
        for one, own in zip(credit.episodes, credit.values, strict=True)
        if np.isfinite(own).any()
    ]
    for row, episode in enumerate(trained):
        for index, (begin, end) in enumerate(action_spans(episode)):
            if not bool(batch.trained_RL[row, begin]):
                continue
            told = episode.turns[index].info["logprobs"]
            if told is None:
                raise ValueError(
                    "`loss.importance_cap` needs the engine's log-probabilities, which turn "
                    f"{index} of episode {episode.name} does not have."
                )
            found[row, begin:end] = torch.tensor(told)
    return found


def has_credit(credit: Credit) -> bool:
    """Whether any turn of a group has credit."""
    return any(bool(np.isfinite(values).any()) for values in credit.values)


def engine_gap(policy: Policy, episodes: Sequence[Episode], config: Config) -> float:
    """Largest difference between the engine's and the learner's log-probability of a turn, nats.

    Called before an update: both sides then have the same weights. NaN where the engine told no
    log-probability.
    """
    played = [episode for episode in episodes if episode.turns]
    temperature = config.rollout.temperature
    found = logprobs(policy, [actions(episode) for episode in played], temperature=temperature)
    gaps = [
        abs(own.sum() - turn.logprob)
        for values, episode in zip(found, played, strict=True)
        for own, turn in zip(by_turn(values, episode), episode.turns, strict=True)
        if turn.logprob is not None
    ]
    return float(max(gaps, default=np.nan))


def _updates(batch: Batch, config: LossConfig, *, seed: int, step: int) -> Iterator[torch.Tensor]:
    """The rows of each update: all, or in every epoch another keyed order cut into minibatches."""
    count = len(batch.ids_RL)
    if config.minibatches == 1:
        yield from [torch.arange(count)] * config.epochs
        return
    rng = generator(seed, "minibatches", step)
    for _ in range(config.epochs):
        parts = np.array_split(rng.permutation(count), config.minibatches)
        yield from (torch.from_numpy(np.sort(part)) for part in parts if len(part))


@dataclass(slots=True)
class _Told:
    """Sums over all tokens of all updates of a step."""

    tokens: int = 0
    clipped: int = 0
    capped: int = 0
    entropy: float = 0.0
    moved: float = 0.0
    kl: float | None = None
    policy: float = 0.0
    gradient_norms: list[float] = field(default_factory=list)

    def add(self, loss: Loss, entropy: torch.Tensor, given: Logprobs, batch: Batch) -> None:
        """Counts a micro-batch in."""
        trained = batch.trained_RL
        log_ratio = (given.current.detach() - given.behaviour)[trained].double()
        self.tokens += len(entropy)
        self.clipped += loss.clipped
        self.capped += loss.capped
        self.entropy += float(entropy.sum())
        self.moved += float((torch.expm1(log_ratio) - log_ratio).sum())
        self.policy += loss.policy
        if loss.kl is not None:
            self.kl = (self.kl or 0.0) + loss.kl

    def metrics(self, batch: Batch) -> dict[str, float]:
        """By name: means over tokens, and over updates for loss and gradient norm."""
        updates = len(self.gradient_norms)
        found = {
            "loss/policy_nats": self.policy / updates,
            "loss/gradient_norm": float(np.mean(self.gradient_norms)),
            "loss/clipped_share": self.clipped / self.tokens,
            "loss/capped_share": self.capped / self.tokens,
            "loss/entropy_nats": self.entropy / self.tokens,
            "loss/moved_nats": self.moved / self.tokens,
            "loss/trained_tokens": float(batch.num_tokens),
            "loss/updates_count": updates,
        }
        return found if self.kl is None else found | {"loss/kl_nats": self.kl / self.tokens}
