"""Supervised learning of given tokens: rows of equal length, a loss, one loop.

Warm-ups and `twice sft` both use it. Leaves out where tokens come from (`warmup`, `sft`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from trainer.config import LearnerConfig, WarmupConfig
from trainer.learning.learner import ready
from trainer.learning.optimizer import trained_parameters
from trainer.policy import Policy, token_logits

Progress = Callable[[int, int, float], None]
"""Gets (step, steps, loss in nats) after each update."""

IN_BFLOAT16 = LearnerConfig(precision="bfloat16")
"""How warm-ups are computed."""

# R rows, L positions


class Tokens(NamedTuple):
    """Token ids of one text, and which of them are learned."""

    ids: Sequence[int]
    learned: Sequence[bool]


class Rows(NamedTuple):
    """Texts in rows of equal length.

    Attributes:
        ids_RL: Token ids.
        learned_RL: True at the tokens that are learned.
        positions_RL: Of each token in its text; null: texts are not kept apart.
    """

    ids_RL: torch.Tensor
    learned_RL: torch.Tensor
    positions_RL: torch.Tensor | None = None


def end_to_end(texts: Iterable[Tokens], width: int) -> Rows:
    """Texts laid end to end and cut into rows; what does not fill the last row is left out.

    A token sees whatever stands before it in its row, another text too.

    Raises:
        ValueError: The texts do not fill one row.
    """
    ids: list[int] = []
    learned: list[bool] = []
    for text in texts:
        ids += text.ids
        learned += text.learned
    count = len(ids) // width
    if not count:
        raise ValueError(f"The texts must fill a row of {width} tokens, got {len(ids)}.")
    shape = (count, width)
    return Rows(
        torch.tensor(ids[: count * width]).reshape(shape),
        torch.tensor(learned[: count * width]).reshape(shape),
    )


def packed(texts: Iterable[Tokens], width: int) -> Rows:
    """Whole texts in rows of `width`, each where there is room first; a token sees its own text.

    A text's first token is never learned: nothing tells it. What is left of a row is filled with
    tokens that nobody learns. Texts keep apart because their positions start at 0: transformers
    then masks what is before.

    Raises:
        ValueError: A text longer than a row.
    """
    rows: list[list[Tokens]] = []
    room: list[int] = []
    for text in texts:
        size = len(text.ids)
        if size > width:
            raise ValueError(f"A text must have at most {width} tokens, got {size}.")
        place = next((row for row, left in enumerate(room) if left >= size), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(width)
        rows[place].append(Tokens(text.ids, [False, *text.learned[1:]]))
        room[place] -= size
    filled = [
        [*row, Tokens([0] * left, [False] * left)] for row, left in zip(rows, room, strict=True)
    ]
    return Rows(
        torch.tensor([[token for text in row for token in text.ids] for row in filled]),
        torch.tensor([[is_ for text in row for is_ in text.learned] for row in filled]),
        torch.tensor([[k for text in row for k in range(len(text.ids))] for row in filled]),
    )


def fit(
    policy: Policy,
    rows: Rows,
    config: WarmupConfig,
    progress: Progress | None = None,
    *,
    learner: LearnerConfig = IN_BFLOAT16,
    micro_rows: int | None = None,
) -> None:
    """Trains a policy on rows, in their order and over again, `config.rows` an update.

    AdamW over all weights, or with LoRA those of the adapters; the rate goes linearly up, stays,
    and goes linearly down to 0 (`rate`).

    Args:
        policy: It is changed.
        rows: What is learned.
        config: Steps, rows of an update, rate and its schedule.
        progress: Gets (step, steps, loss).
        learner: The precision of matrix products, and whether layers are computed again.
        micro_rows: Rows of an update whose gradient is computed at a time; null: all.
    """
    weights = list(trained_parameters(policy.model).values())
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, config))
    with ready(policy.model, checkpoints=learner.gradient_checkpointing):
        for step in range(config.steps):
            index = torch.arange(step * config.rows, (step + 1) * config.rows) % len(rows.ids_RL)
            optimizer.zero_grad()
            loss = _gradient(
                policy, _some(rows, index), learner, micro_rows=micro_rows or config.rows
            )
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            if progress is not None:
                progress(step + 1, config.steps, loss)


def _gradient(policy: Policy, rows: Rows, learner: LearnerConfig, *, micro_rows: int) -> float:
    """Adds the gradient of the mean loss over all learned tokens of some rows; returns the loss.

    Without such a token there is no gradient, and the loss is NaN.
    """
    count = int(rows.learned_RL[:, 1:].sum())
    total = 0.0 if count else math.nan
    for begin in range(0, len(rows.ids_RL), micro_rows):
        part = _some(rows, torch.arange(begin, min(begin + micro_rows, len(rows.ids_RL))))
        if own := int(part.learned_RL[:, 1:].sum()):
            loss = supervised_loss(policy, part, precision=learner.precision) * (own / count)
            loss.backward()
            total += float(loss.detach())
    return total


def supervised_loss(policy: Policy, rows: Rows, *, precision: str = "bfloat16") -> torch.Tensor:
    """Mean cross-entropy of the learned tokens given those before them, nats."""
    device, positions_RL = policy.model.device, rows.positions_RL
    ids_RL, learned_RL = rows.ids_RL.to(device), rows.learned_RL.to(device)
    if positions_RL is not None:
        positions_RL = positions_RL.to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits_NV = token_logits(policy.model, ids_RL, None, learned_RL, positions_RL=positions_RL)
    return torch.nn.functional.cross_entropy(logits_NV, ids_RL[:, 1:][learned_RL[:, 1:]])


def _some(rows: Rows, index: torch.Tensor) -> Rows:
    placed = None if rows.positions_RL is None else rows.positions_RL[index]
    return Rows(rows.ids_RL[index], rows.learned_RL[index], placed)


def rate(step: int, config: WarmupConfig) -> float:
    """The share of the learning rate that the update after `step` others has."""
    up = (step + 1) / config.warmup_steps
    down = (config.steps - step) / (config.decay_share * max(1, config.steps))
    return min(1.0, up, down)
