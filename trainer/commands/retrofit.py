"""`twice retrofit`."""

import functools
from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.shared import (
    Settings,
    Which,
    now,
    progress_bar,
    trained_config,
    trained_policy,
)
from twinstats.records import refuse_existing

_SHOWN = 5  # failures that are named on the terminal


def retrofit(
    episodes: Annotated[
        Path, typer.Argument(metavar="EPISODES.jsonl", help="One logged episode a line.")
    ],
    policy: Annotated[Path, typer.Option(help="Run folder of the policy that sampled them.")],
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    checkpoint: Which = None,
    settings: Settings = None,
) -> None:
    """Credit the turns of episodes that were sampled elsewhere, by twins that share their luck.

    A line is {"task": ID, "turns": [...], "observations": [...]}: the ids of the task's questions
    joined by +, of each turn the token ids as they were sampled (or its text), and, if known, what
    was shown before each turn. They must have been sampled by the policy, at `rollout.temperature`
    and cut at `rollout.max_turn_tokens`.
    """
    from trainer.logged.episode_log import read_episodes
    from trainer.logged.retrofit import logged_task
    from trainer.logged.retrofit import retrofit as retrofit_episodes
    from trainer.setup import check, make_rollout

    twins = ["credit.method=twice", "credit.options=none"]
    fixed = [*twins, "optimizer.learning_rate=0"]  # it learns nothing
    config = trained_config(policy, [*fixed, *(settings or [])])
    check(config)
    refuse_existing(out, remedy="name another folder")
    task_of = functools.partial(logged_task, config=config)
    logged = read_episodes(episodes, task_of, config.model.vocabulary)
    rollout = make_rollout(trained_policy(policy, checkpoint, config)[0], config)
    with progress_bar() as bar:
        task = bar.add_task(config.credit.method, total=None, note="replay")

        def on_step(step: int, steps: int) -> None:
            bar.update(task, completed=step, total=steps, note=f"step {step} of {steps}")

        found = retrofit_episodes(rollout, config, logged, out, started=now, on_step=on_step)
    for place, reason in found.failures[:_SHOWN]:
        typer.echo(f"{place}: not adopted: {reason}.", err=True)
    typer.echo(
        f"{out}: {len(logged) - len(found.failures)} of {len(logged)} episodes adopted, "
        f"{found.num_forks} forks; {found.num_credited} of {found.num_turns} turns got credit; "
        f"of {found.num_null} null twins {found.num_disagreeing} drew other tokens."
    )
