"""`twice sft`."""

from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.shared import Settings, now, progress_bar, warmed
from trainer.config import changed
from trainer.recipes import recipe
from twinstats.records import refuse_existing


def sft(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="Whose policy it starts from.")],
    data: Annotated[Path, typer.Option(help="Demonstrations, a JSON object a line.")],
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    epochs: Annotated[int, typer.Option(help="How often each demonstration is seen.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="The highest.")] = 1e-5,
    settings: Settings = None,
) -> None:
    """Warm-start a recipe's policy from demonstrations; train it on with model.pretrained.

    A line is {"messages": [{"role": ..., "content": ...}, ...]}, of which the assistant's messages
    are learned, or {"observations": [...], "turns": [...]}, of which the turns are.
    """
    from trainer.supervised.demonstration_file import read_demonstrations
    from trainer.supervised.sft import sft as fine_tune

    config = changed(recipe(name), settings or [])
    refuse_existing(out, remedy="name another folder")
    policy = warmed(config)
    demonstrations = read_demonstrations(data, policy, config.model.max_length)
    with progress_bar() as bar:
        task = bar.add_task("sft", total=None, note="")

        def progress(step: int, steps: int, loss: float) -> None:
            bar.update(task, completed=step, total=steps, note=f"loss {loss:.3f}")

        folder = fine_tune(
            config,
            policy,
            demonstrations,
            out,
            epochs=epochs,
            learning_rate=learning_rate,
            started=now,
            progress=progress,
        )
    typer.echo(
        f"{folder}: learned {len(demonstrations)} demonstrations. Go on with "
        f"twice train {name} --set model.pretrained={folder}"
    )
