"""`twice oracle`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainer.commands.shared import (
    Settings,
    Which,
    now,
    progress_bar,
    trained_config,
    trained_policy,
    warmed,
)
from trainer.config import Config, changed
from trainer.recipes import RECIPES, recipe
from twinstats.errors import UsageError
from twinstats.records import refuse_existing

if TYPE_CHECKING:
    from trainer.policy import Policy


def oracle(
    name: Annotated[
        str,
        typer.Argument(metavar="RECIPE|RUN", help="Whose policy: before training, or of a run."),
    ],
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    checkpoint: Which = None,
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the first unfinished batch.")
    ] = False,
    floor: Annotated[
        bool, typer.Option("--floor", help="Measure instead what breaks the replay of twins.")
    ] = False,
) -> None:
    """Compare credit methods with what many fresh rollouts say, on episodes of a fixed policy.

    Besides any field of the recipe, --set takes oracle.NAME=VALUE: episodes (of each setting),
    rollouts (of each state, for the reference), groups and group_size (of a batch), largest_knob.

    With --floor it compares instead replays of the same tasks that are exact, in bfloat16,
    retokenised, or with a random tool, and takes floor.NAME=VALUE: episodes (of each variant),
    twins (of each turn), groups (tasks of a batch).
    """
    from trainer.setup import check

    prefix = "floor." if floor else "oracle."
    own = [one for one in settings or [] if one.startswith(prefix)]
    others = [one for one in settings or [] if not one.startswith(prefix)]
    is_run = name not in RECIPES and Path(name).is_dir()
    config = trained_config(Path(name), others) if is_run else changed(recipe(name), others)
    check(config)
    play = (_floor_study if floor else _oracle_study)(config, own)  # refused before the warm-up
    if not resume:
        refuse_existing(out)
    policy, source = _policy_of(name, checkpoint, config)
    with progress_bar() as bar:
        task = bar.add_task(prefix[:-1], total=None, note="")

        def on_batch(done: int, total: int, setting: str) -> None:
            bar.update(task, completed=done, total=total, note=setting)

        told = play(policy, out, source=source, started=now, resume=resume, on_batch=on_batch)
    for line in told:
        typer.echo(line)


def _oracle_study(config: Config, settings: list[str]) -> Callable[..., list[str]]:
    """What plays the comparison of credit methods and tells what came out."""
    from trainer.oracle.config import OracleStudy, batch_tasks, settings_of
    from trainer.oracle.study import oracle as run_oracle

    study = changed(OracleStudy(), settings).oracle
    for setting in settings_of(config):
        batch_tasks(setting, study)

    def play(policy: "Policy", out: Path, **how: Any) -> list[str]:
        rows = run_oracle(config, policy, out, study=study, **how)
        return [
            f"{row['setting']}, {row['outcome']}: mean {row['mean']:.3f} "
            f"of {row['num_episodes']} episodes"
            + ("" if row["identified"] else f"; not identified: {row['reason']}")
            for row in rows
        ]

    return play


def _floor_study(config: Config, settings: list[str]) -> Callable[..., list[str]]:
    """What plays the variants of the replay and tells what came out."""
    from trainer.oracle.config import FloorStudy, batch_tasks, settings_of
    from trainer.oracle.floor import floor as run_floor

    study = changed(FloorStudy(), settings).floor
    batch_tasks(settings_of(config)[-1], study)

    def play(policy: "Policy", out: Path, **how: Any) -> list[str]:
        rows = run_floor(config, policy, out, study=study, **how)
        return [
            f"{row['setting']}, {row['variant']}, {row['outcome']}: of {row['num_nulls']} null "
            f"twins {row['num_differing']} drew other tokens or failed; "
            + ("no floor" if row["floor"] is None else f"floor {row['floor']:.4f}")
            + ("" if row["at_risk"] is None else f"; {row['at_risk']:.1%} of tokens near a tie")
            for row in rows
        ]

    return play


def _policy_of(
    name: str, checkpoint: str | None, config: Config
) -> "tuple[Policy, dict[str, str | int]]":
    """The policy of a recipe or of a run's checkpoint, and what `run.json` says of it."""
    if name in RECIPES:
        if checkpoint is not None:
            raise UsageError(f"`--checkpoint` is for a run folder; {name!r} is a recipe.")
        return warmed(config), {"recipe": name}
    policy, step = trained_policy(Path(name), checkpoint, config)
    return policy, {"run": Path(name).resolve().name, "checkpoint": step}
