"""The oracle study: every branching credit method on the episodes of a fixed policy.

The truth of a language model's episode is not known, so it is measured: the value of each state
from many fresh rollouts that no method uses (`reference`). Everything is played once, and
read for each outcome of the task. `rows` explains the tables; besides them `oracle_outcomes`
(one row a setting and outcome, in the end) says whether an outcome varied at all, and `metrics`
what a batch took. Leaves out training, and figures.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from trainer.config import Config
from trainer.oracle.batches import OnBatch, open_run, unfinished
from trainer.oracle.config import OracleConfig, Setting, batch_tasks, settings_of
from trainer.oracle.methods import ENTRANTS, Entrant, knobs
from trainer.oracle.reference import Reference, references
from trainer.oracle.rows import (
    NUMBERS,
    Row,
    coupling_forks,
    fork_row,
    point_numbers,
    reference_rows,
)
from trainer.oracle.worlds import REWARD, Recorded, Rescored
from trainer.policy import Policy
from trainer.rollout import Rollout
from trainer.setup import make_rollout
from trainer.tasks import ENVIRONMENTS
from twinstats.credit import assign
from twinstats.episodes import Episode, Group, Task, group_by_task
from twinstats.errors import UsageError
from twinstats.records import Run, metric_rows, read

TABLE = "oracle_points"
"""The last that a batch writes: with it the batch is finished."""


def oracle(
    config: Config,
    policy: Policy,
    out: Path,
    *,
    study: OracleConfig,
    source: Mapping[str, Any],
    started: Callable[[], str],
    resume: bool = False,
    on_batch: OnBatch | None = None,
) -> list[Row]:
    """Plays the study into the run folder `out`; returns the rows of `oracle_outcomes`.

    Args:
        config: How episodes are played.
        policy: Plays them; it is not changed.
        out: A new run folder, or with `resume` one to go on with.
        study: How much is played.
        source: Where the policy is from, for `run.json`.
        started: Tells the time, for `run.json`.
        resume: Go on with the first batch that is not finished.
        on_batch: Gets the number of batches done, that of all, and the setting.

    Raises:
        UsageError: The folder exists, or was made with another configuration; more tasks are asked
            for than there are.
    """
    settings = settings_of(config)
    tasks = [batch_tasks(setting, study) for setting in settings]  # before anything is written
    whole = asdict(config) | {"oracle": asdict(study), "policy": dict(source)}
    rollouts = functools.cache(lambda number: make_rollout(policy, settings[number].config))
    if not resume:
        rollouts(0)  # what cannot be played leaves no folder
    run = open_run(out, whole, started=started, resume=resume)
    names = [setting.name for setting in settings]
    batches = unfinished(run, names, study.num_batches, table=TABLE, on_batch=on_batch)
    for step, number, batch in batches:
        stage = _Stage(rollouts(number), settings[number], study, run, step)
        stage.play(tasks[number][batch], batch)
    rows = outcome_rows(run)
    run.write("oracle_outcomes", len(settings) * study.num_batches, rows)
    run.finish(started())
    return rows


class _Stage:
    """One batch: its episodes, what was played of them, and where that is written."""

    def __init__(
        self, rollout: Rollout, setting: Setting, study: OracleConfig, run: Run, step: int
    ) -> None:
        self._rollout, self._setting, self._study = rollout, setting, study
        self._run, self._step = run, step
        self._recorded = Recorded(rollout)

    def play(self, tasks: Sequence[Task], batch: int) -> None:
        """Plays and writes the batch: the points last, which make it finished."""
        begun = time.perf_counter()
        self._rollout.exact_replay = True  # no batch depends on those before it
        played = self._rollout.play(tasks, self._study.group_size, self._step)
        episodes = [episode for episode in played if episode.outcome is not None]
        names = getattr(ENVIRONMENTS[self._setting.world], "outcomes", (REWARD,))
        known = references(self._rollout, episodes, names, rollouts=self._study.rollouts)
        points, turns, forks = {}, {}, {}
        for name in names:
            view = Rescored(self._recorded, name)
            copies = {episode: view.view(episode) for episode in played}
            own = {copies[e]: one for e, one in zip(episodes, known[name], strict=True)}
            groups = group_by_task(copies.values(), seed=self._setting.config.seed, step=self._step)
            points[name] = [{"seed": batch} | row for row in self._points(view, groups, own)]
            turns[name] = [row for e, one in own.items() for row in reference_rows(e, one)]
            forks[name] = self._forks(view, own)
        self._write("oracle_turns", turns)
        self._write("oracle_forks", forks)
        counts = self._rollout.take_counts()
        seconds = {"time/batch_seconds": time.perf_counter() - begun}
        self._run.write("metrics", self._step, metric_rows(self._step, counts | seconds))
        self._write(TABLE, points)

    def _points(
        self, view: Rescored, groups: Sequence[Group], known: dict[Episode, Reference]
    ) -> list[Row]:
        return [
            row
            for name, entrant in ENTRANTS.items()
            for row in self._method_rows(name, entrant, view, groups, known)
        ]

    def _method_rows(
        self,
        name: str,
        entrant: Entrant,
        view: Rescored,
        groups: Sequence[Group],
        known: dict[Episode, Reference],
    ) -> list[Row]:
        """One row a knob; a method whose forks the rollout refuses has one that says why."""
        rows = []
        for knob in knobs(self._study.largest_knob):
            method = entrant.build(knob)
            flags = {
                "method": name,
                "estimates_advantage": method.estimates_advantage,
                "reconstructed": method.reconstructed,
                "claims_unbiased": entrant.claims_unbiased,
            }
            try:
                credits = assign(view, groups, method)
            except UsageError as error:
                refused = {"knob": None, "reason": str(error)}
                return [flags | refused | dict.fromkeys(NUMBERS)]
            rows.append(flags | {"knob": float(knob)} | point_numbers(credits, known))
        return rows

    def _forks(self, view: Rescored, known: dict[Episode, Reference]) -> list[Row]:
        found: list[Episode] = []
        for coupling in ("gumbel", "maximal"):
            asked = [
                fork
                for episode in known
                for fork in coupling_forks(episode, self._study.largest_knob, coupling)
            ]
            try:
                found += view.fork(asked)
            except UsageError:  # the engine lacks this coupling: `oracle_points` has the reason
                continue
        return [fork_row(twin) for twin in found if twin.outcome is not None]

    def _write(self, table: str, rows: Mapping[str, Sequence[Row]]) -> None:
        told = [self._known(name) | row for name, own in rows.items() for row in own]
        self._run.write(table, self._step, told)

    def _known(self, outcome: str) -> Row:
        setting = self._setting
        names = {"setting": setting.name, "outcome": outcome, "world": setting.world}
        return names | {"horizon": setting.horizon, "density": None}


def outcome_rows(run: Run) -> list[Row]:
    """Rows of `oracle_outcomes`: `mean` of the factuals, and `variance` within a state.

    That is the mean over states of the variance of their fresh rollouts. Where no two rollouts of
    any state differ, no decision has a credit to be found: `identified` is false.
    """
    turns = read(run.path, "oracle_turns")
    spread = pl.col("value_stderr").cast(pl.Float64) ** 2 * pl.col("num_rollouts")
    key = ["setting", "outcome"]
    states = turns.group_by(key, maintain_order=True).agg(variance=spread.mean())
    episodes = turns.unique([*key, "episode"]).group_by(key)
    counted = episodes.agg(num_episodes=pl.len(), mean=pl.col("factual").mean())
    varies = (pl.col("variance") > 0).fill_null(False)
    why = pl.lit("no two rollouts of a state had another outcome")
    told = states.join(counted, on=key, maintain_order="left").with_columns(
        identified=varies, reason=pl.when(~varies).then(why)
    )
    return told.collect().to_dicts()
