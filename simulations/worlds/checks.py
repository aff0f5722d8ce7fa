"""What both worlds refuse."""

from collections.abc import Sequence

from twinstats.episodes import Fork


def refuse_coupling(forks: Sequence[Fork]) -> None:
    """Refuses forks with another coupling than these worlds have.

    Raises:
        ValueError: A fork asks for another than "gumbel".
    """
    for fork in forks:
        if fork.coupling != "gumbel":
            raise ValueError(f"`coupling` must be 'gumbel' in this world, got {fork.coupling!r}.")
