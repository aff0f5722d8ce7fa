"""What worlds ask of forks: which are drawn, which are coupled maximally, which share a tail."""

from collections.abc import Hashable, Sequence

from twinstats.episodes import DIFFERENT, RESAMPLE, SHARED, Fork


def refuse_coupling(forks: Sequence[Fork]) -> None:
    """Refuses forks with another coupling than a world of one decision has.

    Raises:
        ValueError: A fork asks for another than "gumbel".
    """
    for fork in forks:
        if fork.coupling != "gumbel":
            raise ValueError(f"`coupling` must be 'gumbel' in this world, got {fork.coupling!r}.")


def check_coupling(forks: Sequence[Fork]) -> None:
    """Refuses Gumbel forks that share the luck of an episode drawn by the maximal coupling.

    The Gumbel noise of such a luck did not draw it.

    Raises:
        ValueError: There is such a fork.
    """
    for fork in forks:
        own = fork.episode.fork
        shares = fork.luck is SHARED and not is_maximal(fork)
        if shares and own is not None and is_maximal(own):
            raise ValueError(
                "`coupling` must be 'maximal' for a fork that shares the luck of a maximal twin, "
                f"got {fork.coupling!r} for {fork.path!r}."
            )


def is_maximal(fork: Fork) -> bool:
    """Whether the fork's tail keeps the parent's tokens as often as can be."""
    return fork.coupling == "maximal" and fork.luck is SHARED


def is_sampled(fork: Fork) -> bool:
    """Whether the fork's decision is drawn, and so costs its tokens."""
    return fork.action in (RESAMPLE, DIFFERENT)


def players(forks: Sequence[Fork], decisions: Sequence[Hashable]) -> list[int]:
    """For each fork the first of those that share its tail key and decision: it plays for all."""
    first: dict[Hashable, int] = {}
    found = []
    for place, (fork, decision) in enumerate(zip(forks, decisions, strict=True)):
        key = fork.tail_key()
        found.append(place if key is None else first.setdefault((key, decision), place))
    return found
