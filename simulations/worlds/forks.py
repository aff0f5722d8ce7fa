"""What worlds ask of forks: which they refuse, and which share a tail."""

from collections.abc import Hashable, Sequence

import numpy as np

from twinstats.episodes import Fork


def refuse_coupling(forks: Sequence[Fork]) -> None:
    """Refuses forks with another coupling than a world of one decision has.

    Raises:
        ValueError: A fork asks for another than "gumbel".
    """
    for fork in forks:
        if fork.coupling != "gumbel":
            raise ValueError(f"`coupling` must be 'gumbel' in this world, got {fork.coupling!r}.")


def players(
    forks: Sequence[Fork], decisions: Sequence[Hashable], skips: Sequence[bool] | np.ndarray
) -> list[int]:
    """For each fork the first of those that share its tail key and decision: it plays for all.

    Forks that `skips` says take their parent's tail play for nobody.
    """
    first: dict[Hashable, int] = {}
    found = []
    for place, (fork, decision, skip) in enumerate(zip(forks, decisions, skips, strict=True)):
        key = None if skip else fork.tail_key()
        found.append(place if key is None else first.setdefault((key, decision), place))
    return found
