"""Worlds for an oracle study: one that plays everything once, and views of it by outcome.

Methods ask for many of the same forks, and every outcome of an episode is known once it is played.
Leaves out where the outcomes come from: `Step.info` of the turn that ends a part.
"""

import dataclasses
from collections.abc import Hashable, Sequence

from twinstats.episodes import Episode, Fork, Task, Turn, World

REWARD = "reward"
"""The outcome of a task that tells no others: what it pays."""


class Recorded:
    """A world that plays each fork once, and hands the same episode to whoever asks again.

    It holds all of them as long as it lives.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._played: dict[Hashable, Episode] = {}

    def fork(self, forks: Sequence[Fork]) -> list[Episode]:
        """The forked episodes, of which those not known yet are played in one call."""
        keys = [(*fork.key, fork.coupling, fork.takes_equal_tail()) for fork in forks]
        new = {key: fork for key, fork in zip(keys, forks, strict=True) if key not in self._played}
        if new:
            played = self._world.fork(list(new.values()))
            self._played |= dict(zip(new, played, strict=True))
        return [self._played[key] for key in keys]

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Fills `episode.info[need]`, as the world does."""
        self._world.provide(need, episodes)


class Rescored:
    """The same world where one outcome is the outcome.

    Its episodes are copies: a copy of a fork has the copy of its parent.

    Args:
        world: Plays, and remembers.
        name: The outcome: a number in `Step.info` of turns that end a part, or `REWARD`.
    """

    def __init__(self, world: Recorded, name: str) -> None:
        self._world, self._name = world, name
        self._originals: dict[Episode, Episode] = {}

    def view(self, episode: Episode, fork: Fork | None = None) -> Episode:
        """An episode with this outcome in place of what it was paid; `fork` asked for it."""
        turns = tuple(
            dataclasses.replace(turn, reward=_reward(turn, self._name, _num_parts(episode)))
            for turn in episode.turns
        )
        outcome = outcome_of(episode, self._name)
        copy = dataclasses.replace(episode, turns=turns, outcome=outcome, fork=fork)
        self._originals[copy] = episode
        return copy

    def fork(self, forks: Sequence[Fork]) -> list[Episode]:
        """The forked episodes with this outcome."""
        asked = [dataclasses.replace(fork, episode=self._originals[fork.episode]) for fork in forks]
        played = self._world.fork(asked)
        return [self.view(one, fork) for one, fork in zip(played, forks, strict=True)]

    def play(self, tasks: Sequence[Task], rollouts: int, step: int) -> list[Episode]:
        """Nothing new is played.

        Raises:
            ValueError: Always: make a `view` of what is there.
        """
        raise ValueError("A rescored world plays no new episodes: make a `view` of some.")

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Fills `episode.info[need]`, which a copy shares with its original."""
        self._world.provide(need, [self._originals[episode] for episode in episodes])


def outcome_of(episode: Episode, name: str) -> float | None:
    """The outcome of that name: the mean over parts, 0 for those not come to; null if it failed."""
    if episode.outcome is None:
        return None
    if name == REWARD:
        return episode.outcome
    parts = _num_parts(episode)
    return sum(_reward(turn, name, parts) for turn in episode.turns)


def _reward(turn: Turn, name: str, parts: int) -> float:
    return turn.reward if name == REWARD else float(turn.info["step"].get(name, 0.0)) / parts


def _num_parts(episode: Episode) -> int:
    return int(episode.task.info.get("parts", 1))
