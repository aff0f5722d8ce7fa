"""The command `twice demo`: simulate, warm up, train, draw and report, small, on this machine.

It calls the other commands as a user would, by name, and then reads their logs.
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from twinstats.cli import invoke
from twinstats.demo_summary import closing_table, summarise
from twinstats.records import refuse_existing, write_json
from twinstats.stages import finish

METHODS = ("rloo", "independent", "twice")
STUDIES = ("unbiased", "variance", "complexity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much the demo does.

    Attributes:
        studies: Option of `twice simulate` that picks its settings.
        seeds: Training runs a method.
        total_tokens: Sampled tokens of a training run, factual and auxiliary.
        coupling_steps: Steps in which the warmed-up policy's coupling is measured.
        questions: Test questions of an evaluation.
    """

    studies: str
    seeds: int
    total_tokens: int
    coupling_steps: int
    questions: int


DEMO = Size(studies="--demo", seeds=2, total_tokens=80_000, coupling_steps=6, questions=500)
QUICK = Size(studies="--quick", seeds=1, total_tokens=8_000, coupling_steps=1, questions=100)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything it makes.")] = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A small part of everything.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all noise.")] = 0,
) -> None:
    """Run everything once, small: studies, training on real facts, figures, report."""
    if not resume:
        refuse_existing(out)
    size = QUICK if quick else DEMO
    began = time.monotonic()
    seconds = {
        name: finish(command, out / name, arguments)
        for name, command, arguments in _stages(size, seed)
    }
    for made in (out / "figures", out / "report.html"):
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    invoke("figures", [str(out), "--out", str(out / "figures")])
    invoke("report", [str(out), "--out", str(out / "report.html")])
    seconds["all"] = time.monotonic() - began
    summary = summarise(out, seconds)
    write_json(out / "summary.json", summary)
    closing_table(summary)


def _stages(size: Size, seed: int) -> list[tuple[str, str, list[str]]]:
    """Folder, command and arguments of every run, in order."""
    stages = [("simulate", "simulate", [*STUDIES, size.studies, "--seed", str(seed)])]
    # its quick settings are all methods in all worlds: more than a demo wants
    stages.append(("board", "simulate", ["leaderboard", "--demo", "--seed", str(seed)]))
    stages.append(("coupling", "train", ["demo", *_settings(size, seed, _measuring(size))]))
    for index in range(size.seeds):
        for method in METHODS:
            wanted = {"credit.method": method, "length.total_tokens": size.total_tokens}
            wanted["length.steps"] = 100_000
            arguments = ["demo", *_settings(size, seed + index, wanted)]
            stages.append((f"{method}-{seed + index}", "train", arguments))
    return stages


def _measuring(size: Size) -> dict[str, object]:
    """Settings under which nothing is learned: about one twin a turn, each with a control."""
    return {
        "credit.method": "twice",
        "credit.budget": 5,
        "credit.explore": 1,
        "credit.fresh": 1,
        "credit.null": 0.5,
        "optimizer.learning_rate": 0,
        "length.steps": size.coupling_steps,
    }


def _settings(size: Size, seed: int, wanted: dict[str, object]) -> list[str]:
    values = {"seed": seed, "evaluation.questions": size.questions, **wanted}
    return [word for path, value in values.items() for word in ("--set", f"{path}={value}")]
