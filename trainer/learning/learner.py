"""The updates of a step: from credit to new weights, and what they tell about themselves.

Leaves out the loss itself (`loss`), which credit is trained (`credited`), what updates sum up
to (`update_sums`), and when steps are taken (`trainer.loop`).
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer.config import Config, LossConfig
from trainer.distributed.processes import ALONE, Message, Processes
from trainer.distributed.weights import logprobs_of, sum_gradients, whole
from trainer.learning.collectives import add_up, bring_together, deal
from trainer.learning.credited import engine_logprobs, filtered, has_credit
from trainer.learning.loss import Batch, Logprobs, make_batch, policy_loss, turn_sums
from trainer.learning.optimizer import learning_rate, trained_parameters
from trainer.learning.reference import needs_reference, reference_of
from trainer.learning.shares import Given, assembled
from trainer.learning.update_sums import UpdateSums
from trainer.policy import Policy
from trainer.policy.lora import adapters_off
from twinstats.credit.registry import Ratios
from twinstats.episodes import Credit
from twinstats.noise import generator

# R rows, L positions, T turns


@dataclass(slots=True)
class Learner:
    """What a run's updates carry from step to step.

    `learner.precision=bfloat16` computes matrix products in bfloat16 (torch.autocast), about three
    significant digits, half the memory of activations. The engine keeps its own precision, so the
    policy that sampled is not quite the one that is updated: engine/logprob_gap_nats tells how far
    apart they are over a turn (tiny random model, turns of 5 tokens: 1e-3 instead of 5e-7), and
    `loss.importance_cap` can weigh it out.

    Attributes:
        policy: What is trained.
        optimizer: Over its trained parameters.
        config: The run's.
        reference: The policy that training started from; null where no KL to it is asked for, and
            with adapters, whose base model it is.
        processes: Those that compute together; this one's learner has a share of each update.
        parts: The model that is trained where each process holds a part of it; null: the policy's.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    config: Config
    reference: PreTrainedModel | None = None
    processes: Processes = ALONE
    parts: PreTrainedModel | None = None

    @classmethod
    def of(
        cls,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        config: Config,
        processes: Processes = ALONE,
    ) -> "Learner":
        """A learner of a policy that has not been trained yet: the reference is what it is now."""
        return cls(policy, optimizer, config, reference_of(policy, config.loss), processes)

    @property
    def model(self) -> PreTrainedModel:
        """What is trained: the policy's model, or its parts."""
        return self.policy.model if self.parts is None else self.parts

    def update(
        self, credits: Sequence[Credit], step: int, *, total_tokens: int = 0
    ) -> dict[str, float]:
        """Takes the updates of a step and returns metrics by name.

        Without any credit nothing is updated, and what updates tell is NaN (logged as null). An
        update whose gradient is not finite is not made, nor are later ones of the step:
        loss/refused_updates_count is then 1.

        Args:
            credits: The step's credit.
            step: From 1.
            total_tokens: Tokens sampled in the steps before; schedules may go by them.

        Raises:
            ValueError: `loss.importance_cap` is set and the engine told no log-probability.
        """
        loss = self.config.loss
        rate = learning_rate(self.config, step=step, total_tokens=total_tokens)
        kept, dropped = filtered(credits, loss)
        sums = new_sums(self.config)
        if any(has_credit(credit) for credit in kept):
            with ready(self.model, checkpoints=self.config.learner.gradient_checkpointing):
                self._update(kept, sums, rate=rate, step=step)
        return sums.metrics() | dropped | {"loss/learning_rate": rate}

    def _update(
        self, credits: Sequence[Credit], sums: UpdateSums, *, rate: float, step: int
    ) -> None:
        """All updates of a step."""
        loss, batch = self.config.loss, make_batch(credits)
        engine = engine_logprobs(credits, batch, required=loss.importance_cap is not None)
        batch = batch.to(self.policy.model.device)
        engine = engine.to(self.policy.model.device)
        sums.trained = batch.num_tokens
        behaviour = self._logprobs("policy", batch) if self._is_repeated else None
        reference = self._logprobs("reference", batch) if needs_reference(loss) else None
        table = {"behaviour": behaviour, "engine": engine, "reference": reference}
        for rows in _updates(batch, loss, seed=self.config.seed, step=step):
            own: Given = {name: None if one is None else one[rows] for name, one in table.items()}
            part = batch if len(rows) == len(batch.ids_RL) else batch.minibatch(rows)
            _, (part, own) = deal(self.processes, "update", part, own, {"rate": rate})
            if not self.take_update(part, own, sums, rate=rate):
                sums.refused = 1
                break
        if self.processes.size > 1:
            self.processes.tell(Message("finish"))
            add_up(self.processes, sums)
            bring_together(self.policy, self.model, self.processes)

    def take_update(self, batch: Batch, given: Given, sums: UpdateSums, *, rate: float) -> bool:
        """One update, in which this process has some rows and the others theirs.

        Args:
            batch: The rows, with the totals of the whole batch.
            given: Their log-probabilities: behaviour, engine, reference.
            sums: Takes in what is told of these rows.
            rate: The learning rate.

        Returns:
            Whether the gradient was finite, so that the update was made: the same on all.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        self._gradient(batch, given, sums)
        if self.processes.size > 1:
            sum_gradients(trained_parameters(self.model).values())
        norm = self._clipped()
        if not np.isfinite(norm):
            self.optimizer.zero_grad()
            return False
        sums.gradient_norms.append(norm)
        self.optimizer.step()
        return True

    @property
    def _is_repeated(self) -> bool:
        """Whether weights change before all of a batch was seen: its first pass must be kept."""
        return self.config.loss.epochs * self.config.loss.minibatches > 1

    def _gradient(self, batch: Batch, given: Given, sums: UpdateSums) -> None:
        """The gradient of one update, a micro-batch at a time: their gradients add up to it.

        What losses are divided by is the batch's: some rows of it add their part of the whole.
        """
        size = self.config.loss.micro_rows
        for begin in range(0, len(batch.ids_RL), size):
            part = batch.rows(begin, begin + size)
            current, entropy = self._pass(self.model, part)
            own = {
                name: None if one is None else one[begin : begin + size, : part.ids_RL.shape[1]]
                for name, one in given.items()
            }
            behaviour = own["behaviour"]
            logp = Logprobs(
                current=current,
                behaviour=current.detach() if behaviour is None else behaviour,
                engine=own["engine"],
                reference=own["reference"],
                entropy=entropy,
            )
            loss = policy_loss(logp, part, self.config.loss)
            loss.total.backward()
            sums.add(loss, logp, part)

    def _clipped(self) -> float:
        """Clips the gradient by its norm, and returns what that was."""
        norm = torch.nn.utils.clip_grad_norm_(
            trained_parameters(self.model).values(),
            self.config.optimizer.max_gradient_norm,
        )
        return float(whole(norm))

    def _pass(self, model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        learner = self.config.learner
        is_low = learner.precision == "bfloat16"
        with torch.autocast(batch.ids_RL.device.type, torch.bfloat16, enabled=is_low):
            return logprobs_of(model)(
                batch.ids_RL,
                batch.mask_RL,
                batch.trained_RL,
                temperature=self.config.rollout.temperature,
                chunk_tokens=learner.chunk_tokens,
                entropy_gradient=self.config.loss.entropy_coefficient > 0,
            )

    @torch.no_grad()
    def _frozen_pass(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Log-probabilities (R, L) of a batch, a micro-batch at a time, without a gradient."""
        found = torch.zeros(batch.ids_RL.shape, device=batch.ids_RL.device)
        size = self.config.loss.micro_rows
        for begin in range(0, len(batch.ids_RL), size):
            part = batch.rows(begin, begin + size)
            logp, _ = self._pass(model, part)
            found[begin : begin + size, : part.ids_RL.shape[1]] = logp
        return found

    def pass_over(self, which: str, batch: Batch) -> torch.Tensor:
        """Log-probabilities (R, L) of a batch on this process, under `policy` or `reference`."""
        if which == "policy":
            return self._frozen_pass(self.model, batch)
        if self.reference is not None:
            return self._frozen_pass(self.reference, batch)
        with adapters_off(self.model):
            return self._frozen_pass(self.model, batch)

    def _logprobs(self, which: str, batch: Batch) -> torch.Tensor:
        """What `pass_over` returns, each process passing over a share of the rows."""
        rows, (part, _) = deal(self.processes, which, batch, {})
        found = Message(which, tensors={"logp": self.pass_over(which, part)})
        parts = [one.tensors["logp"] for one in self.processes.gathered(found)]
        return assembled(parts, rows, batch.advantage_RL)

    def turn_logprobs(self, credits: Sequence[Credit]) -> Ratios:
        """Log-probability of every turn by the weights of now, nats; NaN where not trained.

        One pass over the episodes with credit.
        """
        found = [[np.full(len(own), np.nan) for own in credit.values] for credit in credits]
        if not any(has_credit(credit) for credit in credits):
            return found
        batch = make_batch(credits).to(self.policy.model.device)
        with ready(self.model):
            logp_RL = self._logprobs("policy", batch)
        told = iter(turn_sums(logp_RL[batch.trained_RL].double(), batch).tolist())
        for credit, episodes in zip(credits, found, strict=True):
            for values, own in zip(credit.values, episodes, strict=True):
                own[np.isfinite(values)] = [next(told) for _ in range(np.isfinite(values).sum())]
        return found

    def ratios(self, credits: Sequence[Credit], before: Ratios) -> Ratios:
        """The likelihood ratio of every turn, now to before; NaN where not trained.

        Args:
            credits: The step's credit.
            before: What `turn_logprobs` returned before the step's updates.
        """
        return [
            [np.exp(own - was) for own, was in zip(now, then, strict=True)]
            for now, then in zip(self.turn_logprobs(credits), before, strict=True)
        ]


@contextlib.contextmanager
def ready(model: PreTrainedModel, *, checkpoints: bool = False) -> Iterator[None]:
    """The model without dropout, because the policy that sampled is the one that is updated.

    Args:
        model: Left in evaluation mode.
        checkpoints: Whether its layers keep their inputs only and are computed again in the
            backward pass. transformers does so in layers in training mode; what is inside them,
            dropout too, stays in evaluation mode.
    """
    model.eval()
    if checkpoints:
        model.activation_checkpointing_enable(
            activation_checkpointing_kwargs={"use_reentrant": False}
        )
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True
    try:
        yield
    finally:
        model.eval()


def new_sums(config: Config) -> UpdateSums:
    """The sums of a step before its first update."""
    return UpdateSums(has_reference=needs_reference(config.loss))


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
