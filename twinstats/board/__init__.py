"""Reading credit methods against a known or estimated truth, at equal tokens.

`curves` takes points (a method at a value of its knob, on a seed) to curves over tokens; `board`
and `differences` read them at budgets, `equal_error` and `split` at an error. How methods are
played is the business of whoever has a world.
"""

from twinstats.board.curves import FLAGS, IDENTITY, METRICS, Curve, curves, read
from twinstats.board.standings import REFERENCES, board, differences
from twinstats.board.tokens import ERRORS, FORMS, REFERENCE, equal_error, split

__all__ = [
    "ERRORS",
    "FLAGS",
    "FORMS",
    "IDENTITY",
    "METRICS",
    "REFERENCE",
    "REFERENCES",
    "Curve",
    "board",
    "curves",
    "differences",
    "equal_error",
    "read",
    "split",
]
