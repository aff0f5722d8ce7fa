"""The rollout: the `World` of language-model agents.

Token ids go in and come out; nothing is tokenised twice. A fork replays the environment along the
factual prefix from its recorded actions, continues from the recorded ids, and draws from the
streams of `twinstats.keys`. Rollouts are synchronous with the weights. Leaves out how tokens are
sampled (engines) and learned from (train).
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer import adoption
from trainer.engines import Engine, SampledTurn
from trainer.episode_log import LoggedEpisode
from trainer.noise.logged import Noise
from trainer.policy import Policy
from trainer.tasks import Environment, ToolError
from twinstats.episodes import DIFFERENT, KEEP, RESAMPLE, Episode, Fork, Task, Turn
from twinstats.errors import UsageError
from twinstats.keys import FACTUAL, Stream, Streams, episode_streams, fork_streams
from twinstats.noise import NoiseKey
from twinstats.rows import null_disagreements

EVALUATION = Streams(None, Stream("evaluation"), Stream("evaluation/environment"))

RESET_SLOT = 2**16 - 1
"""The slot whose noise an environment's `reset` gets: the last one, which no turn may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where an episode is cut: turns that are too many, or a context that is full."""

    max_context: int
    max_turns: int


class Rollout:
    """Plays tasks and forks with a policy.

    Args:
        policy: Model and tokenizer.
        engine: Samples the turns.
        environment: Makes the environment of one episode.
        seed: The run's seed.
        temperature: Of sampling.
        limits: Where an episode is cut.
    """

    def __init__(
        self,
        policy: Policy,
        engine: Engine,
        environment: Callable[[], Environment],
        *,
        seed: int,
        temperature: float,
        limits: Limits,
    ) -> None:
        self.policy = policy
        self.exact_replay = True
        self.engine = engine
        self._environment = environment
        self._seed = seed
        self._temperature = temperature
        self._limits = limits

    def play(self, tasks: Sequence[Task], rollouts: int, step: int) -> list[Episode]:
        """`rollouts` episodes of each task, task by task; rows count up from 0 within the step."""
        repeated = [task for task in tasks for _ in range(rollouts)]
        return self._run([self._factual(task, row, step) for row, task in enumerate(repeated)])

    def evaluate(
        self, tasks: Sequence[Task], step: int, *, temperature: float | None = None
    ) -> list[Episode]:
        """One episode of each task with noise of its own purpose; temperature 0 is greedy."""
        plays = [self._factual(task, row, step, EVALUATION) for row, task in enumerate(tasks)]
        episodes = self._run(plays, self._temperature if temperature is None else temperature)
        for episode in episodes:
            episode.info["purpose"] = "evaluation"
        return episodes

    def fork(self, forks: Sequence[Fork]) -> list[Episode]:
        """The forked episodes in the order asked, all in one batch.

        A fork whose replayed prefix shows something else than the factual did has a null outcome
        and a reason. Once a null twin has ended otherwise than its factual, equal decisions are
        played out unless a fork says `skip_equal`.

        Raises:
            NotImplementedError: DIFFERENT, or maximal coupling.
            ValueError: A fork of an evaluation's episode.
        """
        for fork in forks:
            if fork.episode.info.get("purpose") == "evaluation":
                raise ValueError(
                    f"Episode {fork.episode.name} was played by `evaluate`, whose noise forks "
                    "do not have: fork what `play` returns."
                )
            if fork.action is DIFFERENT or fork.coupling == "maximal":
                wanted = "DIFFERENT" if fork.action is DIFFERENT else "coupling='maximal'"
                raise NotImplementedError(f"The rollout of language models lacks {wanted} yet.")
        played = self._run([self._forked(fork) for fork in forks])
        _, by_token, by_outcome = null_disagreements(played)
        self.exact_replay = self.exact_replay and not by_token and not by_outcome
        return played

    def adopt(self, logged: Sequence[LoggedEpisode], step: int) -> list[Episode]:
        """Episodes that were sampled elsewhere, as factuals: `explain` of what `replay` returns.

        Their forks work as those of any factual. Where a fork shares the luck, it draws with noise
        that explains the logged tokens; that makes credit unbiased if the tokens were drawn from
        this policy, with its weights, temperature and limits of now. The environment must be
        deterministic given the actions: the luck of a logged one is not known.
        """
        return self.explain(self.replay(logged, step))

    def replay(self, logged: Sequence[LoggedEpisode], step: int) -> list[Episode]:
        """The logged turns played into the environment; rows count up from 0 within the step.

        One that goes otherwise than the log says has a null outcome and a reason.
        """
        return [
            self._replayed(self._factual(one.task, row, step), one)
            for row, one in enumerate(logged)
        ]

    def explain(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Replayed episodes with the noise that explains them; see `adoption.explained`.

        They hold the logits of every sampled token as long as they live: 4 bytes times tokens times
        vocabulary, 90 MB for 150 tokens of 152,000. Explain as many as fit, and let go of them.
        """
        return adoption.explained(
            self.policy, episodes, seed=self._seed, temperature=self._temperature
        )

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Nothing yet: no method of this version has needs.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"The rollout of language models cannot provide {need!r} yet.")

    def _factual(self, task: Task, row: int, step: int, streams: Streams = FACTUAL) -> "Play":
        return Play(
            self.policy,
            self._environment(),
            self._limits,
            self._seed,
            task,
            row,
            step,
            streams=streams,
        )

    def _replayed(self, play: "Play", logged: LoggedEpisode) -> Episode:
        if play.begin():
            encode, ends = self.policy.encode, self.engine.ends
            play.refuse(adoption.replay(play, logged, encode=encode, ends=ends))
        return play.episode()

    def _forked(self, fork: Fork) -> "Play":
        parent = fork.episode
        return Play(
            self.policy,
            self._environment(),
            self._limits,
            self._seed,
            parent.task,
            parent.row,
            parent.step,
            streams=fork_streams(fork),
            fork=fork,
            skips_equal=fork.takes_equal_tail(exact_replay=self.exact_replay),
        )

    def _run(self, plays: "Sequence[Play]", temperature: float | None = None) -> list[Episode]:
        degree = self._temperature if temperature is None else temperature
        waiting = [play for play in plays if play.begin()]
        if waiting:
            self.engine.run(waiting, temperature=degree)
        return [play.episode() for play in plays]


class Play:
    """One episode being played: an engine's session."""

    def __init__(
        self,
        policy: Policy,
        environment: Environment,
        limits: Limits,
        seed: int,
        task: Task,
        row: int,
        step: int,
        *,
        streams: Streams,
        fork: Fork | None = None,
        skips_equal: bool = False,
    ) -> None:
        self._policy, self._environment, self._limits = policy, environment, limits
        self._seed, self._task, self._row, self._step = seed, task, row, step
        self._streams, self._fork, self._skips_equal = streams, fork, skips_equal
        self._logged = adoption.logged_noise(fork)
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
        observation = self._environment.reset(self._task.info, self._noise(first, RESET_SLOT))
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
        return stream.key(self._seed, self._step, self._row, slot)

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

    def _noise(self, streams: Streams, slot: int) -> NoiseKey:
        return streams.environment.key(self._seed, self._step, self._row, slot)

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
        noise = self._noise(episode_streams(parent.owner(index)), self._slot())
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
        noise = self._noise(self._streams, slot)
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
        is_full = self._length >= self._limits.max_context
        if step.done or is_full or len(self._turns) >= self._limits.max_turns:
            self._result = self._finish(step.info, done=step.done)
            return False
        return True

    def _finish(self, info: dict[str, Any], *, done: bool) -> Episode:
        cut = not done or bool(info["truncated"])
        return Episode(
            task=self._task,
            step=self._step,
            row=self._row,
            turns=tuple(self._turns),
            outcome=sum(turn.reward for turn in self._turns),
            terminated=not cut,
            truncated=cut,
            success=bool(info["won"]),
            final_state=self._policy.decode(self._shown),
            fork=self._fork,
            sampled=self._sampled,
        )

    def _failed(self, reason: str) -> Episode:
        return Episode(
            task=self._task,
            step=self._step,
            row=self._row,
            turns=tuple(self._turns),
            outcome=None,
            terminated=False,
            truncated=False,
            fork=self._fork,
            sampled=self._sampled,
            info={"reason": reason},
        )
