"""Tails that forks share: one of them plays, the others take over its turns and its outcome.

Forks that share all noise after their decision, and decided the same, go on alike
(`Fork.tail_key`). The first to get there plays. In the end the tail is paid by the first of them in
the order asked, whichever played, so that costs do not depend on how sessions were batched.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

from trainer.rollout.play import Play
from twinstats.episodes import Fork


def tail_keys(forks: Sequence[Fork], *, exact_replay: bool) -> list[Hashable]:
    """What decides each fork's tail besides its decision; null where it is its own.

    A fork that is asked for twice is played twice: its copies never share with each other.
    """
    asked: Counter[Hashable] = Counter()
    found: list[Hashable] = []
    for fork in forks:
        shared = fork.tail_key(exact_replay=exact_replay)
        found.append(None if shared is None else (shared, asked[fork.key]))
        asked[fork.key] += 1
    return found


def settle(plays: Sequence[Play]) -> None:
    """Gives followers what their leaders played, and each tail's cost to the first who had it."""
    payers: dict[Play, Play] = {}
    for play in plays:
        payers.setdefault(play.leader, play)
    for play in plays:
        play.settle(pays=payers[play.leader] is play)
