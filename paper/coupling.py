"""How accounts of training runs' twins are shown: statistics with intervals, names of slots.

Leaves out how the twins are read and accounted for (`twinstats.logged_pairs`).
"""

from collections.abc import Iterable, Mapping

from twinstats.episodes import SLOTS_PER_PART
from twinstats.variance import VarianceAccount


def measured(found: VarianceAccount, name: str) -> dict[str, float | None]:
    """A statistic of an account with the ends of its interval, null where undefined."""
    value = getattr(found, name)
    interval = found.intervals.get(name)
    low, high = (None, None) if value is None or interval is None else interval
    return {"value": value, "low": low, "high": high}


def has_parts(slots: Iterable[float]) -> bool:
    """Whether any of the slots lies in a later part than the first."""
    return any(slot >= SLOTS_PER_PART for slot in slots)


def slot_name(slot: int, is_in_parts: bool) -> str:
    """A slot as people read it: the turn, or part and turn within it."""
    return f"{slot // SLOTS_PER_PART}.{slot % SLOTS_PER_PART}" if is_in_parts else str(slot)


def gains(found: VarianceAccount) -> Mapping[str, dict[str, float | None]]:
    """The raw and the deduplicated coupling gain."""
    return {
        "raw": measured(found, "coupling_gain"),
        "deduplicated": measured(found, "coupling_gain_deduplicated"),
    }
