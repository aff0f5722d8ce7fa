"""`twice train`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.shared import Settings, now, progress_bar, warmed
from trainer.config import Config, changed
from trainer.recipes import recipe
from twinstats.records import refuse_existing, reopen_run


def train(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="What to train: demo, smollm.")],
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint.")
    ] = False,
) -> None:
    """Train an agent with a recipe; any field can be changed by --set."""
    run_training(changed(recipe(name), settings or []), out, resume=resume)


def run_training(config: Config, out: Path, *, resume: bool = False) -> Path:
    """Warms up (or takes from the cache) and trains, with progress bars."""
    from trainer.setup import check
    from trainer.train import train as train_policy
    from trainer.train import train_tasks

    check(config)  # what is refused is refused before the warm-up
    train_tasks(config, step=1)
    _check_folder(out, config, resume=resume)
    policy = warmed(config)
    with progress_bar() as bar:
        task = bar.add_task(f"{config.credit.method}", total=config.length.steps, note="")

        def on_step(step: int, metrics: dict[str, float]) -> None:
            share, tokens = metrics["train/outcome_share"], metrics["train/total_tokens"]
            limit = config.length.total_tokens
            done = tokens / limit * config.length.steps if limit else step
            bar.update(task, completed=done, note=f"right {share:.2f}  tokens {tokens:,.0f}")

        return train_policy(config, policy, out, started=now, resume=resume, on_step=on_step)


def _check_folder(out: Path, config: Config, *, resume: bool) -> None:
    """Refuses the folders that `train` refuses."""
    if resume:
        reopen_run(out, asdict(config))
    else:
        refuse_existing(out)
