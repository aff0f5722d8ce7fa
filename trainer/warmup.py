"""Supervised warm-up: a model that can play the task, made on the spot and cached.

The cache is keyed by the configuration that made it, so nothing stale is ever used. A warm-up
that did not learn fails loudly: the copying that search needs appears as a phase change.
Leaves out how demonstrations are made (`tasks.demonstrations`).
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from trainer.config import Config
from trainer.policy import Policy, build_model, build_tokenizer
from trainer.policy.cache import cached
from trainer.tasks.demonstrations import Demonstration, demonstrations, text_of
from trainer.tasks.facts import SPECIAL_TOKENS
from trainer.tasks.questions import data_fingerprint
from twinstats.noise import generator

RECIPE_VERSION = 1  # raise it whenever this module or the demonstrations change what they make

Progress = Callable[[int, int, float], None]


def warm_policy(config: Config, cache: Path, progress: Progress | None = None) -> Policy:
    """The warmed-up policy of a configuration, from the cache or made now.

    Args:
        config: Its `model`, `task` and `warmup` decide.
        cache: Folder that keeps warmed-up policies.
        progress: Gets (step, steps, loss) while a new one is made.
    """
    return cached(cache / f"warmup-{fingerprint(config)}", lambda: _made(config, progress))


def fingerprint(config: Config) -> str:
    """A digest of all that a warmed-up policy depends on."""
    parts = {"version": RECIPE_VERSION, "task": config.task.name, "data": data_fingerprint()}
    model = asdict(config.model)
    del model["pretrained"]  # such a model is not warmed up
    parts |= {"model": model, "warmup": asdict(config.warmup)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _made(config: Config, progress: Progress | None) -> Policy:
    warmup = config.warmup
    rng = generator(warmup.seed, "warmup/demonstrations")
    num_four = round(warmup.episodes * warmup.four_part_share)
    episodes = demonstrations(num_four, num_parts=4, rng=rng)
    episodes += demonstrations(warmup.episodes - num_four, num_parts=1, rng=rng)
    tokenizer = build_tokenizer(
        (text_of(episode.segments) for episode in episodes),
        vocabulary=config.model.vocabulary,
        special=SPECIAL_TOKENS,
    )
    policy = Policy(build_model(config.model, seed=warmup.seed), tokenizer)
    rows = _packed(policy, episodes, config, rng)
    _fit(policy, rows, config, progress)
    return policy


def _packed(
    policy: Policy, episodes: list[Demonstration], config: Config, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Episodes in random order, laid end to end in rows of equal length: ids and what is learned.

    A share of the shown tokens stands for a smaller weight of all of them, at less cost: only
    learned positions reach the vocabulary layer.
    """
    ids: list[int] = []
    learned: list[bool] = []
    for index in rng.permutation(len(episodes)):
        for segment in episodes[index].segments:
            tokens = policy.encode(segment.text)
            ids += tokens
            share = 1.0 if segment.is_sampled else config.warmup.observation_share
            learned += (rng.random(len(tokens)) < share).tolist()
    width = config.warmup.row_tokens
    count = len(ids) // width
    shape = (count, width)
    return (
        torch.tensor(ids[: count * width]).reshape(shape),
        torch.tensor(learned[: count * width]).reshape(shape),
    )


def _fit(
    policy: Policy,
    rows: tuple[torch.Tensor, torch.Tensor],
    config: Config,
    progress: Progress | None,
) -> None:
    warmup = config.warmup
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=warmup.learning_rate, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, config))
    ids, learned = rows
    policy.model.train()
    for step in range(warmup.steps):
        index = torch.arange(step * warmup.rows, (step + 1) * warmup.rows) % len(ids)
        loss = _loss(policy, ids[index], learned[index])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, warmup.steps, float(loss.detach()))
    policy.model.eval()


def _loss(policy: Policy, ids: torch.Tensor, learned: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the learned tokens given those before them, nats."""
    wanted = learned[:, 1:]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = policy.model.base_model(input_ids=ids).last_hidden_state[:, :-1][wanted]
        logits = policy.model.get_output_embeddings()(hidden)
    return torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][wanted])


def _rate(step: int, config: Config) -> float:
    """Linear up, flat, linear down to 0."""
    warmup = config.warmup
    up = (step + 1) / warmup.warmup_steps
    down = (warmup.steps - step) / (warmup.decay_share * warmup.steps)
    return min(1.0, up, down)
