"""Needs for which the task must tell its right answers (`trainer.tasks.answers`)."""

from trainer.config import Config
from trainer.tasks import Environment
from trainer.tasks.answers import Answers
from twinstats.errors import UsageError

ANSWERED = ("gold_logprob", "hindsight_logprob", "teacher_gap")
"""Their names."""


def answers_of(need: str, config: Config, environment: Environment) -> Answers:
    """The task's environment, which must tell its right answers.

    Raises:
        UsageError: It does not; method, need and task are named.
    """
    if not isinstance(environment, Answers):
        raise UsageError(
            f"Method {config.credit.method!r} needs {need!r}, which is not to be had of task "
            f"{config.task.name!r}: it does not tell its right answers."
        )
    return environment
