"""Puts the parts of a run together: policy, engine, rollout and credit method from a `Config`."""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer import credit_options, needs
from trainer.chat_template import ChatTemplate
from trainer.config import Config, CreditConfig, ModelConfig
from trainer.engines.choice import check_engine, make_engine
from trainer.engines.stops import stop_texts
from trainer.learning.optimizer import check_schedule
from trainer.needs.regressor import success_regressor
from trainer.noise import sources
from trainer.noise.sources import Sampler
from trainer.policy import Policy
from trainer.rollout import Rollout
from trainer.rollout.play import Limits
from trainer.tasks import Environment
from trainer.tasks import make as make_environment
from trainer.tasks import names as task_names
from trainer.tasks.choice import CHATS, check_task, options_of, reward_of
from trainer.tasks.reward import Rewarded
from twinstats.credit import METHODS, Budget, Method, make
from twinstats.errors import UsageError, unknown


def cache_folder() -> Path:
    """Where warmed-up policies are kept: `TWINSTATS_CACHE`, or `~/.cache/twinstats`."""
    folder = Path(os.environ.get("TWINSTATS_CACHE", Path.home() / ".cache" / "twinstats"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check(config: Config) -> None:
    """Refuses a run that cannot be trained, before anything is paid for it.

    Raises:
        UsageError: What `check_play` and `check_numbers` refuse.
    """
    check_play(config)
    check_numbers(config)


def check_numbers(config: Config) -> None:
    """Refuses what no machine and no data can train: a part of `check` that needs neither.

    Raises:
        UsageError: What `check_sizes`, `check_schedule` and `make_method` refuse.
    """
    check_sizes(config)
    check_schedule(config)
    make_method(config)


def check_play(config: Config) -> None:
    """Refuses a run whose episodes cannot be played.

    Raises:
        UsageError: An unknown task, or what `check_task`, `check_sizes` and `check_engine` refuse.
    """
    if config.task.name not in task_names():
        raise unknown("task", config.task.name, task_names())
    check_task(config)
    check_sizes(config)
    check_engine(config)


def check_sizes(config: Config) -> None:
    """Refuses a model that cannot be built, or that cannot play.

    Raises:
        UsageError: Heads that do not fit, or a context that has no room for a turn.
    """
    if not config.model.pretrained:
        _check_heads(config.model)
    turn, context = config.rollout.max_turn_tokens, config.model.max_length
    if turn >= context:
        raise UsageError(
            f"`rollout.max_turn_tokens` must be below `model.max_length`, which is {context}, "
            f"got {turn}."
        )


def _check_heads(model: ModelConfig) -> None:
    size = model.hidden // model.heads
    if size < 2 or size % 2:
        raise UsageError(
            "`model.hidden` / `model.heads`, rounded down, must be even and above 0, "
            f"got {model.hidden} / {model.heads}."
        )
    if model.heads % model.kv_heads:
        raise UsageError(
            f"`model.heads` must be a multiple of `model.kv_heads`, got {model.heads} and "
            f"{model.kv_heads}."
        )


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
        UsageError: The strings that end a turn of the task are no tokens of the policy, or the task
            chats and the tokenizer has no chat template.
    """
    plain = environment or _environments(policy, config)
    one, reward = plain(), reward_of(config)
    environment = plain if reward is None else lambda: Rewarded(plain(), reward)
    engine = make_engine(
        policy,
        config,
        stop=policy.tokens_with(one.stop),
        texts=stop_texts(policy, getattr(one, "stop_texts", ())),
        sampler=sampler,
    )
    setup = needs.Setup(policy=policy, environment=plain, config=config)
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


def _environments(policy: Policy, config: Config) -> Callable[[], Environment]:
    """What makes the environment of one episode of the configuration's task."""
    form = ChatTemplate(policy.tokenizer) if config.task.name in CHATS else None
    options = options_of(config, form)
    return lambda: make_environment(config.task.name, **options)


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
    needs.check(asked, config, lambda: make_environment(config.task.name, **options_of(config)))
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
