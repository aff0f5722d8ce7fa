"""Puts the parts of a run together: policy, engine, rollout and credit method from a `Config`."""

import inspect
import os
from pathlib import Path

import torch

from trainer.config import Config
from trainer.engines.hf import HfEngine
from trainer.noise import sources
from trainer.noise.sources import Sampler
from trainer.play import Limits
from trainer.policy import Policy
from trainer.rollout import Rollout
from trainer.tasks import make as make_environment
from trainer.tasks import names as task_names
from twinstats.credit import METHODS, Budget, Method, make
from twinstats.errors import UsageError, unknown


def cache_folder() -> Path:
    """Where warmed-up policies are kept: `TWINSTATS_CACHE`, or `~/.cache/twinstats`."""
    folder = Path(os.environ.get("TWINSTATS_CACHE", Path.home() / ".cache" / "twinstats"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check(config: Config) -> None:
    """Refuses a run that cannot be played, before anything is paid for it.

    Raises:
        UsageError: An unknown task, or what `make_method` refuses.
    """
    if config.task.name not in task_names():
        raise unknown("task", config.task.name, task_names())
    make_method(config)


def make_rollout(policy: Policy, config: Config, *, sampler: Sampler = sources.sample) -> Rollout:
    """The rollout of a policy with the `hf` engine.

    Raises:
        UsageError: The strings that end a turn of the task are no tokens of the policy.
    """
    environment = make_environment(config.task.name)
    stop = policy.tokenizer.convert_tokens_to_ids(list(environment.stop))
    if None in stop:
        raise UsageError(f"The tokenizer must hold {', '.join(environment.stop)} as tokens.")
    engine = HfEngine(
        policy.model,
        stop=frozenset(stop),
        max_turn_tokens=config.rollout.max_turn_tokens,
        max_batch=config.rollout.max_batch,
        sampler=sampler,
    )
    return Rollout(
        policy,
        engine,
        lambda: make_environment(config.task.name),
        seed=config.seed,
        temperature=config.rollout.temperature,
        limits=Limits(
            max_context=config.model.max_length - config.rollout.max_turn_tokens,
            max_turns=environment.max_turns * config.task.parts,
        ),
    )


def make_method(config: Config) -> Method:
    """The credit method, with those of the configuration's options that it has.

    Raises:
        UsageError: An unknown method, one that compares rollouts with groups of one, or a budget
            that is none.
    """
    credit = config.credit
    if credit.method not in METHODS:
        raise unknown("credit method", credit.method, METHODS)
    budget = None
    if credit.budget is not None:
        try:
            budget = Budget(
                ratio=credit.budget, explore=credit.explore, null=credit.null, fresh=credit.fresh
            )
        except ValueError as error:
            raise UsageError(f"`credit.budget`: {error}") from error
    options = {"twins": credit.twins, "budget": budget, "rollouts": credit.rollouts}
    known = inspect.signature(METHODS[credit.method].function).parameters
    method = make(credit.method, **{k: v for k, v in options.items() if k in known})
    uses_baseline = method.compares_members or ("budget" in known and budget is not None)
    if uses_baseline and config.rollout.group_size < 2:
        raise UsageError(
            f"Method {credit.method!r} compares the rollouts of a task: "
            f"`rollout.group_size` must be at least 2, got {config.rollout.group_size}."
        )
    return method


def make_optimizer(policy: Policy, config: Config) -> torch.optim.AdamW:
    """AdamW over all parameters."""
    return torch.optim.AdamW(
        policy.model.parameters(),
        lr=config.optimizer.learning_rate,
        weight_decay=config.optimizer.weight_decay,
    )
