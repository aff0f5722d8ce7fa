"""`twice evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.shared import Settings, trained_config, trained_policy


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder of `twice train`.")],
    checkpoint: Annotated[int | None, typer.Option(help="Step; default the newest.")] = None,
    settings: Settings = None,
) -> None:
    """Evaluate a run's checkpoint on the test questions, sampled and greedy."""
    from trainer.evaluate import evaluate as evaluate_policy
    from trainer.evaluate import evaluation_tasks
    from trainer.setup import make_rollout

    config = trained_config(run, settings or [])
    policy, step = trained_policy(run, checkpoint, config)
    rollout = make_rollout(policy, config)
    for label, temperature in (("sampled", None), ("greedy", 0.0)):
        found, _ = evaluate_policy(rollout, evaluation_tasks(config), 0, temperature=temperature)
        typer.echo(
            f"step {step}, {label}: exact match {found.exact_match:.3f} "
            f"(standard error {found.stderr:.3f}, {found.num_questions} questions), "
            f"all right {found.all_right:.3f}"
        )
