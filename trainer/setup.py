"""Puts the parts of a run together: policy, engine, rollout and credit method from a `Config`."""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainer import credit_options, needs
from trainer.config import Config, CreditConfig
from trainer.engines.choice import check_engine, make_engine
from trainer.needs.regressor import success_regressor
from trainer.noise import sources
from trainer.noise.sources import Sampler
from trainer.policy import Policy
from trainer.rollout import Rollout
from trainer.rollout.play import Limits
from trainer.tasks import Environment
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
        UsageError: An unknown task, or what `check_engine` and `make_method` refuse.
    """
    if config.task.name not in task_names():
        raise unknown("task", config.task.name, task_names())
    check_engine(config)
    make_method(config)


def make_rollout(
    policy: Policy,
    config: Config,
    *,
    sampler: Sampler = sources.sample,
    environment: Callable[[], Environment] | None = None,
    retokenise: bool = False,
    shares_tools: bool = True,
) -> Rollout:
    """The rollout of a policy with the engine that the configuration names.

    Args:
        policy: Model and tokenizer.
        config: The run's.
        sampler: What draws the tokens in `hf`.
        environment: Makes the environment of one episode; null: that of the configuration's task.
        retokenise: As in `Rollout`.
        shares_tools: As in `Rollout`.

    Raises:
        UsageError: The strings that end a turn of the task are no tokens of the policy.
    """
    environment = environment or (lambda: make_environment(config.task.name))
    one = environment()
    stop = policy.tokens_with(one.stop)
    engine = make_engine(policy, config, stop=stop, sampler=sampler)
    setup = needs.Setup(policy=policy, environment=environment, config=config)
    return Rollout(
        policy,
        engine,
        environment,
        seed=config.seed,
        temperature=config.rollout.temperature,
        limits=Limits(
            max_context=config.model.max_length - config.rollout.max_turn_tokens,
            max_turns=one.max_turns * config.task.parts,
            tool_seconds=config.rollout.tool_seconds,
        ),
        needs=functools.partial(needs.make, setup=setup),
        retokenise=retokenise,
        shares_tools=shares_tools,
    )


def make_method(config: Config) -> Method:
    """The credit method, with those of the configuration's options that it has.

    Raises:
        UsageError: An unknown method, options that it lacks or refuses, one that compares rollouts
            with groups of one, a budget that is none, or a need that nobody can fill.
    """
    credit = config.credit
    if credit.method not in METHODS:
        raise unknown("credit method", credit.method, METHODS)
    options = _options(config)
    method = make(credit.method, **options)
    uses_baseline = method.compares_members or options.get("budget") is not None
    if uses_baseline and config.rollout.group_size < 2:
        raise UsageError(
            f"Method {credit.method!r} compares the rollouts of a task: "
            f"`rollout.group_size` must be at least 2, got {config.rollout.group_size}."
        )
    asked = [need.name for need in method.needs]
    needs.check(asked, config, lambda: make_environment(config.task.name))
    return method


def _options(config: Config) -> dict[str, Any]:
    """The options that the method has, from fields and texts, tried before anything is played."""
    credit = config.credit
    fields = {"twins": credit.twins, "budget": _budget(credit), "rollouts": credit.rollouts}
    known = inspect.signature(METHODS[credit.method].function).parameters
    options: dict[str, Any] = {name: value for name, value in fields.items() if name in known}
    options |= credit_options.read(credit.method, credit.options)
    credit_options.try_out(credit.method, options)
    if "regressor" in known:
        options["regressor"] = success_regressor(config.needs.regressor)
    return options


def _budget(credit: CreditConfig) -> Budget | None:
    if credit.budget is None:
        return None
    try:
        return Budget(
            ratio=credit.budget, explore=credit.explore, null=credit.null, fresh=credit.fresh
        )
    except ValueError as error:
        raise UsageError(f"`credit.budget`: {error}") from error


def make_optimizer(policy: Policy, config: Config) -> torch.optim.AdamW:
    """AdamW over all parameters."""
    return torch.optim.AdamW(
        policy.model.parameters(),
        lr=config.optimizer.learning_rate,
        weight_decay=config.optimizer.weight_decay,
    )
