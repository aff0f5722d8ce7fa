"""The rollout: the `World` of language-model agents.

Rollouts are synchronous with the weights. Leaves out how one episode goes (`play`), and how tokens
are sampled (engines) and learned from (train).
"""

from collections.abc import Callable, Sequence

from trainer import adoption
from trainer.engines import Engine
from trainer.episode_log import LoggedEpisode
from trainer.play import Limits, Play, Setting, blank_episode
from trainer.policy import Policy
from trainer.tasks import Environment
from twinstats.episodes import DIFFERENT, Episode, Fork, Task
from twinstats.errors import UsageError
from twinstats.keys import FACTUAL, Stream, Streams, fork_streams
from twinstats.rows import null_disagreements

EVALUATION = Streams(None, Stream("evaluation"), Stream("evaluation/environment"))


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
        self._temperature = temperature
        self._setting = Setting(policy=policy, environment=environment, seed=seed, limits=limits)

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
            self.policy, episodes, seed=self._setting.seed, temperature=self._temperature
        )

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Nothing yet: no method of this version has needs.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"The rollout of language models cannot provide {need!r} yet.")

    def _factual(self, task: Task, row: int, step: int, streams: Streams = FACTUAL) -> Play:
        return Play(self._setting, blank_episode(task, step=step, row=row), streams=streams)

    def _replayed(self, play: Play, logged: LoggedEpisode) -> Episode:
        if play.begin():
            encode, ends = self.policy.encode, self.engine.ends
            play.refuse(adoption.replay(play, logged, encode=encode, ends=ends))
        return play.episode()

    def _forked(self, fork: Fork) -> Play:
        parent = fork.episode
        return Play(
            self._setting,
            blank_episode(parent.task, step=parent.step, row=parent.row, fork=fork),
            streams=fork_streams(fork),
            skips_equal=fork.takes_equal_tail(exact_replay=self.exact_replay),
        )

    def _run(self, plays: Sequence[Play], temperature: float | None = None) -> list[Episode]:
        temperature = self._temperature if temperature is None else temperature
        waiting = [play for play in plays if play.begin()]
        if waiting:
            self.engine.run(waiting, temperature=temperature)
        return [play.episode() for play in plays]
