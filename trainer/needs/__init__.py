"""What credit methods need besides episodes, by name: `Rollout.provide` asks here.

A provider fills `episode.info[name]` with the shape that the need has (`twinstats.episodes`); some
learn from every step. Leaves out which method needs what (`twinstats.credit`).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from trainer.config import Config
from trainer.needs.answered import ANSWERED, answers_of
from trainer.needs.critic import Critic
from trainer.needs.entropy import first_entropy
from trainer.needs.features import Features
from trainer.needs.gold import gold_logprob
from trainer.needs.hindsight import hindsight_logprob, teacher_gap
from trainer.needs.judge import judge_server, segments
from trainer.needs.provider import Computed, Provider, Setup
from trainer.needs.task import TOLD, refuse_untold, task_need, tellers
from trainer.tasks import Environment
from twinstats.errors import UsageError, unknown

PROVIDERS: Mapping[str, Callable[[Setup], Provider]] = MappingProxyType(
    {
        "value": Critic,
        "teacher_gap": teacher_gap,
        "gold_logprob": gold_logprob,
        "hindsight_logprob": hindsight_logprob,
        "first_entropy": first_entropy,
        "segments": segments,
        **{need: partial(task_need, need) for need in TOLD},
        "features": Features,
    }
)
"""What makes the provider of each need."""


def make(need: str, setup: Setup) -> Provider:
    """The provider of a need.

    Raises:
        UsageError: Nobody provides it; those that somebody does are named.
    """
    if need not in PROVIDERS:
        raise unknown("need", need, PROVIDERS)
    return PROVIDERS[need](setup)


def check(needs: Iterable[str], config: Config, environment: Callable[[], Environment]) -> None:
    """Refuses, before anything is paid for, needs that a run cannot fill.

    Raises:
        UsageError: Nobody provides one, the task does not tell it or its right answers, or a
            judge's server cannot be asked.
    """
    for need in needs:
        if need not in PROVIDERS:
            raise UsageError(
                f"Method {config.credit.method!r} needs {need!r}, which nobody provides. "
                f"Known: {', '.join(sorted(PROVIDERS))}."
            )
        if need in TOLD:
            told, task = tellers(environment()), config.task.name
            refuse_untold(need, told, method=config.credit.method, task=task)
        if need in ANSWERED:
            answers_of(need, config, environment())
        if need == "segments":
            judge_server(config.needs)


__all__ = ["PROVIDERS", "Computed", "Provider", "Setup", "check", "make"]
