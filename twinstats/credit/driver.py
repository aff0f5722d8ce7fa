"""Runs a credit method on many groups in lockstep: one call to `World.fork` serves them all."""

import dataclasses
import math
from collections.abc import Generator, Iterable, Sequence
from numbers import Real
from typing import Any

from twinstats.credit.inputs import lacking
from twinstats.credit.registry import Method, Need
from twinstats.episodes import Credit, Episode, Fork, Group, Luck, World


def assign(world: World, groups: Sequence[Group], method: Method) -> list[Credit]:
    """The credit of each group, in order; the forks played are under `info["forks"]`.

    The world first provides what the method needs, for the episodes of all groups in one call.
    Alternatives left null are numbered in the order asked; a numbered draw has none but 0.

    Raises:
        ValueError: All groups have size 1 and the method compares members of a group; a group
            without episodes; an outcome, of a factual or a fork, that is neither a finite number
            nor null; a need that the world did not fill; a generator that asks for a fork twice; a
            world that answers with another number of episodes than it was asked for; a method that
            gives no `Credit` of its group's episodes.
    """
    _refuse_singletons(groups, method)
    for group in groups:
        if not group.episodes:
            raise ValueError(f"The group of task {group.task.id!r} has no episodes.")
        _refuse_unscorable(group.episodes)
    episodes = [episode for group in groups for episode in group.episodes]
    for need in method.needs:
        _provide(world, method, need, episodes)
    running = [_Running(method.name, group, method(group)) for group in groups]
    while any(one.waits for one in running):
        _round(world, method, [one for one in running if one.waits])
    return method.finish([one.credit() for one in running])


def _round(world: World, method: Method, waiting: "Sequence[_Running]") -> None:
    """Plays what all waiting groups ask for, in one call, and lets each go on."""
    asked = [fork for one in waiting for fork in one.asked]
    played = world.fork(asked) if asked else []
    if len(played) != len(asked):
        raise ValueError(f"The world was asked for {len(asked)} forks and played {len(played)}.")
    _refuse_unscorable(played)
    for need in method.needs:
        if need.forks and played:
            _provide(world, method, need, played)
    answers = iter(played)
    for one in waiting:
        one.go_on(answers)


def _refuse_singletons(groups: Sequence[Group], method: Method) -> None:
    if method.compares_members and groups and all(len(group.episodes) == 1 for group in groups):
        raise ValueError(
            f"Method {method.name!r} compares the members of a group, "
            f"but all groups have size 1 ({len(groups)} of them)."
        )


def _refuse_unscorable(episodes: Sequence[Episode]) -> None:
    """Refuses what would spread as NaN through a whole group's credit; a null outcome is none."""
    for episode in episodes:
        if episode.outcome is None:
            continue
        if not (isinstance(episode.outcome, Real) and math.isfinite(episode.outcome)):
            raise ValueError(
                f"The outcome of episode {episode.name} must be a finite number, or null where it "
                f"failed, got {episode.outcome!r}."
            )


def _provide(world: World, method: Method, need: Need, episodes: Sequence[Episode]) -> None:
    if not episodes:
        return
    world.provide(need.name, episodes)
    for episode in episodes:
        if need.name not in episode.info:
            raise lacking(method.name, need.name, episode)


class _Running:
    """One group's generator: what it asks for, and its credit in the end."""

    def __init__(
        self, method: str, group: Group, result: Credit | Generator[Any, Any, Credit]
    ) -> None:
        self._method, self._group = method, group
        self.asked: list[Fork] = []
        self.waits = False
        self._shape: Any = None
        self._seen: set[Any] = set()
        self._numbers: dict[tuple[int, int], int] = {}
        self._forks: list[Episode] = []
        self._credit: Credit | None = None
        self._generator: Generator[Any, Any, Credit] | None = None
        if isinstance(result, Generator):
            self._generator = result
            self._advance(None)
        else:
            self._credit = self._checked(result)

    def go_on(self, answers: Iterable[Episode]) -> None:
        """Hands over the episodes of what was asked, in its shape, and runs to the next wait."""
        played = [episode for _, episode in zip(self.asked, answers, strict=False)]
        self._forks += played
        self._advance(_filled(self._shape, iter(played)))

    def credit(self) -> Credit:
        """The finished credit, with every fork played."""
        assert self._credit is not None
        info = self._credit.info | {"forks": self._forks}
        return dataclasses.replace(self._credit, info=info)

    def _advance(self, answer: Any) -> None:
        assert self._generator is not None
        try:
            self._shape = self._generator.send(answer)
        except StopIteration as stop:
            self._credit, self.waits, self.asked = self._checked(stop.value), False, []
            return
        self.waits = True
        self.asked = [self._numbered(fork) for fork in _flat(self._shape)]

    def _checked(self, result: Any) -> Credit:
        if not isinstance(result, Credit):
            raise ValueError(
                f"Method {self._method!r} must return `Credit`, got {type(result).__name__}."
            )
        own = [id(episode) for episode in self._group.episodes]
        if [id(episode) for episode in result.episodes[: len(own)]] != own:
            raise ValueError(
                f"Method {self._method!r} must credit its group's episodes, in their order, "
                "before any fork."
            )
        return result

    def _numbered(self, fork: Fork) -> Fork:
        place = (id(fork.episode), fork.turn)
        if fork.alternative is None:
            number = self._numbers.get(place, 0) if isinstance(fork.luck, Luck) else 0
            fork = dataclasses.replace(fork, alternative=number)
        assert fork.alternative is not None
        self._numbers[place] = max(self._numbers.get(place, 0), fork.alternative + 1)
        if fork.key in self._seen:
            raise ValueError(
                f"The fork {fork.path!r} of episode {fork.episode.name} was asked for twice."
            )
        self._seen.add(fork.key)
        return fork


def _flat(shape: Any) -> list[Fork]:
    if isinstance(shape, Fork):
        return [shape]
    return [fork for part in shape for fork in _flat(part)]


def _filled(shape: Any, answers: Any) -> Any:
    if isinstance(shape, Fork):
        return next(answers)
    return [_filled(part, answers) for part in shape]
