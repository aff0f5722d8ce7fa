"""Tasks an agent can be trained on, by name. Torch-free: text in, text out.

What an environment is stands in `trainer.tasks.environment`; a new task is one module and one line
here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer.tasks.environment import Environment, Row, Step, ToolError
from trainer.tasks.facts import Facts
from trainer.tasks.free_text import FreeText
from twinstats.errors import unknown

ENVIRONMENTS: Mapping[str, type[Environment]] = MappingProxyType({"facts": Facts, "text": FreeText})


def names() -> tuple[str, ...]:
    """Names of all tasks, in order of the registry."""
    return tuple(ENVIRONMENTS)


def make(name: str, **options: Any) -> Environment:
    """A new environment of the task `name`, for one episode at a time.

    Raises:
        UsageError: No task has this name; the nearest one is named.
    """
    if name not in ENVIRONMENTS:
        raise unknown("task", name, ENVIRONMENTS)
    return ENVIRONMENTS[name](**options)


__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "Row",
    "Step",
    "ToolError",
    "make",
    "names",
]
