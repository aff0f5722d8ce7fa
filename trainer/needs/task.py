"""Needs that the task fills: what it knows of an episode besides its outcome.

A task says what it can tell in `Environment.needs`; this module asks it. Leaves out what needs
tokens or a model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.needs.provider import Computed, Setup
from trainer.tasks.environment import Environment, Tell
from twinstats.episodes import Episode
from twinstats.errors import UsageError

TOLD = (
    "entities",
    "features",
    "predicates",
    "signature",
    "state_score",
    "tool",
    "turn_reward",
)
"""The needs that only a task can fill."""


def task_need(need: str, setup: Setup) -> Computed:
    """The provider of a need that the task of a run tells.

    A failed episode is told as far as it went.

    Raises:
        UsageError: The task cannot tell it.
    """
    told = tellers(setup.environment())
    refuse_untold(need, told, method=setup.config.credit.method, task=setup.config.task.name)
    calls = told.get("calls") if need == "entities" else None  # `spader` prices calls

    def own(episode: Episode) -> Sequence[Any]:
        if calls is not None:
            _note_calls(calls, episode)
        return tell(told[need], episode)

    return Computed(need, lambda episodes: [own(episode) for episode in episodes], own)


def tellers(environment: Environment) -> Mapping[str, Tell]:
    """What fills each need that the task knows; empty for a task that says nothing."""
    found: Mapping[str, Tell] = getattr(environment, "needs", {})
    return found


def refuse_untold(need: str, told: Mapping[str, Tell], *, method: str, task: str) -> None:
    """Refuses a need that a task cannot tell.

    Raises:
        UsageError: Always, unless the need is told; method, need and task are named.
    """
    if need not in told:
        raise UsageError(
            f"Method {method!r} needs {need!r}, which task {task!r} does not tell "
            f"(it tells: {', '.join(sorted(told)) or 'nothing'})."
        )


def tell(teller: Tell, episode: Episode) -> Sequence[Any]:
    """A need's entries for an episode, from what the environment told at each of its turns."""
    return teller(episode.task.info, [turn.info["step"] for turn in episode.turns])


def _note_calls(teller: Tell, episode: Episode) -> None:
    """Writes how often each turn called a tool to where `spader` looks: `Turn.info["calls"]`."""
    for turn, calls in zip(episode.turns, tell(teller, episode), strict=True):
        turn.info["calls"] = calls
