"""The training loop: play, credit, update, log.

Every random choice is keyed by seed and step, so a resumed run continues bit for bit on a CPU.
Leaves out: several processes, schedules.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from trainer.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)
from trainer.config import Config
from trainer.evaluate import evaluate, evaluation_tasks
from trainer.learner import Learner, engine_gap
from trainer.policy import Policy
from trainer.rollout import Rollout
from trainer.setup import make_method, make_optimizer, make_rollout
from trainer.step_log import log_step, play_metrics
from trainer.tasks.questions import data_fingerprint
from trainer.tasks.rows import task_rows
from twinstats.credit import Method, assign
from twinstats.episodes import Task, group_by_task
from twinstats.errors import UsageError
from twinstats.records import Run, create_run, metric_rows, parts, reopen_run
from twinstats.rows import episode_rows

OnStep = Callable[[int, dict[str, float]], None]


@dataclass(slots=True)
class Training:
    """A run in progress."""

    config: Config
    policy: Policy
    rollout: Rollout
    method: Method
    learner: Learner
    run: Run
    step: int = 0
    total_tokens: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the steps or the tokens are used up."""
        limit = self.config.length.total_tokens
        return self.step >= self.config.length.steps or (
            limit is not None and self.total_tokens >= limit
        )

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return self.run.path / "checkpoints"


def train(
    config: Config,
    policy: Policy,
    out: Path,
    *,
    started: Callable[[], str],
    resume: bool = False,
    on_step: OnStep | None = None,
) -> Path:
    """Trains a warmed-up policy into the run folder `out`.

    Args:
        config: The whole configuration.
        policy: Where training starts; it is changed.
        out: A new run folder, or with `resume` one to go on with.
        started: Tells the time, for `run.json`.
        resume: Go on from the newest checkpoint.
        on_step: Gets each step's number and metrics.

    Raises:
        UsageError: The folder exists, or was made with another configuration or other data.
        RuntimeError: The warmed-up policy answers too little to learn from, a gradient is not
            finite, or the policy passed `loss.max_kl`.
    """
    method = make_method(config)  # before anything is written
    run = (
        reopen_run(out, asdict(config))
        if resume
        else create_run(
            out,
            command=f"twice train {config.recipe}",
            configuration=asdict(config),
            seed=config.seed,
            started=started(),
        )
    )
    learner = Learner.of(policy, make_optimizer(policy, config), config)
    training = Training(config, policy, make_rollout(policy, config), method, learner, run)
    if not (resume and _restore(training)):
        run.rewind(-1)
        _evaluate_first(training)
    while not training.is_over:
        training.step += 1
        metrics = _step(training)
        if on_step is not None:
            on_step(training.step, metrics)
        strayed = _strayed(metrics, config.loss.max_kl)
        if training.step % config.checkpoint.every == 0 or training.is_over or strayed:
            _save(training)
        if strayed:
            raise RuntimeError(f"Step {training.step} was saved, and training stops: {strayed}")
    run.finish(started())
    return run.path


def _strayed(metrics: dict[str, float], limit: float | None) -> str | None:
    """Why training must not go on, if the policy is too far from where it started."""
    if limit is None or not metrics.get("loss/kl_nats", 0.0) > limit:
        return None
    return (
        f"the policy is {metrics['loss/kl_nats']:.3g} nats a token from where training started, "
        f"above `loss.max_kl` {limit:g}."
    )


def _step(training: Training) -> dict[str, float]:
    """One step: episodes, credit, update, logs."""
    begun = time.perf_counter()
    config = training.config
    training.rollout.take_counts()  # what evaluations did is not the step's
    tasks = train_tasks(config, training.step)
    episodes = training.rollout.play(tasks, config.rollout.group_size, training.step)
    groups = group_by_task(episodes, seed=config.seed, step=training.step)
    credits = assign(training.rollout, groups, training.method)
    gap = engine_gap(training.policy, episodes, config)
    metrics = training.learner.update(credits, training.step)
    training.rollout.engine.sync()
    training.method.observe(training.step, credits)
    for provider in training.rollout.providers.values():
        metrics |= provider.learn(episodes)
    metrics |= training.rollout.take_counts()
    metrics |= play_metrics(groups, credits)
    training.total_tokens += int(
        metrics["train/sampled_tokens"] + metrics["train/auxiliary_tokens"]
    )
    metrics["train/total_tokens"] = training.total_tokens
    metrics["engine/logprob_gap_nats"] = gap
    metrics["time/step_seconds"] = time.perf_counter() - begun
    log_step(training.run, training.step, groups, credits, policy=training.policy, config=config)
    every = config.evaluation.every
    if training.is_over or (every and training.step % every == 0):
        metrics |= _evaluation_metrics(training)
        training.rollout.engine.sync()  # what it encoded is forgotten, as it is after a resume
    training.run.write("metrics", training.step, metric_rows(training.step, metrics))
    return metrics


def train_tasks(config: Config, step: int) -> list[Task]:
    """The tasks of a step: a function of seed and step alone."""
    try:
        rows = task_rows("train", config.task.parts, key=f"train/{config.seed}/{step}")
    except ValueError as error:
        raise UsageError(f"`task.parts`: {error}") from error
    if len(rows) < config.rollout.groups:
        raise UsageError(
            f"`rollout.groups` must be at most {len(rows)}, the tasks of {config.task.parts} "
            f"questions that there are, got {config.rollout.groups}."
        )
    return [Task(row.id, row.info) for row in rows[: config.rollout.groups]]


def _evaluation_metrics(training: Training) -> dict[str, float]:
    tasks = evaluation_tasks(training.config)
    sampled, episodes = evaluate(training.rollout, tasks, 0)
    greedy, _ = evaluate(training.rollout, tasks, 0, temperature=0.0)
    rows = episode_rows(episodes, "evaluation")
    training.run.write("evaluations", training.step, rows)
    return {
        "eval/exact_match_share": sampled.exact_match,
        "eval/stderr_share": sampled.stderr,
        "eval/all_right_share": sampled.all_right,
        "eval/greedy_exact_match_share": greedy.exact_match,
        "eval/greedy_stderr_share": greedy.stderr,
        "eval/num_questions_count": sampled.num_questions,
        "eval/failed_count": sampled.num_failed,
        "eval/total_tokens": training.total_tokens,
    }


def _evaluate_first(training: Training) -> None:
    """Evaluates before the first step, and refuses a policy that has not learned to search."""
    metrics = _evaluation_metrics(training)
    training.run.write("metrics", 0, metric_rows(0, metrics))
    least = training.config.warmup.minimum_exact_match
    if not metrics["eval/exact_match_share"] >= least:  # none where every episode failed
        raise RuntimeError(
            f"The warmed-up policy answers {metrics['eval/exact_match_share']:.3f} of the test "
            f"questions, below `warmup.minimum_exact_match` {least}: more `warmup.steps` may help."
        )


def _save(training: Training) -> None:
    state = {
        "total_tokens": training.total_tokens,
        "method": training.method.state(),
        "exact_replay": training.rollout.exact_replay,
        "data": data_fingerprint(),
        "needs": {need: one.state() for need, one in training.rollout.providers.items()},
    }
    needs = {
        f"{need}/{name}": tensor
        for need, provider in training.rollout.providers.items()
        for name, tensor in provider.tensors().items()
    }
    model = {
        name: value.detach().clone() for name, value in training.policy.model.named_parameters()
    }
    optimizer = optimizer_tensors(training.learner.optimizer)
    checkpoint = Checkpoint(training.step, model, optimizer, state, needs)
    save_checkpoint(training.checkpoints, checkpoint, keep=training.config.checkpoint.keep)


def _restore(training: Training) -> bool:
    """Takes up the newest checkpoint; false when the run has none."""
    path = newest(training.checkpoints)
    if path is None:
        _refuse_lost_checkpoints(training)
        return False
    checkpoint = load_checkpoint(path)
    if checkpoint.state["data"] != data_fingerprint():
        raise UsageError(f"{path} was made with other questions or documents than these.")
    load_weights(training.policy, checkpoint)
    training.rollout.engine.sync()
    restore_optimizer(training.learner.optimizer, checkpoint.optimizer)
    training.method.load(checkpoint.state["method"])
    _restore_needs(training, checkpoint)
    training.rollout.exact_replay = checkpoint.state["exact_replay"]
    training.step, training.total_tokens = checkpoint.step, checkpoint.state["total_tokens"]
    training.run.rewind(training.step)
    return True


def _restore_needs(training: Training, checkpoint: Checkpoint) -> None:
    """Gives the providers what they had learned."""
    for need, state in checkpoint.state["needs"].items():
        own = f"{need}/"
        learned = {
            name.removeprefix(own): tensor
            for name, tensor in checkpoint.needs.items()
            if name.startswith(own)
        }
        training.rollout.provider(need).load(state, learned)


def _refuse_lost_checkpoints(training: Training) -> None:
    """A run without checkpoints starts again only if it had not come to its first one."""
    logged = len(parts(training.run.path, "episodes"))
    if logged > training.config.checkpoint.every:
        raise UsageError(
            f"{training.run.path} has logged {logged} steps, but its checkpoints are gone: "
            "start again in another folder."
        )


def load_weights(policy: Policy, checkpoint: Checkpoint) -> None:
    """Gives a policy the weights of a checkpoint."""
    own, given = dict(policy.model.named_parameters()), checkpoint.model
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in given.items()}:
        raise UsageError("The checkpoint's weights are not those of this model.")
    with torch.no_grad():
        for name, value in given.items():
            own[name].copy_(value)
