"""A job of several runs, each a folder: what is finished stays, what is not goes on."""

import time
from collections.abc import Sequence
from pathlib import Path

import typer

from twinstats.cli import invoke
from twinstats.records import read_run


def finish(command: str, folder: Path, arguments: Sequence[str]) -> float:
    """Runs a command of `twice` into a folder, or goes on with it; none if it is finished.

    Returns:
        The seconds that it took now.
    """
    again: list[str] = []
    if (folder / "run.json").exists():
        if read_run(folder)["finished"]:
            return 0.0
        again = ["--resume"]
    typer.echo(f"{folder.name} …", err=True)
    began = time.monotonic()
    invoke(command, [*arguments, "--out", str(folder), *again])
    return time.monotonic() - began
