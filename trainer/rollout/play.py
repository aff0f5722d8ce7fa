"""One episode being played: the session between an engine and an environment.

Token ids go in and come out; nothing is tokenised twice. A fork replays the environment along the
factual prefix from its recorded actions and continues from the recorded ids. Whatever fails ends
this episode alone: it has no outcome then, and one sentence in `info["reason"]` says why. Leaves
out whose noise drives what (`luck`), turns and environment (`transcript`), and many episodes at
once (`rollout`).
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from trainer.engines import SampledTurn
from trainer.noise.sources import Noise
from trainer.policy.tokens import episode_ids
from trainer.rollout.adoption import is_turn
from trainer.rollout.luck import RESET_SLOT, Luck
from trainer.rollout.transcript import (
    EpisodeFailure,
    Limits,
    ReplayDiffers,
    Setting,
    Transcript,
)
from trainer.tasks import ToolError
from twinstats.episodes import DIFFERENT, KEEP, Episode, Fork, Task, Turn

__all__ = ["MOST_TRIES", "RESET_SLOT", "Limits", "Play", "Setting", "blank_episode"]

MOST_TRIES = 64
"""A turn that must not be the parent's, and was it so many times, has failed."""


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
        setting: What all episodes of the rollout share.
        blank: The episode before its first turn.
        luck: Whose noise drives it.
        skips_equal: A fork whose resampled turn is its parent's ends as the parent did.
        tail: What decides a fork's tail besides its decision; null where it is its own.
        leaders: By tail and decision, the play that got there first.

    Attributes:
        leader: The play whose tail this one has: itself, or the one that it follows.
    """

    def __init__(
        self,
        setting: Setting,
        blank: Episode,
        *,
        luck: Luck,
        skips_equal: bool = False,
        tail: Hashable = None,
        leaders: dict[Hashable, "Play"] | None = None,
    ) -> None:
        self._setting, self._policy = setting, setting.policy
        self._blank, self._fork, self._luck = blank, blank.fork, luck
        self._skips_equal, self._tail = skips_equal, tail
        self._leaders = {} if leaders is None else leaders
        self._transcript = Transcript(setting, luck)
        self._given: list[int] = []
        self._sampled = self._decided = self._tries = self._num_turns = self._num_unstable = 0
        self._is_full = False
        self._decision: SampledTurn | None = None
        self._result: Episode | None = None
        self.leader = self

    def begin(self) -> bool:
        """Sets up the environment and the fork's prefix; whether anything is left to sample."""
        return self._recorded(self._begin)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to sample for it; a rejected decision leaves it to be run on."""
        return self._result is not None or self.leader is not self

    def start(self) -> list[int]:
        """All tokens up to the turn that is sampled next."""
        ids = self._transcript.ids
        if self._setting.retokenise and self._fork is not None:
            ids = self._policy.encode(self._policy.decode(ids))
        self._given = list(ids)
        return ids

    def key(self) -> Noise:
        """The noise of the turn that is sampled next."""
        slot = self._transcript.slot
        return self._luck.decision(slot, self._tries) if self._decides else self._luck.tail(slot)

    def draft(self) -> tuple[int, ...]:
        """What the parent said in the slot of the turn that is sampled next, where it is likely."""
        return self._luck.draft(self._transcript.slot, is_decision=self._decides)

    def advance(self, turn: SampledTurn) -> list[int] | None:
        """Plays a sampled turn; the ids of what the environment shows next, null when over.

        Raises:
            ValueError: The engine gave another number of log-probabilities than of tokens.
        """
        if turn.logprobs is not None and len(turn.logprobs) != len(turn.tokens):
            raise ValueError(
                f"Episode {self._blank.name}, turn {len(self._transcript.turns)}: "
                f"{len(turn.logprobs)} log-probabilities for {len(turn.tokens)} tokens."
            )
        self._given += turn.tokens
        self._sampled += len(turn.tokens)
        self._num_turns += 1
        text = self._policy.decode(turn.tokens)
        self._num_unstable += tuple(self._policy.encode(text)) != turn.tokens
        play = self._decide if self._decides else self._take
        if not self._recorded(lambda: play(turn)):
            return None
        self._given += self._transcript.shown
        return list(self._transcript.shown)

    def fail(self, reason: str) -> None:
        """Ends the episode without an outcome."""
        self._result = self._failed(reason)

    def refuse(self, reason: str | None) -> None:
        """Takes the outcome from the episode for a reason, if there is one and none before."""
        if reason is not None and (self._result is None or self._result.outcome is not None):
            self.fail(reason)

    def settle(self, *, pays: bool) -> None:
        """Takes over the leader's tail and outcome, and if it `pays` the cost of the tail."""
        leader, result = self.leader, self.leader.episode()
        turns = list(result.turns)
        if leader is not self and self._decision is not None and len(turns) > self._num_before:
            own = _scored(turns[self._num_before], self._decision)
            turns[self._num_before] = own  # the same tokens, as they came out here
        cost = self._decided + pays * (leader._sampled - leader._decided)
        self._result = replace(
            result, fork=self._fork, turns=tuple(turns), sampled=cost, info=dict(result.info)
        )

    def episode(self) -> Episode:
        """The finished episode."""
        assert self._result is not None
        return self._result

    def counts(self) -> dict[str, int]:
        """What is to be counted of the finished episode.

        Of the turns sampled for it, how many would be other ids if their text were encoded again
        (`unstable_turns`); whether the engine was given other ids than it says (`drift`), and
        whether it was cut for want of context (`overfull`).
        """
        pairs = zip(self._given, episode_ids(self.episode()), strict=False)
        return {
            "turns": self._num_turns,
            "unstable_turns": self._num_unstable,
            "drift": any(given != told for given, told in pairs),
            "overfull": self._is_full,
        }

    @property
    def _num_before(self) -> int:
        return 0 if self._fork is None else self._fork.turn

    @property
    def _decides(self) -> bool:
        """Whether the turn that comes next is the fork's own."""
        return self._fork is not None and len(self._transcript.turns) == self._fork.turn

    def _recorded(self, play: Callable[[], bool]) -> bool:
        """Whether the episode goes on; what fails ends it without an outcome."""
        try:
            return play()
        except ToolError as error:
            self.fail(f"a tool failed: {error}")
        except ReplayDiffers as error:
            self._result = self._failed(str(error), replay_differs=True)
        except EpisodeFailure as error:
            self.fail(str(error))
        return False

    def _begin(self) -> bool:
        fork = self._fork
        if fork is not None:
            _check(fork)
        self._transcript.open(self._blank.task)
        if fork is not None:
            self._transcript.replay(fork.episode, fork.turn)
        self._transcript.name_slot()
        return fork is None or fork.is_drawn or self._decide(self._given_turn(fork))

    def _given_turn(self, fork: Fork) -> SampledTurn:
        """The decision that a fork names; the parent's own has the parent's numbers.

        Raises:
            EpisodeFailure: It is no turn that the policy could have come up with.
        """
        parent = fork.episode.turns[fork.turn]
        tokens = parent.action if fork.action is KEEP else tuple(map(int, fork.action))
        same = tokens == parent.action
        if not same:
            self._check_given(tokens)
        return SampledTurn(
            tokens=tokens,
            logprobs=parent.info["logprobs"] if same else None,
            entropy=parent.entropy if same else None,
            is_stopped=True,
        )

    def _check_given(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise EpisodeFailure("the given turn has no tokens")
        vocabulary = self._policy.vocabulary
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise EpisodeFailure(
                    f"the given turn has token {token}, outside the policy's vocabulary of "
                    f"{vocabulary}"
                )
        if not is_turn(tokens, self._setting.ends):
            raise EpisodeFailure(
                "the given turn does not end where the policy's turns do: with its first stop "
                "token, or at `rollout.max_turn_tokens`"
            )

    def _decide(self, turn: SampledTurn) -> bool:
        """Plays the fork's own turn, unless its parent or another play has its tail."""
        fork = self._fork
        assert fork is not None
        if fork.is_drawn and turn.tokens == fork.episode.turns[fork.turn].action:
            if fork.action is DIFFERENT:
                return self._reject()
            if self._skips_equal:
                self._decided = self._sampled
                self._result = replace(fork.episode, fork=fork, sampled=self._sampled, info={})
                return False
        self._decision, self._decided = turn, self._sampled
        if self._tail is not None:
            self.leader = self._leaders.setdefault((self._tail, turn.tokens), self)
        return self.leader is self and self._take(turn)

    def _reject(self) -> bool:
        """Leaves the decision to be drawn again, in the engine's next round."""
        self._tries += 1
        if self._tries == MOST_TRIES:
            raise EpisodeFailure(
                f"the turn was to differ, but came out as the parent's {MOST_TRIES} times"
            )
        return False

    def _take(self, turn: SampledTurn) -> bool:
        """Plays a new turn; whether the episode goes on."""
        done, info = self._transcript.take(turn)
        if not (done or self._transcript.is_cut):
            self._transcript.name_slot()
            return True
        self._is_full = self._transcript.is_full and not done
        self._result = self._finished(info, done=done)
        return False

    def _finished(self, info: dict[str, Any], *, done: bool) -> Episode:
        outcome = sum(turn.reward for turn in self._transcript.turns)
        if not math.isfinite(outcome):
            raise EpisodeFailure(f"the sum of its rewards must be finite, got {outcome}")
        cut = not done or bool(info["truncated"])
        return replace(
            self._blank,
            turns=tuple(self._transcript.turns),
            outcome=outcome,
            terminated=not cut,
            truncated=cut,
            success=info["won"],
            final_state=self._transcript.text_shown,
            sampled=self._sampled,
        )

    def _failed(self, reason: str, **told: bool) -> Episode:
        return replace(
            self._blank,
            turns=tuple(self._transcript.turns),
            sampled=self._sampled,
            info={"reason": reason, **told},
        )


def _check(fork: Fork) -> None:
    """Refuses a fork of an episode that failed, and a turn than which there is no other.

    Raises:
        EpisodeFailure: It cannot be played.
    """
    parent = fork.episode
    if parent.outcome is None:
        raise EpisodeFailure(f"the parent has no outcome: {parent.info.get('reason')}")
    logprob = parent.turns[fork.turn].logprob
    if fork.action is DIFFERENT and logprob is not None and math.exp(logprob) >= 1:
        raise EpisodeFailure(f"turn {fork.turn} has probability 1: no other can be drawn")


def _scored(turn: Turn, sampled: SampledTurn) -> Turn:
    """A turn with the numbers of one that has the same tokens."""
    info = turn.info | {"logprobs": sampled.logprobs}
    return replace(turn, logprob=sampled.logprob, entropy=sampled.entropy, info=info)
