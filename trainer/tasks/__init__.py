"""Tasks an agent can be trained on, by name. Torch-free: text in, text out.

What an environment is stands in `trainer.tasks.environment`; a new task is one module and one line
here; what it is given of a configuration, and its rows, are in `trainer.tasks.choice`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer.tasks.chat import Chat
from trainer.tasks.environment import Environment, Row, Step, ToolError
from trainer.tasks.facts import Facts
from trainer.tasks.free_text import FreeText
from trainer.tasks.search_qa import SearchQa
from twinstats.errors import unknown

Kind = type[Facts] | type[FreeText] | type[SearchQa] | type[Chat]

ENVIRONMENTS: Mapping[str, Kind] = MappingProxyType(
    {"facts": Facts, "text": FreeText, "search_qa": SearchQa, "chat": Chat}
)


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
