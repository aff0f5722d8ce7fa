"""What several commands use: progress bars, and the policy and configuration of a run."""

import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from trainer.config import Config, changed, from_dict
from twinstats.errors import UsageError
from twinstats.records import read_run

if TYPE_CHECKING:
    from trainer.policy import Policy

Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change one field: path=value.", metavar="P=V")
]

Which = Annotated[
    str | None,
    typer.Option("--checkpoint", help="A step, or best; default the newest.", metavar="STEP|best"),
]


def warmed(config: Config) -> "Policy":
    """The policy of a configuration before it is trained: pretrained, or warmed up here."""
    from trainer.policy.pretrained import pretrained_policy
    from trainer.setup import cache_folder
    from trainer.supervised.warmup import warm_policy

    quiet()
    if config.model.pretrained:
        return pretrained_policy(config.model, cache_folder())
    with progress_bar() as bar:
        task = bar.add_task("warm-up", total=config.warmup.steps, note="", visible=False)

        def progress(step: int, steps: int, loss: float) -> None:
            bar.update(task, completed=step, total=steps, visible=True, note=f"loss {loss:.2f}")

        return warm_policy(config, cache_folder(), progress)


def trained_config(run: Path, settings: list[str]) -> Config:
    """The configuration of a training run, changed; never its model."""
    described = read_run(run)
    command = str(described.get("command"))
    if not command.startswith("twice train"):
        raise UsageError(f"{run} was made by {command!r}: only training runs have checkpoints.")
    trained = from_dict(described["configuration"], where=str(run))
    config = changed(trained, settings)
    if (config.model, config.lora) != (trained.model, trained.lora):
        raise UsageError(
            "`--set` cannot change the model that a checkpoint is of, nor its adapters."
        )
    return config


def trained_policy(run: Path, checkpoint: str | None, config: Config) -> "tuple[Policy, int]":
    """The policy of a run's checkpoint (a step, best, or null: the newest), and its step."""
    from trainer.loop.checkpoint import load_checkpoint, named
    from trainer.loop.training import load_weights
    from trainer.policy.lora import add_adapters
    from trainer.policy.ruined import refuse_ruined

    path = named(run / "checkpoints", checkpoint)
    if path is None:
        raise UsageError(f"{run} has no checkpoint yet.")
    loaded = load_checkpoint(path)
    policy = warmed(config)
    add_adapters(policy.model, config.lora, seed=config.seed)
    load_weights(policy, loaded)
    refuse_ruined(policy, str(path))
    return policy, loaded.step


def progress_bar() -> Progress:
    """A bar on the error stream, with a note; nothing outside a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def quiet() -> None:
    """Keeps the model library's own progress bars and notices off the terminal."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")


def now() -> str:
    """The time, for `run.json`."""
    return datetime.now(UTC).isoformat(timespec="seconds")
