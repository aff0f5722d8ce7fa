"""The rollout: the `World` of language-model agents.

Rollouts are synchronous with the weights. Leaves out how one episode goes (`play`), and how tokens
are sampled (engines) and learned from (`learning`).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from trainer.engines import Engine
from trainer.logged.episode_log import LoggedEpisode
from trainer.needs import Provider
from trainer.policy import Policy
from trainer.rollout import adoption
from trainer.rollout.adoption import logged_noise, turn_logits
from trainer.rollout.counts import rollout_metrics
from trainer.rollout.luck import Luck, TurnLogits
from trainer.rollout.play import Play, blank_episode
from trainer.rollout.tails import settle, tail_keys
from trainer.rollout.transcript import Limits, Setting
from trainer.tasks import Environment
from twinstats.episodes import SHARED, Episode, Fork, Task
from twinstats.errors import UsageError
from twinstats.keys import FACTUAL, Stream, Streams
from twinstats.maximal import check_coupling
from twinstats.rows import is_null_that_differs

EVALUATION = Streams(None, Stream("evaluation"), Stream("evaluation/environment"))


class Rollout:
    """Plays tasks and forks with a policy.

    An episode that fails (a tool, the engine, a prompt without room) has a null outcome and one
    sentence in `info["reason"]`; the others go on. One that a limit cuts is truncated, with the
    outcome that it has, and is forked like any other: to leave it out would choose episodes by how
    they end, and bias the credit of all turns before.

    Args:
        policy: Model and tokenizer.
        engine: Samples the turns.
        environment: Makes the environment of one episode.
        seed: The run's seed.
        temperature: Of sampling.
        limits: Where an episode is cut.
        needs: Makes what fills a need of a method (`trainer.needs.make`); null: there is none.
        retokenise: Forks go on from ids that were encoded anew from text, as trainers that keep
            text do. To measure what that breaks.
        shares_tools: Tools of a SHARED fork share the factual's luck. False: as tools without
            keyed noise, each fork's have their own; ask for such forks with `skip_equal=False`.

    Attributes:
        exact_replay: No null twin so far went otherwise than its factual. One that failed for
            another reason than its replay, such as a tool that was out of order, tells nothing.
        providers: What fills needs, by need, as far as any was asked for.
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
        needs: Callable[[str], Provider] | None = None,
        retokenise: bool = False,
        shares_tools: bool = True,
    ) -> None:
        self.policy = policy
        self.exact_replay = True
        self.engine = engine
        self.providers: dict[str, Provider] = {}
        self._seed, self._temperature = seed, temperature
        self._needs, self._shares_tools = needs, shares_tools
        self._setting = Setting(
            policy=policy,
            environment=environment,
            ends=engine.ends,
            limits=limits,
            retokenise=retokenise,
        )
        self._counts: Counter[str] = Counter()

    def play(self, tasks: Sequence[Task], rollouts: int, step: int) -> list[Episode]:
        """`rollouts` episodes of each task, task by task; rows count up from 0 within the step.

        Raises:
            RuntimeError: All failed: there is nothing to learn from. The first reason is named.
        """
        repeated = [task for task in tasks for _ in range(rollouts)]
        episodes = self._run([self._factual(task, row, step) for row, task in enumerate(repeated)])
        if episodes and all(episode.outcome is None for episode in episodes):
            raise RuntimeError(
                f"All {len(episodes)} episodes of step {step} failed, the first one because: "
                f"{episodes[0].info['reason']}"
            )
        return episodes

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

        A fork whose parent failed, or whose replayed prefix shows something else than the factual
        did, has a null outcome and a reason. Forks that share all noise after the same decision
        share its tail (`tails`). Once a null twin has ended otherwise than its factual, equal
        decisions and shared tails are played out unless a fork says `skip_equal`.

        DIFFERENT is drawn exactly where the engine `explains` and the parent's log-probabilities
        are known, else drawn again up to 64 times while it comes out equal. A maximal coupling
        takes one pass of the policy over each parent, and its logits for as long as forks are
        played: 4 bytes times tokens times vocabulary.

        Raises:
            UsageError: A maximal coupling, or shared luck of an adopted episode, with an engine
                that takes nothing but keys.
            ValueError: A fork of an evaluation's episode, or a Gumbel fork that would share the
                luck of a maximal twin.
        """
        check_coupling(forks)
        for fork in forks:
            self._check(fork)
        logits = self._logits(forks)
        tails = tail_keys(forks, exact_replay=self.exact_replay)
        leaders: dict[Hashable, Play] = {}
        plays = [
            self._forked(fork, logits, tail, leaders)
            for fork, tail in zip(forks, tails, strict=True)
        ]
        played = self._run(plays)
        self.exact_replay = self.exact_replay and not any(map(is_null_that_differs, played))
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
        """Fills `episode.info[need]` of each episode.

        Raises:
            UsageError: Nothing fills this need, or what does cannot for these.
        """
        self.provider(need).provide(episodes)

    def provider(self, need: str) -> Provider:
        """What fills a need; made when it is first asked for.

        Raises:
            UsageError: Nothing fills it.
        """
        if self._needs is None:
            raise UsageError(f"This rollout cannot provide {need!r}: it was made without needs.")
        if need not in self.providers:
            self.providers[need] = self._needs(need)
        return self.providers[need]

    def take_counts(self) -> dict[str, float]:
        """What engine and rollout did since they were last asked, as metrics by name.

        `rollout/drift_count` must be 0: episodes of which the engine was given other ids than the
        learner sees. `rollout/unstable_turns_count` only informs: sampled turns that would be other
        ids if their text were encoded again, out of `rollout/turns_count`.
        """
        counts, self._counts = self._counts, Counter()
        return rollout_metrics(self.engine.counts.take(), counts)

    def _check(self, fork: Fork) -> None:
        """Refuses what no engine, or not this one, can play.

        Raises:
            UsageError, ValueError: As `fork`.
        """
        parent = fork.episode
        if parent.info.get("purpose") == "evaluation":
            raise ValueError(
                f"Episode {parent.name} was played by `evaluate`, whose noise forks "
                "do not have: fork what `play` returns."
            )
        is_explained = fork.luck is SHARED and (fork.is_maximal or bool(logged_noise(fork)))
        if is_explained and not self.engine.explains:
            wanted = "coupling='maximal'" if fork.is_maximal else "the luck of adopted episodes"
            raise UsageError(
                f"{wanted} needs noise that is more than a key, which this engine cannot draw "
                "with: `engine.name=hf` can."
            )

    def _logits(self, forks: Sequence[Fork]) -> TurnLogits:
        """What the turns of maximal forks' parents were drawn from."""
        coupled = [fork.episode for fork in forks if fork.is_maximal]
        parents = [one for one in dict.fromkeys(coupled) if one.outcome is not None]
        return dict(zip(parents, turn_logits(self.policy, parents), strict=True))

    def _factual(self, task: Task, row: int, step: int, streams: Streams = FACTUAL) -> Play:
        blank = blank_episode(task, step=step, row=row)
        return Play(self._setting, blank, luck=Luck(blank, seed=self._seed, factual=streams))

    def _replayed(self, play: Play, logged: LoggedEpisode) -> Episode:
        if play.begin():
            encode, ends = self.policy.encode, self.engine.ends
            play.refuse(adoption.replay(play, logged, encode=encode, ends=ends))
        return play.episode()

    def _forked(
        self, fork: Fork, logits: TurnLogits, tail: Hashable, leaders: dict[Hashable, Play]
    ) -> Play:
        parent = fork.episode
        blank = blank_episode(parent.task, step=parent.step, row=parent.row, fork=fork)
        luck = Luck(
            blank,
            seed=self._seed,
            explains=self.engine.explains,
            shares_tools=self._shares_tools,
            logits=logits,
        )
        return Play(
            self._setting,
            blank,
            luck=luck,
            skips_equal=fork.takes_equal_tail(exact_replay=self.exact_replay),
            tail=tail,
            leaders=leaders,
        )

    def _run(self, plays: Sequence[Play], temperature: float | None = None) -> list[Episode]:
        """Plays all to their ends; a rejected decision takes another round of the engine."""
        temperature = self._temperature if temperature is None else temperature
        waiting = [play for play in plays if play.begin()]
        while waiting:
            self.engine.run(waiting, temperature=temperature)
            waiting = [play for play in waiting if not play.is_over]
        settle(plays)
        for play in plays:
            self._counts.update(play.counts())
        return [play.episode() for play in plays]
