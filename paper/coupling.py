"""How accounts of training runs' twins are shown: statistics with intervals, names of slots.

Leaves out how the twins are read and accounted for (`twinstats.logged_pairs`).
"""

from collections.abc import Mapping

from twinstats.results import Result
from twinstats.variance import VarianceAccount

PART_SIZE = 64
"""A slot is part * 64 + turn within the part where a task has several parts."""


def measured(found: Result, name: str) -> dict[str, float | None]:
    """A statistic of an account with the ends of its interval, null where undefined."""
    value = getattr(found, name)
    interval = getattr(found, "intervals", {}).get(name)
    low, high = (None, None) if value is None or interval is None else interval
    return {"value": value, "low": low, "high": high}


def slot_name(slot: int, is_in_parts: bool) -> str:
    """A slot as people read it: the turn, or part and turn within it."""
    return f"{slot // PART_SIZE}.{slot % PART_SIZE}" if is_in_parts else str(slot)


def gains(found: VarianceAccount) -> Mapping[str, dict[str, float | None]]:
    """The raw and the deduplicated coupling gain."""
    return {
        "raw": measured(found, "coupling_gain"),
        "deduplicated": measured(found, "coupling_gain_deduplicated"),
    }
