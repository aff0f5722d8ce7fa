"""The command `twice simulate`, and the same for programs: `run_studies`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from simulations.studies import STUDIES, Which, load_study
from simulations.sweep import run_sweep
from twinstats.errors import UsageError


def simulate(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; none: list them.", metavar="STUDY…")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings, few seeds.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="The demo's settings: a minute.")] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; default: one a core.")
    ] = None,
    ray: Annotated[str | None, typer.Option("--ray", help="A Ray cluster's address.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all noise.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a sweep that was killed.")
    ] = False,
) -> None:
    """Runs simulations whose truth is known exactly, and logs what the estimators say of it."""
    if ray is not None:
        raise UsageError(
            "Sweeps on a Ray cluster (extra `ray`) are not in this version: leave out --ray to "
            "run on local processes."
        )
    if not studies:
        typer.echo(study_list())
        return
    for name in studies:
        load_study(name)
    if out is None:
        raise UsageError("`--out` is missing: name the folder that the run is written to.")
    if quick and demo:
        raise UsageError("Give --quick or --demo, not both.")
    which: Which = "quick" if quick else "demo" if demo else "full"
    path = run_studies(studies, out, which=which, seed=seed, workers=workers, resume=resume)
    typer.echo(f"{', '.join(studies)} written to {path}")


def run_studies(
    names: Sequence[str],
    out: Path,
    *,
    which: Which,
    seed: int = 0,
    workers: int | None = None,
    resume: bool = False,
) -> Path:
    """Runs studies into one run folder, a table a study, and returns the folder.

    Args:
        names: The studies.
        out: The run folder.
        which: "full", "quick" or "demo".
        seed: The run's seed.
        workers: Processes; null means one a core.
        resume: Go on with a sweep that was killed.

    Raises:
        UsageError: An unknown study, a folder that holds something, or a changed configuration.
    """
    run = run_sweep(
        names,
        out,
        which=which,
        seed=seed,
        workers=workers,
        resume=resume,
        started=_now(),
    )
    run.finish(_now())
    return run.path


def study_list() -> str:
    """The studies, one line each: name and the first line of what it says of itself."""
    width = max(map(len, STUDIES))
    lines = []
    for name in STUDIES:
        first = (load_study(name).__doc__ or "").strip().splitlines()[0]
        lines.append(f"{name:<{width}}  {first}")
    return "\n".join(lines)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
