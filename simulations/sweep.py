"""Runs the settings and seeds of studies on local processes, and writes their tables.

A (setting, seed) is a job; a job is one step of its study's table, written as soon as it is
done, so a killed sweep goes on where it stopped. Results do not depend on the number of workers:
all noise is keyed by setting and seed. Leaves out Ray clusters.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.studies import Which, load_study, settings_of
from twinstats.records import Run, create_run, is_whole, read, reopen_run

_SEEDS_APART = 100_000  # most seeds of a sweep: those of two run seeds never overlap
_QUEUED = 2  # jobs a worker that wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One setting of a study with one seed.

    Attributes:
        study: Name of the study.
        setting: Its setting.
        seed: The seed of all its noise.
        table: Where its rows go.
        step: Its step there.
    """

    study: str
    setting: Any
    seed: int
    table: str
    step: int


def run_sweep(
    names: Sequence[str],
    out: Path,
    *,
    which: Which,
    seed: int,
    workers: int | None,
    resume: bool,
    started: str,
) -> Run:
    """Runs studies into one run folder: a table a study, and what the studies summarise.

    Args:
        names: The studies.
        out: The run folder; new or empty, unless resumed.
        which: How large a sweep.
        seed: The run's seed.
        workers: Processes; null means one a core.
        resume: Go on with a sweep that was killed; a changed configuration is refused.
        started: When, as text.

    Raises:
        UsageError: An unknown study, a folder that holds something, or a changed configuration.
    """
    names = list(dict.fromkeys(names))
    jobs = [job for name in names for job in study_jobs(name, which, seed)]
    configuration = {"which": which, "studies": {name: _described(name, which) for name in names}}
    if resume and (out / "run.json").is_file():
        run = reopen_run(out, configuration | {"seed": seed})
    else:
        run = create_run(
            out,
            command=f"simulate {' '.join(names)}",
            configuration=configuration | {"seed": seed},
            seed=seed,
            started=started,
        )
    waiting = [job for job in jobs if not _is_done(run.part(job.table, job.step))]
    with _progress() as progress:
        bar = progress.add_task("simulate", total=len(jobs), completed=len(jobs) - len(waiting))
        for job, rows in _done(waiting, workers or os.cpu_count() or 1):
            run.write(job.table, job.step, rows)
            progress.advance(bar)
    for name in names:
        _summarise(run, name)
    return run


def study_jobs(name: str, which: Which, seed: int) -> list[Job]:
    """The jobs of a study, numbered from step 0."""
    study = load_study(name)
    pairs = [
        (setting, seed * _SEEDS_APART + number)
        for setting in settings_of(study, which)
        for number in range(study.SEEDS[which])
    ]
    return [
        Job(study=name, setting=setting, seed=own, table=study.TABLE, step=step)
        for step, (setting, own) in enumerate(pairs)
    ]


def play(job: Job) -> list[dict[str, Any]]:
    """The rows of a job: a function of the job alone."""
    rows: list[dict[str, Any]] = load_study(job.study).run(job.setting, job.seed)
    return rows


def _is_done(part: Path) -> bool:
    """Whether a job's rows are there; what is left of them otherwise (a warning) is removed."""
    if not part.exists():
        return False
    if is_whole(part):
        return True
    part.unlink()
    return False


def _done(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, list[dict[str, Any]]]]:
    """Jobs with their rows, as they finish."""
    if workers == 1 or len(jobs) < 2:
        yield from ((job, play(job)) for job in jobs)
        return
    # spawn: workers start clean, whatever threads the parent runs
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context)
    try:
        yield from _pooled(pool, jobs, _QUEUED * workers)
    finally:
        pool.shutdown(cancel_futures=True)


def _pooled(
    pool: ProcessPoolExecutor, jobs: Sequence[Job], most: int
) -> Iterator[tuple[Job, list[dict[str, Any]]]]:
    waiting = iter(jobs)
    running: dict[Future[list[dict[str, Any]]], Job] = {}
    while True:
        for job in waiting:
            running[pool.submit(play, job)] = job
            if len(running) >= most:
                break
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


def _summarise(run: Run, name: str) -> None:
    """Writes what a study says of all its rows, as they are on disk: resumed or not."""
    study = load_study(name)
    if not hasattr(study, "summarise"):
        return
    rows = [row for part in _in_order(run, study.TABLE) for row in part]
    for table, summary in study.summarise(rows).items():
        run.part(table, 0).unlink(missing_ok=True)
        run.write(table, 0, summary)


def _in_order(run: Run, table: str) -> Iterator[list[dict[str, Any]]]:
    frame = read(run.path, table).drop("run").sort("step", maintain_order=True).collect()
    for own in frame.partition_by("step", maintain_order=True):
        yield own.to_dicts()


def _described(name: str, which: Which) -> dict[str, Any]:
    study = load_study(name)
    settings = settings_of(study, which)
    return {
        "seeds": study.SEEDS[which],
        "settings": {setting.name: asdict(setting) for setting in settings},
    }


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not sys.stderr.isatty(),
    )
