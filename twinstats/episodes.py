"""The words everything else speaks: tasks, turns, episodes, forks, groups, credit, worlds.

Leaves out where noise comes from (`keys`), and how credit is computed (`credit`).
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np


class Action(Enum):
    """What a fork does at its turn, where it does not name the action itself."""

    RESAMPLE = "resample"
    KEEP = "keep"
    DIFFERENT = "different"


class Luck(Enum):
    """Which noise drives a fork's tail, where it is not a numbered draw."""

    SHARED = "shared"
    FRESH = "fresh"


RESAMPLE, KEEP, DIFFERENT = Action.RESAMPLE, Action.KEEP, Action.DIFFERENT
SHARED, FRESH = Luck.SHARED, Luck.FRESH

SLOTS_PER_PART = 64
"""Where a task has several parts, a turn's slot is 64 * part + turn within the part."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `info` holds constants a method may need: gold answers, predicates, entities."""

    id: str
    info: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One decision.

    Attributes:
        action: An int in simulations, a tuple of token ids for an LLM.
        logprob: Log-probability of the action under the behaviour policy, nats; null if unknown.
        entropy: Entropy of the decision, nats; null where the engine gives none.
        num_tokens: Tokens sampled for it.
        state: What the environment showed before the action, hashable.
        slot: What the noise key calls this turn; null means its running index.
        reward: Reward that came with this turn; the rest of the outcome belongs to the last turn.
        info: Anything else a world wants to remember.
    """

    action: Any
    logprob: float | None
    entropy: float | None
    num_tokens: int
    state: Hashable
    slot: int | None = None
    reward: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """One play of a task, factual or forked. Equality is identity.

    Attributes:
        task: What was played.
        step: Step of the run.
        row: Row within the step; a fork carries its parent's.
        turns: All turns, a fork's shared prefix included.
        outcome: Sum of all rewards; null if the episode failed to play (`info["reason"]` says why).
            NaN, what many scorers give for an answer without a score, is taken as null.
        terminated: The task came to its end.
        truncated: A limit cut it short.
        success: Whether the task was solved; null where that is not defined.
        final_state: What the environment showed at the end.
        fork: The fork that made this episode; null for a factual.
        sampled: Tokens drawn for this episode, rejected draws included: its cost.
        info: What `World.provide` fills, by need.
    """

    task: Task
    step: int
    row: int
    turns: Sequence[Turn]
    outcome: float | None
    terminated: bool
    truncated: bool
    success: bool | None = None
    final_state: Hashable = None
    fork: "Fork | None" = None
    sampled: int = 0
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.outcome, (float, np.floating)) and math.isnan(self.outcome):
            object.__setattr__(self, "outcome", None)
            object.__setattr__(self, "info", {"reason": "its outcome was NaN", **self.info})

    @property
    def num_turns(self) -> int:
        """Number of turns, the prefix included."""
        return len(self.turns)

    @property
    def path(self) -> str:
        """The forks that lead here, oldest first, joined by `/`; empty for a factual."""
        return "" if self.fork is None else self.fork.path

    @property
    def name(self) -> str:
        """`step/row`, then the path: unique within a run."""
        return f"{self.step}/{self.row}" + (f"/{self.path}" if self.path else "")

    def slot(self, turn: int) -> int:
        """What the noise key calls a turn."""
        named = self.turns[turn].slot
        return turn if named is None else named

    def owner(self, turn: int) -> "Episode":
        """The episode in which a turn was decided: this one or an ancestor."""
        if self.fork is None or turn >= self.fork.turn:
            return self
        return self.fork.episode.owner(turn)

    def column(self, name: str) -> np.ndarray:
        """One attribute of all turns, as an array. Null numbers become NaN."""
        values = [getattr(turn, name) for turn in self.turns]
        if name in ("logprob", "entropy", "reward"):
            return np.array([np.nan if value is None else value for value in values], np.float64)
        if name == "num_tokens":
            return np.array(values, np.int64)
        column = np.empty(len(values), object)
        column[:] = values
        return column


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    """Asks a world to play an episode again from one of its turns on.

    Attributes:
        episode: The parent.
        turn: The turn whose decision is replaced; not before the parent's own fork turn.
        action: RESAMPLE (from the policy), KEEP, DIFFERENT (from the policy, not the parent's
            action), or an action.
        luck: SHARED (the parent's noise), FRESH, or the number of a draw that forks may share.
        alternative: Number of the resampled decision; null lets `assign` number it.
        coupling: "gumbel" or "maximal".
        skip_equal: An equal resampled decision takes the parent's tail and outcome unplayed.
            Null: only for SHARED and RESAMPLE.

    Raises:
        ValueError: A turn outside the episode or before the parent's own fork turn, a numbered
            draw below 1 or with an alternative, a negative alternative, or an unknown coupling.
    """

    episode: Episode
    turn: int
    action: Any = RESAMPLE
    luck: Luck | int = SHARED
    alternative: int | None = 0
    coupling: Literal["gumbel", "maximal"] = "gumbel"
    skip_equal: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.turn < len(self.episode.turns):
            last = len(self.episode.turns) - 1
            raise ValueError(f"`turn` must be in 0..{last}, got {self.turn}.")
        own = self.episode.fork
        if own is not None and self.turn < own.turn:
            raise ValueError(
                f"`turn` {self.turn} was decided before the parent's own fork turn {own.turn}: "
                "fork the episode that owns the turn."
            )
        if not isinstance(self.luck, Luck) and (self.luck < 1 or self.alternative):
            raise ValueError("A numbered `luck` must be at least 1, with `alternative` 0.")
        if self.alternative is not None and self.alternative < 0:
            raise ValueError(f"`alternative` must be at least 0, got {self.alternative}.")
        if self.coupling not in ("gumbel", "maximal"):
            raise ValueError(f"`coupling` must be 'gumbel' or 'maximal', got {self.coupling!r}.")

    @property
    def path(self) -> str:
        """The parent's path and this fork's `turn.alternative.luck.action`."""
        luck = self.luck.value if isinstance(self.luck, Luck) else str(self.luck)
        own = f"{self.turn}.{self.alternative}.{luck}.{action_word(self.action)}"
        parent = self.episode.path
        return f"{parent}/{own}" if parent else own

    @property
    def is_drawn(self) -> bool:
        """Whether the decision is drawn from the policy, and so costs its tokens."""
        return self.action in (RESAMPLE, DIFFERENT)

    @property
    def is_maximal(self) -> bool:
        """Whether the tail keeps the parent's tokens as often as can be."""
        return self.coupling == "maximal" and self.luck is SHARED

    def takes_equal_tail(self, *, exact_replay: bool = True) -> bool:
        """Whether an equal decision takes the parent's tail and outcome without playing them.

        Args:
            exact_replay: The world's null twins have all ended as their factuals did; where one
                has not, only an explicit `skip_equal` skips.
        """
        if self.skip_equal is not None:
            return self.skip_equal
        return exact_replay and self.action is RESAMPLE and self.luck is SHARED

    def tail_key(self, *, exact_replay: bool = True) -> tuple[Hashable, ...] | None:
        """What decides the tail besides the decision; null where it is always played.

        Forks with one key and one decision share all later noise (a maximal coupling's coins too:
        they follow the parent's path, not the fork's own), so a world may play the first and let
        the others take its tail and outcome, at the cost of their decision alone. Fresh luck is
        each fork's own, and a kept decision measures the replay.

        Args:
            exact_replay: As in `takes_equal_tail`.
        """
        plays = self.luck is not SHARED or self.action is KEEP or self.skip_equal is False
        if plays or not (exact_replay or self.skip_equal):
            return None
        return (id(self.episode), self.turn, self.coupling)

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What makes two forks the same: parent, turn, action by its ids, luck and alternative.

        `coupling` and `skip_equal` do not tell forks apart: both would have one name and one noise.
        """
        return (id(self.episode), self.turn, action_word(self.action), self.luck, self.alternative)


def action_word(action: Any) -> str:
    """An action as it stands in a path: its word, or its ids joined by commas."""
    if isinstance(action, Action):
        return action.value
    ids = action if isinstance(action, Iterable) else (action,)
    return ",".join(str(int(token)) for token in ids)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The rollouts of one task at one step: what a credit method sees."""

    task: Task
    episodes: Sequence[Episode]
    seed: int
    step: int


def group_by_task(episodes: Iterable[Episode], *, seed: int, step: int) -> list[Group]:
    """The factuals grouped by their task's id, in order of first appearance.

    Never by position: groups keep their members when some rollouts are missing or rows move.
    """
    members: dict[str, list[Episode]] = {}
    for episode in episodes:
        members.setdefault(episode.task.id, []).append(episode)
    return [Group(own[0].task, own, seed, step) for own in members.values()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credit:
    """What a method returns for a group: an estimate of the advantage of each turn.

    Attributes:
        episodes: The group's, then every fork that the method wants trained.
        values: One float array an episode, one entry a turn; NaN marks a null: not trained.
        share: Each turn's factor in the loss, like `values`; null means 1 everywhere.
        weights: Per-token multipliers of each turn, mean 1; null means 1 everywhere.
        stderr: Standard errors of `values`, like them.
        info: Counts and reasons, and under "forks" every fork that was played.

    Raises:
        ValueError: Arrays that do not match their episodes.
    """

    episodes: Sequence[Episode]
    values: Sequence[np.ndarray]
    share: Sequence[np.ndarray] | None = None
    weights: Sequence[Sequence[np.ndarray]] | None = None
    stderr: Sequence[np.ndarray] | None = None
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("values", "share", "weights", "stderr"):
            arrays = getattr(self, name)
            if arrays is None:
                continue
            lengths = [len(array) for array in arrays]
            if lengths != [episode.num_turns for episode in self.episodes]:
                raise ValueError(f"`{name}` must have one entry a turn of each episode.")


@runtime_checkable
class World(Protocol):
    """Plays tasks and forks. Simulations and the trainer's rollout are worlds."""

    def play(self, tasks: Sequence[Task], rollouts: int, step: int) -> list[Episode]:
        """`rollouts` episodes of each task, task by task; rows are unique within a step."""

    def fork(self, forks: Sequence[Fork]) -> list[Episode]:
        """The forked episodes in the order asked; a failed one has a null outcome and a reason.

        A fork that is asked for twice is played twice, with the same noise; `assign` refuses it.
        """

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Fills `episode.info[need]` of each episode."""
