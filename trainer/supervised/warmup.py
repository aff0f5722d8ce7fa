"""Supervised warm-up: a model that can play the task, made on the spot and cached.

The cache is keyed by the configuration that made it, so nothing stale is ever used. A warm-up
that did not learn fails loudly: the copying that search needs appears as a phase change.
Leaves out how demonstrations are made (`tasks.demonstrations`) and the loop (`updates`).
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from trainer.config import Config
from trainer.policy import Policy, build_model, build_tokenizer
from trainer.policy.cache import cached
from trainer.supervised.updates import Progress, Tokens, end_to_end, fit
from trainer.tasks.demonstrations import Demonstration, demonstrations, text_of
from trainer.tasks.facts import SPECIAL_TOKENS
from trainer.tasks.questions import data_fingerprint
from twinstats.noise import generator

RECIPE_VERSION = 1  # raise it whenever this module or the demonstrations change what they make


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
    warmup = asdict(config.warmup)
    del warmup["minimum_exact_match"]  # only judges what was made
    parts |= {"model": model, "warmup": warmup}
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
    rows = end_to_end(_texts(policy, episodes, config, rng), warmup.row_tokens)
    fit(policy, rows, warmup, progress)
    return policy


def _texts(
    policy: Policy, episodes: list[Demonstration], config: Config, rng: np.random.Generator
) -> Iterator[Tokens]:
    """Episodes in random order: their ids, and what of them is learned.

    A share of the shown tokens stands for a smaller weight of all of them, at less cost: only
    learned positions reach the vocabulary layer.
    """
    for index in rng.permutation(len(episodes)):
        for segment in episodes[index].segments:
            tokens = policy.encode(segment.text)
            share = 1.0 if segment.is_sampled else config.warmup.observation_share
            yield Tokens(tokens, (rng.random(len(tokens)) < share).tolist())
