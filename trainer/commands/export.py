"""`twice export`."""

from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.shared import Which, trained_config, trained_policy


def export(
    run: Annotated[Path, typer.Argument(help="A run folder of `twice train`.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    checkpoint: Which = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add LoRA adapters into the weights.")
    ] = False,
) -> None:
    """Write a run's policy as a Hugging Face folder, with a model card."""
    from trainer.export.folder import export as export_policy
    from trainer.policy.folder import refuse_folder

    config = trained_config(run, [])
    refuse_folder(out)
    policy, step = trained_policy(run, checkpoint, config)
    export_policy(run, policy, config, out, step=step, merge=merge)
    typer.echo(f"{out}: the policy of step {step} of {run.resolve().name}.")
