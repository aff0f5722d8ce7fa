"""The commands of the trainer. torch is imported only when one runs."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from trainer.config import Config, changed, from_dict
from trainer.recipes import RECIPES, recipe
from twinstats.errors import UsageError
from twinstats.records import read_run, refuse_existing, reopen_run

if TYPE_CHECKING:
    from trainer.policy import Policy

_SHOWN = 5  # failures that `retrofit` names on the terminal

Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change one field: path=value.", metavar="P=V")
]


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
    with _bar() as bar:
        task = bar.add_task(f"{config.credit.method}", total=config.length.steps, note="")

        def on_step(step: int, metrics: dict[str, float]) -> None:
            share, tokens = metrics["train/outcome_share"], metrics["train/total_tokens"]
            limit = config.length.total_tokens
            done = tokens / limit * config.length.steps if limit else step
            bar.update(task, completed=done, note=f"right {share:.2f}  tokens {tokens:,.0f}")

        return train_policy(config, policy, out, started=_now, resume=resume, on_step=on_step)


def _check_folder(out: Path, config: Config, *, resume: bool) -> None:
    """Refuses the folders that `train` refuses."""
    if resume:
        reopen_run(out, asdict(config))
    else:
        refuse_existing(out)


def warmed(config: Config) -> "Policy":
    """The policy of a configuration before it is trained: pretrained, or warmed up here."""
    from trainer.policy.pretrained import pretrained_policy
    from trainer.setup import cache_folder
    from trainer.warmup import warm_policy

    _quiet()
    if config.model.pretrained:
        return pretrained_policy(config.model, cache_folder())
    with _bar() as bar:
        task = bar.add_task("warm-up", total=config.warmup.steps, note="", visible=False)

        def progress(step: int, steps: int, loss: float) -> None:
            bar.update(task, completed=step, total=steps, visible=True, note=f"loss {loss:.2f}")

        return warm_policy(config, cache_folder(), progress)


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder of `twice train`.")],
    checkpoint: Annotated[int | None, typer.Option(help="Step; default the newest.")] = None,
    settings: Settings = None,
) -> None:
    """Evaluate a run's checkpoint on the test questions, sampled and greedy."""
    from trainer.evaluate import evaluate as evaluate_policy
    from trainer.evaluate import evaluation_tasks
    from trainer.setup import make_rollout

    config = _trained_config(run, settings or [])
    policy, step = _trained_policy(run, checkpoint, config)
    rollout = make_rollout(policy, config)
    for label, temperature in (("sampled", None), ("greedy", 0.0)):
        found, _ = evaluate_policy(rollout, evaluation_tasks(config), 0, temperature=temperature)
        typer.echo(
            f"step {step}, {label}: exact match {found.exact_match:.3f} "
            f"(standard error {found.stderr:.3f}, {found.num_questions} questions), "
            f"all right {found.all_right:.3f}"
        )


def retrofit(
    episodes: Annotated[
        Path, typer.Argument(metavar="EPISODES.jsonl", help="One logged episode a line.")
    ],
    policy: Annotated[Path, typer.Option(help="Run folder of the policy that sampled them.")],
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    checkpoint: Annotated[int | None, typer.Option(help="Step; default the newest.")] = None,
    settings: Settings = None,
) -> None:
    """Credit the turns of episodes that were sampled elsewhere, by twins that share their luck.

    A line is {"task": ID, "turns": [...], "observations": [...]}: the ids of the task's questions
    joined by +, of each turn the token ids as they were sampled (or its text), and, if known, what
    was shown before each turn. They must have been sampled by the policy, at `rollout.temperature`
    and cut at `rollout.max_turn_tokens`.
    """
    from trainer.episode_log import read_episodes
    from trainer.retrofit import logged_task
    from trainer.retrofit import retrofit as retrofit_episodes
    from trainer.setup import check, make_rollout

    twins = ["credit.method=twice", "credit.options=none"]
    fixed = [*twins, "optimizer.learning_rate=0"]  # it learns nothing
    config = _trained_config(policy, [*fixed, *(settings or [])])
    check(config)
    refuse_existing(out, remedy="name another folder")
    task_of = functools.partial(logged_task, config=config)
    logged = read_episodes(episodes, task_of, config.model.vocabulary)
    rollout = make_rollout(_trained_policy(policy, checkpoint, config)[0], config)
    with _bar() as bar:
        task = bar.add_task(config.credit.method, total=None, note="replay")

        def on_step(step: int, steps: int) -> None:
            bar.update(task, completed=step, total=steps, note=f"step {step} of {steps}")

        found = retrofit_episodes(rollout, config, logged, out, started=_now, on_step=on_step)
    for place, reason in found.failures[:_SHOWN]:
        typer.echo(f"{place}: not adopted: {reason}.", err=True)
    typer.echo(
        f"{out}: {len(logged) - len(found.failures)} of {len(logged)} episodes adopted, "
        f"{found.num_forks} forks; {found.num_credited} of {found.num_turns} turns got credit; "
        f"of {found.num_null} null twins {found.num_disagreeing} drew other tokens."
    )


def oracle(
    name: Annotated[
        str,
        typer.Argument(metavar="RECIPE|RUN", help="Whose policy: before training, or of a run."),
    ],
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    checkpoint: Annotated[
        int | None, typer.Option(help="Step of a RUN; default the newest.")
    ] = None,
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
    config = _trained_config(Path(name), others) if is_run else changed(recipe(name), others)
    check(config)
    play = (_floor_study if floor else _oracle_study)(config, own)  # refused before the warm-up
    if not resume:
        refuse_existing(out)
    policy, source = _policy_of(name, checkpoint, config)
    with _bar() as bar:
        task = bar.add_task(prefix[:-1], total=None, note="")

        def on_batch(done: int, total: int, setting: str) -> None:
            bar.update(task, completed=done, total=total, note=setting)

        told = play(policy, out, source=source, started=_now, resume=resume, on_batch=on_batch)
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
            for row in rows
        ]

    return play


def _policy_of(
    name: str, checkpoint: int | None, config: Config
) -> "tuple[Policy, dict[str, str | int]]":
    """The policy of a recipe or of a run's checkpoint, and what `run.json` says of it."""
    if name in RECIPES:
        if checkpoint is not None:
            raise UsageError(f"`--checkpoint` is for a run folder; {name!r} is a recipe.")
        return warmed(config), {"recipe": name}
    policy, step = _trained_policy(Path(name), checkpoint, config)
    return policy, {"run": Path(name).resolve().name, "checkpoint": step}


def _trained_config(run: Path, settings: list[str]) -> Config:
    """The configuration of a training run, changed; never its model."""
    trained = from_dict(read_run(run)["configuration"])
    config = changed(trained, settings)
    if config.model != trained.model:
        raise UsageError("`--set model` cannot change the model that a checkpoint is of.")
    return config


def _trained_policy(run: Path, checkpoint: int | None, config: Config) -> "tuple[Policy, int]":
    """The policy of a run's checkpoint, and its step."""
    from trainer.checkpoint import load_checkpoint, newest
    from trainer.train import load_weights

    path = newest(run / "checkpoints", checkpoint)
    if path is None:
        raise UsageError(f"{run} has no checkpoint yet.")
    loaded = load_checkpoint(path)
    policy = warmed(config)
    load_weights(policy, loaded)
    return policy, loaded.step


def _bar() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _quiet() -> None:
    """Keeps the model library's own progress bars and notices off the terminal."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
