"""One episode being played: the session between an engine and an environment.

Token ids go in and come out; nothing is tokenised twice. A fork replays the environment along the
factual prefix from its recorded actions, continues from the recorded ids, and draws from the
streams of `twinstats.keys`. Leaves out many episodes at once (`rollout`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer import adoption
from trainer.engines import SampledTurn
from trainer.noise.sources import Noise
from trainer.policy import Policy
from trainer.tasks import Environment, ToolError
from twinstats.episodes import KEEP, RESAMPLE, Episode, Fork, Task, Turn
from twinstats.keys import FACTUAL, Stream, Streams, episode_streams
from twinstats.noise import NoiseKey

RESET_SLOT = 2**16 - 1
"""The slot whose noise an environment's `reset` gets: the last one, which no turn may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where an episode is cut: turns that are too many, or a context that is full."""

    max_context: int
    max_turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all plays of a rollout share.

    Attributes:
        policy: Model and tokenizer.
        environment: Makes the environment of one episode.
        seed: The run's seed.
        limits: Where an episode is cut.
    """

    policy: Policy
    environment: Callable[[], Environment]
    seed: int
    limits: Limits


def blank_episode(task: Task, *, step: int, row: int, fork: Fork | None = None) -> Episode:
    """An episode before its first turn."""
    return Episode(
        task=task,
        step=step,
        row=row,
        turns=(),
        outcome=None,
        terminated=False,
        truncated=False,
        fork=fork,
    )


class Play:
    """One episode being played: an engine's session.

    Args:
        setting: What all plays of the rollout share.
        blank: The episode before its first turn.
        streams: Whose noise drives it, a fork from its fork turn on.
        skips_equal: A fork whose resampled turn is its parent's ends as the parent did.
    """

    def __init__(
        self, setting: Setting, blank: Episode, *, streams: Streams, skips_equal: bool = False
    ) -> None:
        self._setting, self._policy, self._blank = setting, setting.policy, blank
        self._streams, self._fork, self._skips_equal = streams, blank.fork, skips_equal
        self._environment = setting.environment()
        self._logged = adoption.logged_noise(blank.fork)
        self._turns: list[Turn] = []
        self._texts: list[str] = []
        self._shown: tuple[int, ...] = ()
        self._length = 0
        self._sampled = 0
        self._result: Episode | None = None

    def begin(self) -> bool:
        """Sets up the environment and the fork's prefix; whether anything is left to sample."""
        return self._recorded(self._begin)

    def _recorded(self, play: Callable[[], bool]) -> bool:
        """Whether the episode goes on; a tool that fails ends it without an outcome."""
        try:
            return play()
        except ToolError as error:
            self._result = self._failed(f"a tool failed: {error}")
            return False

    def _begin(self) -> bool:
        fork = self._fork
        first = self._streams if fork is None else FACTUAL  # a fork starts as its factual did
        noise = self._key(first.environment, RESET_SLOT)
        observation = self._environment.reset(self._blank.task.info, noise)
        self._show(self._policy.encode(observation))
        if fork is None:
            return True
        if not all(self._replay(turn) for turn in range(fork.turn)) or self._differs():
            return False
        if fork.action is RESAMPLE:
            return True
        parent = fork.episode.turns[fork.turn]
        action = parent.action if fork.action is KEEP else tuple(fork.action)
        same = action == parent.action
        return self._take(action, parent.logprob if same else None, None)

    def start(self) -> list[int]:
        """All tokens up to the turn that is sampled next."""
        return [token for turn in self._turns for token in (*turn.info["shown"], *turn.action)] + [
            *self._shown
        ]

    def key(self) -> Noise:
        """The decision stream at the fork's turn, the tail's after it.

        Where the tail is that of an adopted factual, the noise that explains what it was.
        """
        at_fork = self._fork is not None and len(self._turns) == self._fork.turn
        stream = self._streams.decision if at_fork else self._streams.tail
        assert stream is not None
        slot = self._slot()
        if stream == FACTUAL.tail and slot in self._logged:
            return self._logged[slot]
        return self._key(stream, slot)

    def draft(self) -> tuple[int, ...]:
        """What the factual said in the slot of the turn that is sampled next, if it was there."""
        return ()

    def fail(self, reason: str) -> None:
        """Ends the episode without an outcome."""
        self._result = self._failed(reason)

    def advance(self, turn: SampledTurn) -> list[int] | None:
        """Plays a sampled turn; the ids of what the environment shows next, null when over."""
        self._sampled += len(turn.tokens)
        fork = self._fork
        if fork is not None and self._skips_equal and len(self._turns) == fork.turn:
            if turn.tokens == fork.episode.turns[fork.turn].action:
                parent = fork.episode
                self._result = dataclasses.replace(
                    parent, fork=fork, sampled=self._sampled, info={}
                )
                return None
        goes_on = self._recorded(lambda: self._take(turn.tokens, turn.logprob, turn.entropy))
        return list(self._shown) if goes_on else None

    def refuse(self, reason: str | None) -> None:
        """Takes the outcome from the episode for a reason, if there is one and none before."""
        if reason is not None and (self._result is None or self._result.outcome is not None):
            self._result = self._failed(reason)

    def episode(self) -> Episode:
        """The finished episode."""
        assert self._result is not None
        return self._result

    def _slot(self) -> int:
        return self._environment.slot(self._texts)

    def _key(self, stream: Stream, slot: int) -> NoiseKey:
        return stream.key(self._setting.seed, self._blank.step, self._blank.row, slot)

    def _show(self, ids: Sequence[int]) -> None:
        self._shown = tuple(ids)
        self._length += len(ids)

    def _replay(self, index: int) -> bool:
        """Plays a recorded turn again with its owner's luck; false if it went otherwise."""
        if self._differs():
            return False
        assert self._fork is not None
        parent = self._fork.episode
        turn = parent.turns[index]
        text = self._policy.decode(turn.action)
        noise = self._key(episode_streams(parent.owner(index)).environment, self._slot())
        step = self._environment.step(text, noise)
        self._turns.append(turn)
        self._texts.append(text)
        self._length += len(turn.action)
        self._show(self._policy.encode(step.observation))
        if step.done or step.reward != turn.reward:
            self._result = self._failed(f"replay differs at turn {index}")
        return self._result is None

    def _differs(self) -> bool:
        """Whether the environment shows something else than it did before this turn of the parent.

        The episode has then failed: a twin whose prefix differs is never scored.
        """
        assert self._fork is not None
        if self._shown != self._fork.episode.turns[len(self._turns)].info["shown"]:
            self._result = self._failed(f"replay differs before turn {len(self._turns)}")
        return self._result is not None

    def _take(self, action: tuple[int, ...], logprob: float | None, entropy: float | None) -> bool:
        """Plays a new turn; whether the episode goes on."""
        slot = self._slot()
        noise = self._key(self._streams.environment, slot)
        if slot in (RESET_SLOT, *(turn.slot for turn in self._turns)):
            raise ValueError(f"The task named slot {slot} twice.")
        text = self._policy.decode(action)
        step = self._environment.step(text, noise)
        info = {"shown": self._shown, "step": step.info}
        state = self._policy.decode(self._shown)
        self._turns.append(
            Turn(action, logprob, entropy, len(action), state, slot, step.reward, info)
        )
        self._texts.append(text)
        self._length += len(action)
        self._show(self._policy.encode(step.observation))
        is_full = self._length >= self._setting.limits.max_context
        if step.done or is_full or len(self._turns) >= self._setting.limits.max_turns:
            self._result = self._finish(step.info, done=step.done)
            return False
        return True

    def _finish(self, info: dict[str, Any], *, done: bool) -> Episode:
        cut = not done or bool(info["truncated"])
        return dataclasses.replace(
            self._blank,
            turns=tuple(self._turns),
            outcome=sum(turn.reward for turn in self._turns),
            terminated=not cut,
            truncated=cut,
            success=bool(info["won"]),
            final_state=self._policy.decode(self._shown),
            sampled=self._sampled,
        )

    def _failed(self, reason: str) -> Episode:
        return dataclasses.replace(
            self._blank,
            turns=tuple(self._turns),
            sampled=self._sampled,
            info={"reason": reason},
        )
