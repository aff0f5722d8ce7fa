"""`twice results`: the runs behind docs/results.md, methods at equal sampled tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from twinstats.errors import UsageError
from twinstats.stages import finish

METHODS = ("rloo", "grpo", "gigpo", "vine", "independent", "twice")
SEEDS = {4: 5, 1: 3}
"""Runs a method, by the number of questions of an episode."""


def results(
    out: Annotated[Path, typer.Option(help="Folder of the runs; those that are there go on.")],
    tokens: Annotated[
        int, typer.Option(min=1, help="Sampled tokens of a run, twins included.")
    ] = 80_000,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds a method, where fewer are wanted.")
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Test questions of an evaluation.")] = 500,
) -> None:
    """Train the demo agent with six credit methods at equal sampled tokens, several seeds each.

    Episodes of four questions with five seeds, of one with three: 48 runs of about a minute. Stop
    it whenever you like: called again with the same options it goes on. Then
    `twice figures OUT --out FOLDER` draws the table `training` and the curves.
    """
    _refuse_other_files(out)
    for name, settings in _runs(tokens, seeds, questions):
        words = [word for one in settings for word in ("--set", one)]
        finish("train", out / name, ["demo", *words])


def _runs(tokens: int, seeds: int | None, questions: int) -> Iterator[tuple[str, list[str]]]:
    """Folder and settings of every run, one seed of all methods after the other."""
    for parts, most in SEEDS.items():
        for seed in range(min(most, seeds or most)):
            for method in METHODS:
                yield (
                    f"parts{parts}-{method}-{seed}",
                    [
                        f"seed={seed}",
                        f"task.parts={parts}",
                        f"credit.method={method}",
                        f"length.total_tokens={tokens}",
                        "length.steps=100000",
                        f"evaluation.questions={questions}",
                    ],
                )


def _refuse_other_files(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"`--out` must be a folder, got the file {out}.")
