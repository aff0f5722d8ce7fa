"""Which credit methods an oracle study sets beside the reference, and at which knobs.

All of them branch, and none needs more than episodes. Leaves out how they are played and read
(`oracle`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from twinstats.credit import METHODS, Method, make

KNOBS = (1, 2, 4, 9, 18)
"""Values of a knob, as the simulations' leaderboard has them; 9 is VinePPO's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A method of the study.

    Attributes:
        method: Its name in the registry.
        options: Its options besides the knob.
        swept: The option that is the knob; null: that of the registry.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    swept: str | None = None

    @property
    def claims_unbiased(self) -> bool:
        """Whether it claims to be unbiased for the advantage of every turn."""
        return METHODS[self.method].unbiased

    def build(self, knob: int) -> Method:
        """The method at a value of its knob."""
        name = self.swept or METHODS[self.method].knob
        return make(self.method, **self.options, **{str(name): knob})


ENTRANTS: Mapping[str, Entrant] = MappingProxyType(
    {
        "twice": Entrant(method="twice"),
        "twice_maximal": Entrant(method="twice", options={"coupling": "maximal"}),
        "twice_two_sided": Entrant(method="twice", options={"two_sided": True}),
        "twice_draws": Entrant(method="twice", swept="draws"),
        "twice_two_draws": Entrant(method="twice", options={"draws": 2}),
        "independent": Entrant(method="independent"),
        "independent_raw": Entrant(method="independent", options={"dedup": False}),
        "vine": Entrant(method="vine"),
        "vine_coupled": Entrant(method="vine_coupled"),
        "tree_grpo": Entrant(method="tree_grpo"),
        "at2po": Entrant(method="at2po"),
        "treerl": Entrant(method="treerl"),
    }
)
"""By the names that the leaderboard has for them; `twice_two_draws`, two further draws of luck for
each of several twins, is not on it."""


def knobs(largest: int) -> tuple[int, ...]:
    """The values of a knob up to a largest one, falling.

    Forks at a small value are among those at a large one, so the largest is played first.
    """
    return tuple(knob for knob in reversed(KNOBS) if knob <= largest)
