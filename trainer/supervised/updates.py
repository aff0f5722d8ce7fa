"""Supervised learning of given tokens: rows of equal length, a loss, one loop.

Warm-ups and `twice sft` both use it. Leaves out where tokens come from (`warmup`, `sft`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from trainer.config import WarmupConfig
from trainer.policy import Policy

Progress = Callable[[int, int, float], None]
"""Gets (step, steps, loss in nats) after each update."""

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


def fit(policy: Policy, rows: Rows, config: WarmupConfig, progress: Progress | None = None) -> None:
    """Trains all weights on rows, in their order and over again, `config.rows` an update.

    AdamW; the rate goes linearly up, stays, and goes linearly down to 0 (`rate`).

    Args:
        policy: It is changed.
        rows: What is learned.
        config: Steps, rows of an update, rate and its schedule.
        progress: Gets (step, steps, loss).
    """
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=config.learning_rate, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, config))
    policy.model.train()
    for step in range(config.steps):
        index = torch.arange(step * config.rows, (step + 1) * config.rows) % len(rows.ids_RL)
        loss = supervised_loss(policy, _some(rows, index))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, config.steps, float(loss.detach()))
    policy.model.eval()


def supervised_loss(policy: Policy, rows: Rows) -> torch.Tensor:
    """Mean cross-entropy of the learned tokens given those before them, nats."""
    device = policy.model.device
    ids_RL = rows.ids_RL.to(device)
    wanted_RL = rows.learned_RL[:, 1:].to(device)
    placed = {}  # without positions nothing is said of a cache either: warm-ups stay as they were
    if rows.positions_RL is not None:
        placed = {"position_ids": rows.positions_RL.to(device), "use_cache": False}
    with torch.autocast(device.type, dtype=torch.bfloat16):
        hidden_RLH = policy.model.base_model(input_ids=ids_RL, **placed).last_hidden_state
        logits_NV = policy.model.get_output_embeddings()(hidden_RLH[:, :-1][wanted_RL])
    return torch.nn.functional.cross_entropy(logits_NV.float(), ids_RL[:, 1:][wanted_RL])


def _some(rows: Rows, index: torch.Tensor) -> Rows:
    placed = None if rows.positions_RL is None else rows.positions_RL[index]
    return Rows(rows.ids_RL[index], rows.learned_RL[index], placed)


def rate(step: int, config: WarmupConfig) -> float:
    """The share of the learning rate that the update after `step` others has."""
    up = (step + 1) / config.warmup_steps
    down = (config.steps - step) / (config.decay_share * max(1, config.steps))
    return min(1.0, up, down)
