"""An episode as it grows: turns go into the environment, and what it shows is noted beside them.

Token ids are kept as they were sampled; the environment gets their text. Leaves out where turns
come from (`play`) and whose noise drives the environment (`luck`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.engines import SampledTurn
from trainer.policy import Policy
from trainer.rollout.guarded import Guarded
from trainer.rollout.luck import RESET_SLOT, Luck
from trainer.tasks import Environment, ToolError
from twinstats.episodes import Episode, Task, Turn

_EXCERPT = 60  # characters of a text that is named


class EpisodeFailure(RuntimeError):
    """An episode cannot go on: it has no outcome, and the message is the reason."""


class ReplayDiffers(EpisodeFailure):
    """A prefix that is played again goes otherwise than it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where an episode is cut, and how long a tool may take.

    Attributes:
        max_context: A turn starts only with fewer tokens before it: with the model's length less
            the longest turn, a whole turn always has room. An episode that has no room for its next
            turn is truncated, with the outcome that it has; a task whose first text leaves none
            fails before anything is sampled.
        max_turns: An episode that is not over after so many turns is truncated.
        tool_seconds: A call of the environment that takes longer has failed.
    """

    max_context: int
    max_turns: int
    tool_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all episodes of a rollout share.

    Attributes:
        policy: Model and tokenizer.
        environment: Makes the environment of one episode.
        ends: Whether a turn is over with the last of its tokens so far.
        limits: Where an episode is cut.
        retokenise: Forks go on from ids encoded anew from text, as trainers that keep text do: to
            measure what that breaks.
    """

    policy: Policy
    environment: Callable[[], Environment]
    ends: Callable[[Sequence[int]], bool]
    limits: Limits
    retokenise: bool = False


class Transcript:
    """The turns of one episode, and the environment that they are played into.

    All methods raise `EpisodeFailure` or `ToolError` where the episode cannot go on.

    Attributes:
        turns: All turns so far.
        shown: Ids of what the environment showed last.
        slot: Of the turn that comes next.
        length: Number of tokens so far, what was shown last included.
    """

    def __init__(self, setting: Setting, luck: Luck) -> None:
        self._policy, self._limits, self._luck = setting.policy, setting.limits, luck
        self._make = setting.environment
        self._texts: list[str] = []
        self.turns: list[Turn] = []
        self.shown: tuple[int, ...] = ()
        self.slot = self.length = 0

    def open(self, task: Task) -> None:
        """Starts the environment on a task."""
        self._environment = Guarded(self._make, seconds=self._limits.tool_seconds)
        self._show(self._environment.reset(task.info, self._luck.reset()))
        if not self.shown:
            raise ToolError("`reset` showed nothing")
        if self.is_full:
            raise EpisodeFailure(
                f"the first text of {self.length} tokens leaves no room for a turn: it must have "
                f"fewer than {self._limits.max_context}"
            )

    def replay(self, parent: Episode, turns: int) -> None:
        """Plays the parent's first turns again, each with its owner's luck, and checks each."""
        self._check_shown(parent)
        prefix = parent.turns[:turns]
        texts = [self._policy.decode(turn.action) for turn in prefix]
        noises = [self._luck.replayed_tool(index, parent.slot(index)) for index in range(turns)]
        steps = self._environment.replay(list(zip(texts, noises, strict=True)))
        for index, (turn, text) in enumerate(zip(prefix, texts, strict=True)):
            step = next(steps)
            self._append(turn, text, step.observation)
            if step.done or step.reward != turn.reward:
                raise ReplayDiffers(f"replay differs at turn {index}")
            self._check_shown(parent)

    def name_slot(self) -> None:
        """Asks what the next turn is called."""
        self.slot = self._environment.slot(tuple(self._texts))
        if not 0 <= self.slot <= RESET_SLOT:
            raise EpisodeFailure(f"The task named a slot outside 0..{RESET_SLOT - 1}: {self.slot}.")
        if self.slot == RESET_SLOT or any(turn.slot == self.slot for turn in self.turns):
            raise EpisodeFailure(f"The task named slot {self.slot} twice.")

    def take(self, sampled: SampledTurn) -> tuple[bool, dict[str, Any]]:
        """Plays a new turn; whether the task is over, and what its environment told of it."""
        text = self._policy.decode(sampled.tokens)
        step = self._environment.step(text, self._luck.tool(self.slot))
        turn = Turn(
            action=sampled.tokens,
            logprob=sampled.logprob,
            entropy=sampled.entropy,
            num_tokens=len(sampled.tokens),
            state=self.text_shown,
            slot=self.slot,
            reward=step.reward,
            info={"shown": self.shown, "step": step.info, "logprobs": sampled.logprobs},
        )
        self._append(turn, text, step.observation)
        if self.is_cut and not step.done:
            self.turns[-1] = replace(turn, reward=turn.reward + self._environment.cut())
        return step.done, step.info

    @property
    def ids(self) -> list[int]:
        """All tokens up to the turn that comes next."""
        played = [token for turn in self.turns for token in (*turn.info["shown"], *turn.action)]
        return [*played, *self.shown]

    @property
    def text_shown(self) -> str:
        """What the environment showed last, as it reads to the policy."""
        return self._policy.decode(self.shown)

    @property
    def is_full(self) -> bool:
        """Whether the context leaves no room for another turn."""
        return self.length >= self._limits.max_context

    @property
    def is_cut(self) -> bool:
        """Whether a limit ends the episode here, if the task does not."""
        return self.is_full or len(self.turns) >= self._limits.max_turns

    def _append(self, turn: Turn, text: str, observation: str) -> None:
        self._show(observation)  # a turn whose answer cannot be shown is not in the episode
        self.turns.append(turn)
        self._texts.append(text)
        self.length += turn.num_tokens

    def _show(self, text: str) -> None:
        shown = tuple(self._policy.encode(text))
        largest = max(shown, default=0)
        if largest >= self._policy.vocabulary:
            raise EpisodeFailure(
                f"the text {text[:_EXCERPT]!r} has token {largest}, "
                f"{self._policy.decode([largest])!r}, outside the policy's vocabulary of "
                f"{self._policy.vocabulary}"
            )
        self.shown = shown
        self.length += len(shown)

    def _check_shown(self, parent: Episode) -> None:
        """Refuses to go on where another prefix is shown: such a twin is never scored."""
        turn = len(self.turns)
        if self.shown != parent.turns[turn].info["shown"]:
            raise ReplayDiffers(f"replay differs before turn {turn}")
