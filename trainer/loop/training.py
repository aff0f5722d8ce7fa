"""A run in progress, and what of it a checkpoint holds: saved, and taken up again.

Leaves out the files (`checkpoint`) and when a run is saved (`train`).
"""

import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from trainer.config import LENGTH, MACHINE, Config, from_dict
from trainer.learning.learner import Learner
from trainer.learning.learner_state import optimizer_tensors, restore_learner
from trainer.learning.optimizer import trained_parameters
from trainer.loop.checkpoint import (
    Checkpoint,
    save_checkpoint,
    set_aside,
    whole_checkpoint,
)
from trainer.loop.trackers import Track
from trainer.policy import Policy
from trainer.policy.ruined import refuse_ruined
from trainer.rollout import Rollout
from trainer.tasks.choice import source_of
from twinstats.credit import Method
from twinstats.errors import UsageError
from twinstats.records import Run, flatten, parts, read_run, reopen_run, write_json


@dataclass(frozen=True, slots=True)
class Best:
    """The step with the highest score of an evaluation so far, the earliest of equal ones."""

    step: int
    score: float


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
    best: Best | None = None
    track: Track = lambda step, metrics: None  # until trackers are open

    @property
    def is_over(self) -> bool:
        """Whether the steps or the tokens are used up."""
        length = self.config.length
        return length.share_done(step=self.step, total_tokens=self.total_tokens) == 1.0

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return self.run.path / "checkpoints"

    def note(self, score: float) -> None:
        """Takes the score of an evaluation of this step: it may be the best so far."""
        if self.best is None or score > self.best.score:
            self.best = Best(self.step, score)


def reopened(out: Path, config: Config) -> Run:
    """The folder of a training run to go on with.

    Fields of `MACHINE` may have changed, and those of `LENGTH` where the rate is constant.

    Raises:
        UsageError: No training run there, or one with another configuration or of a version with
            other fields; the fields are named.
    """
    command = str(read_run(out).get("command"))
    if not command.startswith("twice train"):
        raise UsageError(f"{out} was made by {command!r}: only training runs can be resumed.")
    run = reopen_run(
        out,
        asdict(config),
        understood=lambda stored: asdict(from_dict(stored, where=str(out))),
        free=(*MACHINE, *LENGTH),
    )
    schedule, changes = config.optimizer.schedule, length_changes(out, config)
    if changes and schedule != "constant":
        raise UsageError(
            f"{out} cannot go on with another length, {', '.join(changes.values())}: with "
            f"`optimizer.schedule={schedule}` the rate of every step depends on it."
        )
    return run


def length_changes(out: Path, config: Config) -> dict[str, str]:
    """What differs between a run's length and that of a configuration: path to `path (old -> new)`.

    Raises:
        UsageError: No training run there.
    """
    stored = from_dict(read_run(out)["configuration"], where=str(out))
    before, now = flatten(asdict(stored)), flatten(asdict(config))
    return {
        path: f"{path} ({before[path]} -> {now[path]})"
        for path in LENGTH
        if before[path] != now[path]
    }


def note_length(training: Training) -> None:
    """Has `run.json` tell a length that has changed; the run is then not finished any more.

    The first length stays beside it, since services know the run by that.
    """
    path = training.run.path
    if length_changes(path, training.config):
        told = read_run(path)
        first = told["configuration"].get("length", {})
        now = told["configuration"] | {"length": asdict(training.config.length)}
        kept = {"first_length": first} | told
        write_json(path / "run.json", kept | {"configuration": now, "finished": None})


def save(training: Training) -> None:
    """Saves a run; of the checkpoints before, the last `checkpoint.keep` and the best stay.

    Raises:
        RuntimeError: The weights are of no use any more: nothing is saved.
        OSError: The disk is full; earlier checkpoints are untouched.
    """
    refuse_ruined(training.policy, f"step {training.step}, which is not saved,")
    best = training.best
    state = {
        "total_tokens": training.total_tokens,
        "method": training.method.state(),
        "exact_replay": training.rollout.exact_replay,
        "data": source_of(training.config.task).fingerprint(),
        "needs": {need: one.state() for need, one in training.rollout.providers.items()},
        "best": None if best is None else asdict(best),
    }
    needs = {
        f"{need}/{name}": tensor
        for need, provider in training.rollout.providers.items()
        for name, tensor in provider.tensors().items()
    }
    trained = trained_parameters(training.policy.model)
    model = {name: value.detach().clone() for name, value in trained.items()}
    optimizer = optimizer_tensors(training.learner)
    checkpoint = Checkpoint(training.step, model, optimizer, state, needs)
    save_checkpoint(
        training.checkpoints,
        checkpoint,
        keep=training.config.checkpoint.keep,
        best=None if best is None else best.step,
    )


def restore(training: Training, *, fallback: bool = False) -> bool:
    """Takes up the newest checkpoint; false when the run has none.

    Args:
        training: As it was made, before a step.
        fallback: Where the newest is damaged, take the newest whole one before it; those that are
            damaged are renamed, and named in a warning.

    Raises:
        CorruptCheckpointError: The newest checkpoint is damaged, or with `fallback` all are.
        UsageError: It was made with other data, its weights are not this model's, or it has used
            up a length that was changed.
    """
    found = whole_checkpoint(training.checkpoints, fallback=fallback)
    if found is None:
        _refuse_lost_checkpoints(training)
        return False
    checkpoint = found.checkpoint
    if checkpoint.state["data"] != source_of(training.config.task).fingerprint():
        raise UsageError(f"{found.path} was made with other questions or documents than these.")
    _refuse_used_up(training, checkpoint)
    load_weights(training.policy, checkpoint)
    training.rollout.engine.sync()
    restore_learner(training.learner, checkpoint.optimizer)
    training.method.load(checkpoint.state["method"])
    _restore_needs(training, checkpoint)
    training.rollout.exact_replay = checkpoint.state["exact_replay"]
    training.step, training.total_tokens = checkpoint.step, checkpoint.state["total_tokens"]
    best = checkpoint.state.get("best")
    training.best = None if best is None else Best(**best)
    _set_aside(found.damaged, training.step)
    training.run.rewind(training.step)
    return True


def _refuse_used_up(training: Training, checkpoint: Checkpoint) -> None:
    """A length that has changed leaves a step to do: the last one has the final evaluation."""
    path = training.run.path
    now = flatten(asdict(training.config))
    done = {"steps": checkpoint.step, "total_tokens": checkpoint.state["total_tokens"]}
    for name in length_changes(path, training.config):
        most, used = now[name], done[name.removeprefix("length.")]
        if most is not None and most <= used:
            raise UsageError(f"`{name}` must be above the {used} that {path} has done, got {most}.")


def _set_aside(damaged: Iterable[Path], step: int) -> None:
    for path in damaged:
        left = set_aside(path)
        warnings.warn(
            f"{path} is damaged and was renamed {left.name}: training goes on from step {step}.",
            RuntimeWarning,
            stacklevel=2,
        )


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
    """A run without checkpoints starts again only if it had not come to its first step."""
    if logged := len(parts(training.run.path, "episodes")):
        raise UsageError(
            f"{training.run.path} has logged {logged} steps, but its checkpoints are gone: "
            "start again in another folder."
        )


def load_weights(policy: Policy, checkpoint: Checkpoint) -> None:
    """Gives a policy the weights of a checkpoint."""
    own, given = trained_parameters(policy.model), checkpoint.model
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in given.items()}:
        raise UsageError("The checkpoint's weights are not those of this model.")
    with torch.no_grad():
        for name, value in given.items():
            own[name].copy_(value)
