"""`twice train`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainer.commands.dry_run import dry_run
from trainer.commands.progress import training_progress
from trainer.commands.score_tables import last_scores, print_tables
from trainer.commands.shared import Settings, now, warmed
from trainer.config import Config, changed
from trainer.loop.sigterm import Sigterm
from trainer.recipes import RECIPES, recipe
from twinstats.errors import Stopped, UsageError
from twinstats.records import refuse_existing

if TYPE_CHECKING:
    from trainer.distributed.processes import Processes


def train(
    name: Annotated[
        str, typer.Argument(metavar="RECIPE", help=f"What to train: {', '.join(RECIPES)}.")
    ],
    out: Annotated[Path | None, typer.Option(help="Run folder to write.")] = None,
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint.")
    ] = False,
    fallback: Annotated[
        bool,
        typer.Option(
            "--fallback", help="With --resume: where that is damaged, from the newest whole one."
        ),
    ] = False,
    dry: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what it would take on H200s, and start nothing."),
    ] = False,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="With --dry-run: GPUs that learn, default 1.")
    ] = None,
) -> None:
    """Train an agent with a recipe; any field can be changed by --set.

    SIGTERM ends it after the step in progress, which is saved.
    """
    if fallback and not resume:
        raise UsageError("`--fallback` is for --resume.")
    if dry:
        dry_run(changed(recipe(name), settings or []), gpus=gpus or 1)
        return
    if gpus is not None:
        raise UsageError("`--gpus` is for --dry-run; torchrun says how many processes learn.")
    if out is None:
        raise UsageError("`--out` must name the run folder to write.")
    config = changed(recipe(name), settings or [])
    try:
        run_training(config, out, resume=resume, fallback=fallback)
    except KeyboardInterrupt as interrupt:
        raise Stopped(_interrupted(out), is_interrupt=True) from interrupt


def _interrupted(out: Path) -> str:
    """What to tell after Ctrl-C; it may come while what reads checkpoints is still imported."""
    saved = sorted(path.name for path in (out / "checkpoints").glob("step-" + 8 * "[0-9]"))
    if not saved:
        return "stopped by Ctrl-C before anything was saved."
    step = int(saved[-1].removeprefix("step-"))
    return f"stopped by Ctrl-C: step {step} is saved, go on with --resume."


def run_training(
    config: Config, out: Path, *, resume: bool = False, fallback: bool = False
) -> Path:
    """Warms up (or takes from the cache) and trains, with progress bars.

    As one of several processes that `torchrun` started, it follows rank 0.

    Raises:
        UsageError: A run that cannot be made.
        Stopped: SIGTERM came.
    """
    with Sigterm() as sigterm:
        from trainer.distributed.processes import joined  # takes seconds: SIGTERM may come

        with joined() as processes:
            if processes.leads:
                return _trained(config, out, sigterm, processes, resume=resume, fallback=fallback)
            return _followed(config, out, processes)


def _followed(config: Config, out: Path, processes: "Processes") -> Path:
    from trainer.loop.train import follow

    processes.wait()  # until rank 0 has checked the run, and warmed the policy up
    follow(config, warmed(config), processes)
    return out


def _trained(
    config: Config,
    out: Path,
    sigterm: Sigterm,
    processes: "Processes",
    *,
    resume: bool,
    fallback: bool,
) -> Path:
    from trainer.distributed.processes import check_processes
    from trainer.evaluation.evaluate import evaluation_tasks
    from trainer.loop.trackers import check_tracker
    from trainer.loop.train import train as train_policy
    from trainer.loop.train import train_tasks
    from trainer.setup import check

    check(config)  # what is refused is refused before the warm-up
    check_tracker(config)
    check_processes(config, processes)
    train_tasks(config, step=1)
    evaluation_tasks(config)
    _check_folder(out, config, resume=resume)
    policy = warmed(config)
    processes.wait()
    steps: list[int] = []
    with training_progress(config) as shown:

        def on_step(step: int, metrics: dict[str, float]) -> None:
            steps.append(step)
            shown(step, metrics)

        run = train_policy(
            config,
            policy,
            out,
            started=now,
            resume=resume,
            fallback=fallback,
            on_step=on_step,
            sigterm=sigterm,
            processes=processes,
        )
    if resume and not steps:
        length = config.length
        typer.echo(
            f"{out} is at its end (`length.steps` {length.steps}, `length.total_tokens` "
            f"{length.total_tokens or 'none'}): nothing was left to do.",
            err=True,
        )
    print_tables(last_scores(run)[0], stderr=True)
    return run


def _check_folder(out: Path, config: Config, *, resume: bool) -> None:
    """Refuses the folders that `train` refuses, and those that cannot be made."""
    from trainer.loop.training import length_changes, reopened

    if resume:
        reopened(out, config)
        if changes := length_changes(out, config):
            typer.echo(
                f"{out} goes on with another length: {', '.join(changes.values())}.", err=True
            )
        return
    refuse_existing(out)
    nearest = next(one for one in (out.absolute(), *out.absolute().parents) if one.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"`--out` {out} cannot be made: {nearest} is no folder to write in.")
