"""`twice evaluate`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainer.commands.score_tables import print_tables, score_tables
from trainer.commands.shared import Settings, Which, now, trained_config, trained_policy
from twinstats.records import create_run, refuse_existing

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.evaluation.evaluate import Evaluation


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder of `twice train`.")],
    checkpoint: Which = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write, for `twice compare`; default none.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Evaluate a run's checkpoint on the test questions, sampled and greedy.

    Each question is answered once greedily and `evaluation.samples` times sampled.
    """
    from trainer.evaluation.evaluate import evaluate as evaluate_policy
    from trainer.evaluation.evaluate import evaluation_tasks
    from trainer.setup import check_play, make_rollout

    config = trained_config(run, settings or [])
    check_play(config)
    evaluation_tasks(config)
    if out is not None:
        refuse_existing(out, remedy="name another folder")
    started = now()
    policy, step = trained_policy(run, checkpoint, config)
    found = evaluate_policy(make_rollout(policy, config), config)
    if out is not None:
        _write(found, config, out, step=step, started=started)
    print_tables(*score_tables(found.scores, f"{run.name}, step {step}"))


def _write(found: "Evaluation", config: "Config", out: Path, *, step: int, started: str) -> None:
    run = create_run(
        out,
        command="twice evaluate",
        configuration=asdict(config),
        seed=config.seed,
        started=started,
    )
    for table, rows in found.tables.items():
        run.write(table, step, rows)
    run.finish(now())
