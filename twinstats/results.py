"""What every result of this library can do: strict JSON, and rules shared by all of them.

Leaves out the statistics themselves: one module each.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def json_value(value: Any) -> Any:
    """`value` as strict JSON types: no NaN, no infinity, no NumPy.

    Non-finite numbers become null; a caller that produces one says why in its `warnings`.
    Tuples, sets and arrays become lists, and keys of mappings become text.

    Raises:
        TypeError: A type that has no JSON form.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (np.generic, np.ndarray)):
        return json_value(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [json_value(item) for item in items]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return public_fields(value)
    raise TypeError(f"`{type(value).__name__}` has no JSON form.")


def public_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass instance whose names do not begin with `_`, as strict JSON."""
    fields = (field.name for field in dataclasses.fields(value))
    return {name: json_value(getattr(value, name)) for name in fields if not name.startswith("_")}


class Result:
    """Gives a frozen dataclass `to_dict()`. Private fields (the data behind it) stay out of it."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The public fields as strict JSON: undefined values are null."""
        return public_fields(self)


def show(value: float | int | None, digits: int = 4) -> str:
    """A number as people read it; `undefined` for null and NaN."""
    if value is None or math.isnan(value):
        return "undefined"
    if isinstance(value, int):
        return str(value)
    return f"{value:.{digits}g}"


def show_interval(interval: tuple[float, float] | None, digits: int = 4) -> str:
    """An interval as people read it; `[undefined]` for null."""
    if interval is None:
        return "[undefined]"
    return f"[{show(interval[0], digits)}, {show(interval[1], digits)}]"
