"""The dotted names of a configuration's fields."""

import dataclasses
from typing import Any


def paths(tree: Any, prefix: str = "") -> list[str]:
    """The dotted paths of all leaves of a configuration."""
    found = []
    for item in dataclasses.fields(tree):
        value = getattr(tree, item.name)
        name = f"{prefix}{item.name}"
        found += paths(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return found
