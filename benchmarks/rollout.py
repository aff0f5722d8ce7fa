"""What a token of a fork costs, against one of a factual episode: the `hf` engine, demo model.

64 four-part episodes are played, and two forks of each, at turns that spread over the episodes; all
tails are played. Auxiliary tokens are the sampled tokens of forks. "With the environment" is all of
`play` and `fork`; "the engine alone" plays recorded episodes, whose observations are known.

Tails that agree in half of their turns: a draft is what the turn will be (recorded before), with
one token changed at a random place in every other turn.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measure import Limit, report, seconds
from trainer.config import Config, EngineConfig
from trainer.engines import SampledTurn, Session
from trainer.engines.hf import HfEngine
from trainer.noise.sources import Noise
from trainer.rollout import Rollout
from trainer.setup import cache_folder, make_rollout
from trainer.supervised.warmup import warm_policy
from trainer.tasks import rows
from twinstats.episodes import Fork, Task
from twinstats.noise import generator

TASKS, ROLLOUTS, FORKS = 16, 4, 2
PLAIN_GOAL, DRAFTED_GOAL, DRAFTED_TARGET = 1.1, 0.6, 0.8
MOST_PASSES_BEYOND = 2
LONGEST = 8


def main(*, quick: bool = False) -> None:
    """Prints the table, and what is counted rather than timed."""
    plain, drafted = _Step(drafts=False), _Step(drafts=True)
    half = f"half of the turns agree with their draft (target {DRAFTED_TARGET})"
    report(
        "Seconds a token of forks, over seconds a token of factual episodes",
        [
            _row("with the environment, no drafts", plain.ratio, PLAIN_GOAL),
            _row("the engine alone, no drafts", plain.ratio_alone, PLAIN_GOAL),
            _row(f"with the environment, {half}", drafted.ratio, DRAFTED_GOAL),
            _row(f"the engine alone, {half}", drafted.ratio_alone, DRAFTED_GOAL),
        ],
        repeats=5 if quick else 9,
    )
    counts = drafted.counts
    print(f"Drafts: {counts.accepted} of {counts.drafted} tokens accepted.")
    print(f"Tokens before the fork: {plain.counts.reused} reused, ", end="")
    print(f"{plain.counts.reencoded} encoded again (limit 0).")
    beyond = plain.passes_beyond_the_longest()
    print(f"Passes beyond those of the longest fork: {beyond} (limit {MOST_PASSES_BEYOND}).")


def _row(what: str, ratio: Callable[[], float], goal: float) -> Limit:
    def measured(function: Callable[[], object]) -> float:
        return float(function())  # type: ignore[arg-type]

    return Limit(what=what, ours=ratio, limit=goal, unit="of a factual token", measure=measured)


@dataclass(slots=True)
class _Tape:
    """A session as it went: what a session plays again without an environment."""

    start: list[int]
    noises: list[Noise] = field(default_factory=list)
    turns: list[tuple[int, ...]] = field(default_factory=list)
    following: list[list[int] | None] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.turns))


class _Recorder:
    """A session that is written to a tape, with drafts from an earlier one."""

    def __init__(self, session: Session, drafts: Sequence[Sequence[int]] = ()) -> None:
        self._session, self._drafts = session, drafts
        self.tape = _Tape([])

    def start(self) -> list[int]:
        self.tape.start = self._session.start()
        return self.tape.start

    def key(self) -> Noise:
        self.tape.noises.append(self._session.key())
        return self.tape.noises[-1]

    def draft(self) -> Sequence[int]:
        return self._drafts[len(self.tape.turns)] if self._drafts else ()

    def advance(self, turn: SampledTurn) -> list[int] | None:
        self.tape.turns.append(turn.tokens)
        self.tape.following.append(self._session.advance(turn))
        return self.tape.following[-1]

    def fail(self, reason: str) -> None:
        raise RuntimeError(reason)


class _Player:
    """A session that plays a tape."""

    def __init__(self, tape: _Tape, drafts: Sequence[Sequence[int]] = ()) -> None:
        self._tape, self._drafts, self._turn = tape, drafts, 0

    def start(self) -> list[int]:
        return self._tape.start

    def key(self) -> Noise:
        return self._tape.noises[self._turn]

    def draft(self) -> Sequence[int]:
        return self._drafts[self._turn] if self._drafts else ()

    def advance(self, turn: SampledTurn) -> list[int] | None:
        if turn.tokens != self._tape.turns[self._turn]:
            raise RuntimeError("the engine drew other tokens than before")
        self._turn += 1
        return self._tape.following[self._turn - 1]

    def fail(self, reason: str) -> None:
        raise RuntimeError(reason)


class _Recording:
    """An engine that records the sessions of its latest run, and gives them drafts."""

    def __init__(self, engine: HfEngine) -> None:
        self._engine, self.explains, self.counts = engine, engine.explains, engine.counts
        self.drafts: list[list[list[int]]] = []
        self.tapes: list[_Tape] = []

    def run(self, sessions: Sequence[Session], *, temperature: float) -> None:
        drafts = itertools.chain(self.drafts, itertools.repeat(()))
        recorders = [_Recorder(*pair) for pair in zip(sessions, drafts, strict=False)]
        self._engine.run(recorders, temperature=temperature)
        self.tapes = [recorder.tape for recorder in recorders]

    def ends(self, tokens: Sequence[int]) -> bool:
        return self._engine.ends(tokens)

    def sync(self) -> None:
        self._engine.sync()


class _Step:
    """A step's episodes and forks, with the environment and from tape."""

    def __init__(self, *, drafts: bool) -> None:
        config = Config(recipe="demo", engine=EngineConfig(drafts=drafts))
        self._rollout: Rollout = make_rollout(warm_policy(config, cache_folder()), config)
        self._engine: Any = self._rollout.engine
        self._recording = _Recording(self._engine)
        self._rollout.engine = self._recording
        parts = config.task.parts
        found = rows.task_rows("train", parts, key="benchmark")[:TASKS]
        self._tasks = [Task(*row) for row in found]
        self._tapes = self._play()
        self._forks = self._fork()
        self._drafts = [_half_agreeing(tape) for tape in self._forks] if drafts else []
        self._recording.drafts = []
        self.ratio()
        self.counts = self._engine.counts.take()

    def ratio(self) -> float:
        """Seconds a token of forks over seconds a token of factuals, all in all."""
        self._engine.sync()
        factual = seconds(self._play) / _tokens(self._recording.tapes)
        self._engine.counts.take()
        self._recording.drafts = self._drafts
        auxiliary = seconds(self._fork) / _tokens(self._recording.tapes)
        self._recording.drafts = []
        return auxiliary / factual

    def ratio_alone(self) -> float:
        """The same from tape."""
        self._engine.sync()
        factual = seconds(lambda: self._replay(self._tapes)) / _tokens(self._tapes)
        auxiliary = seconds(lambda: self._replay(self._forks, self._drafts))
        return auxiliary / _tokens(self._forks) / factual

    def passes_beyond_the_longest(self) -> int:
        """Passes for all forks, less the most that any of the longest needs alone.

        Not always the one with most tokens: a tail that comes back to its factual finds more.
        """
        together = self._passes(self._forks)
        longest = sorted(self._forks, key=lambda tape: tape.num_tokens)[-LONGEST:]
        return together - max(self._passes([tape]) for tape in longest)

    def _passes(self, tapes: Sequence[_Tape]) -> int:
        self._engine.sync()
        self._replay(self._tapes)
        self._engine.counts.take()
        self._replay(tapes)
        return int(self._engine.counts.take().passes)

    def _play(self) -> list[_Tape]:
        self._episodes = self._rollout.play(self._tasks, rollouts=ROLLOUTS, step=0)
        return self._recording.tapes

    def _fork(self) -> list[_Tape]:
        forks = [
            Fork(episode, (7 * row) % episode.num_turns, alternative=number, skip_equal=False)
            for row, episode in enumerate(self._episodes)
            for number in range(FORKS)
        ]
        self._rollout.fork(forks)
        return self._recording.tapes

    def _replay(
        self, tapes: Sequence[_Tape], drafts: Sequence[Sequence[Sequence[int]]] = ()
    ) -> None:
        pairs = zip(tapes, itertools.chain(drafts, itertools.repeat(())), strict=False)
        self._engine.run([_Player(*pair) for pair in pairs], temperature=1.0)


def _tokens(tapes: Sequence[_Tape]) -> int:
    return sum(tape.num_tokens for tape in tapes)


def _half_agreeing(tape: _Tape) -> list[list[int]]:
    """Drafts of a session's turns; every other one differs from the turn at one place."""
    rng = generator(0, "benchmark")
    drafts = [list(turn) for turn in tape.turns]
    for draft in drafts[int(rng.integers(2)) :: 2]:
        draft[int(rng.integers(len(draft)))] += 1
    return drafts


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
