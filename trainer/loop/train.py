"""The training loop: play, credit, update, log.

Every random choice is keyed by seed and step, so a resumed run continues bit for bit on a CPU.
With several processes this is what rank 0 does, and `follow` what the others do.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from trainer.config import Config
from trainer.distributed.processes import ALONE, Message, Processes
from trainer.evaluation.evaluate import Evaluation, evaluate
from trainer.evaluation.scores import EXACT_MATCH, score_of
from trainer.learning.learner_state import make_learner
from trainer.learning.worker import serve
from trainer.loop.meters import Stopwatch, memory
from trainer.loop.sigterm import Sigterm
from trainer.loop.step_log import log_step, play_metrics
from trainer.loop.trackers import tracking
from trainer.loop.training import Training, note_length, reopened, restore, save
from trainer.policy import Policy
from trainer.policy.lora import add_adapters
from trainer.setup import make_method, make_rollout
from trainer.tasks.choice import source_of
from twinstats.credit import assign
from twinstats.episodes import Credit, Episode, Task, group_by_task
from twinstats.errors import Stopped, UsageError
from twinstats.records import Run, create_run, metric_rows, refuse_existing

OnStep = Callable[[int, dict[str, float]], None]


def train(
    config: Config,
    policy: Policy,
    out: Path,
    *,
    started: Callable[[], str],
    resume: bool = False,
    fallback: bool = False,
    on_step: OnStep | None = None,
    sigterm: Sigterm | None = None,
    processes: Processes = ALONE,
) -> Path:
    """Trains a warmed-up policy into the run folder `out`.

    Args:
        config: The whole configuration.
        policy: Where training starts; it is changed.
        out: A new run folder, or with `resume` one to go on with.
        started: Tells the time, for `run.json`.
        resume: Go on from the newest checkpoint, to another length if the rate is constant.
        fallback: Where the newest checkpoint is damaged, go on from the newest whole one.
        on_step: Gets each step's number and metrics.
        sigterm: Ends training once it has come: the step in progress is finished and saved.
        processes: Those that compute the updates; all others `follow`, and this is rank 0.

    Raises:
        UsageError: The folder exists, or was made with another configuration or other data; or the
            policy answers too little to learn from.
        CorruptCheckpointError: The newest checkpoint is damaged, or with `fallback` all are.
        RuntimeError: What came of the weights is not finite, or (that step is saved) a gradient is
            not, or the policy passed `loss.max_kl`.
        Stopped: `sigterm` came before the last step.
    """
    if not resume:
        refuse_existing(out)
    run = reopened(out, config) if resume else Run(out)
    method = make_method(config)
    add_adapters(policy.model, config.lora, seed=config.seed)
    learner = make_learner(policy, config, processes)
    training = Training(config, policy, make_rollout(policy, config), method, learner, run)
    is_restored = resume and restore(training, fallback=fallback)
    first = {} if is_restored else _begin(training, resume=resume, started=started)
    note_length(training)
    with tracking(config, run.path, training.step if is_restored else -1) as training.track:
        if first:
            training.track(0, first)
        _go_on(training, sigterm or Sigterm(), on_step)
    processes.tell(Message("stop"))
    run.finish(started())
    return run.path


def follow(config: Config, policy: Policy, processes: Processes) -> None:
    """What every process but rank 0 does while that one trains: its share of the updates.

    Args:
        config: The same as rank 0's.
        policy: The same model; rank 0's weights are taken up.
        processes: Those of the run.
    """
    add_adapters(policy.model, config.lora, seed=config.seed)
    serve(make_learner(policy, config, processes))


def _go_on(training: Training, sigterm: Sigterm, on_step: OnStep | None) -> None:
    """Takes the steps that are left, and saves the run now and then."""
    checkpoint = training.config.checkpoint
    sigterm.hold()
    while not training.is_over:
        training.step += 1
        metrics = _step(training)
        if on_step is not None:
            on_step(training.step, metrics)
        score = score_of(metrics)
        if score is not None:
            training.note(score)
        stopping = _stopping(metrics, training.config.loss.max_kl)
        is_due = training.step % checkpoint.every == 0 or score is not None
        if is_due or stopping or sigterm.came:
            save(training)
        if stopping:
            raise RuntimeError(f"Step {training.step} was saved, and training stops: {stopping}")
        if sigterm.came and not training.is_over:
            raise Stopped(
                f"stopped by SIGTERM: step {training.step} is saved, go on with --resume."
            )


def _stopping(metrics: dict[str, float], limit: float | None) -> str | None:
    """Why training must not go on: a bad gradient, or a policy too far from where it started."""
    if metrics["loss/refused_updates_count"]:
        return (
            "a gradient is not finite, so the update was not made: a lower "
            "`optimizer.learning_rate`, a smaller scale of reward and credit, or "
            "`learner.precision=float32` may help."
        )
    if limit is None or not metrics.get("loss/kl_nats", 0.0) > limit:
        return None
    return (
        f"the policy is {metrics['loss/kl_nats']:.3g} nats a token from where training started, "
        f"above `loss.max_kl` {limit:g}."
    )


def _step(training: Training) -> dict[str, float]:
    """One step: episodes, credit, update, logs."""
    config, watch = training.config, Stopwatch()
    training.rollout.take_counts()  # what evaluations did is not the step's
    tasks = train_tasks(config, training.step)
    with watch.stage("play"):
        episodes = training.rollout.play(tasks, config.rollout.group_size, training.step)
    groups = group_by_task(episodes, seed=config.seed, step=training.step)
    with watch.stage("credit"):
        credits = assign(training.rollout, groups, training.method)
    with watch.stage("update"):
        metrics = _update(training, episodes, credits)
    with watch.stage("sync"):
        training.rollout.engine.sync()
    metrics |= training.rollout.take_counts()
    metrics |= play_metrics(groups, credits)
    sampled = int(metrics["train/sampled_tokens"] + metrics["train/auxiliary_tokens"])
    training.total_tokens += sampled
    metrics["train/total_tokens"] = training.total_tokens
    with watch.stage("log"):
        log_step(
            training.run, training.step, groups, credits, policy=training.policy, config=config
        )
    every = config.evaluation.every
    if training.is_over or (every and training.step % every == 0):
        with watch.stage("evaluation"):
            found = evaluate(training.rollout, config)
            _write_evaluation(training, found)
            training.rollout.engine.sync()  # what it encoded is forgotten, as it is after a resume
        metrics |= found.metrics | {"eval/total_tokens": training.total_tokens}
    metrics |= watch.metrics(sampled=sampled, trained=metrics["loss/trained_tokens"]) | memory()
    _log_metrics(training, metrics)
    return metrics


def _update(
    training: Training, episodes: Sequence[Episode], credits: Sequence[Credit]
) -> dict[str, float]:
    """The updates of a step, and what method and providers learn from it."""
    learner, method = training.learner, training.method
    before = learner.turn_logprobs(credits) if method.observes_ratios else None
    metrics = learner.update(credits, training.step, total_tokens=training.total_tokens)
    ratios = None if before is None else learner.ratios(credits, before)
    method.observe(training.step, credits, ratios)
    for provider in training.rollout.providers.values():
        metrics |= provider.learn(episodes)
    return metrics


def _log_metrics(training: Training, metrics: dict[str, float]) -> None:
    training.run.write("metrics", training.step, metric_rows(training.step, metrics))
    training.track(training.step, metrics)


def train_tasks(config: Config, step: int) -> list[Task]:
    """The tasks of a step: a function of seed and step alone."""
    source = source_of(config.task)
    rows = source.train(config.rollout.groups, seed=config.seed, step=step)
    return [Task(row.id, row.info) for row in rows]


def _write_evaluation(training: Training, found: Evaluation) -> None:
    for table, rows in found.tables.items():
        training.run.write(table, training.step, rows)


def _begin(training: Training, *, resume: bool, started: Callable[[], str]) -> dict[str, float]:
    """Evaluates before the first step; only a policy that can be trained leaves a folder."""
    config = training.config
    found = evaluate(training.rollout, config)
    metrics = found.metrics | {"eval/total_tokens": 0}
    _refuse_poor(config, metrics)
    if resume:
        training.run.rewind(-1)
    else:
        create_run(
            training.run.path,
            command=f"twice train {config.recipe}",
            configuration=asdict(config),
            seed=config.seed,
            started=started(),
        )
    _write_evaluation(training, found)
    training.run.write("metrics", 0, metric_rows(0, metrics))
    training.rollout.engine.sync()  # what it encoded is forgotten, as it is after a resume
    score = score_of(metrics)
    assert score is not None, "an evaluation has one"
    training.note(score)
    save(training)
    return metrics


def _refuse_poor(config: Config, metrics: dict[str, float]) -> None:
    """Refuses a policy whose exact match is too low to learn from; one that no task tells is not.

    An outcome of the user's own `reward` has no scale that a limit could be on.
    """
    least, match = config.warmup.minimum_exact_match, metrics.get(EXACT_MATCH, 1.0)
    if not match >= least:
        advice = (
            "a lower limit lets it train"
            if config.model.pretrained
            else "more `warmup.steps` may help"
        )
        raise UsageError(
            f"The policy answers {match:.3f} of the test questions before training, below "
            f"`warmup.minimum_exact_match` {least}: {advice}."
        )
