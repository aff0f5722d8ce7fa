"""Where metrics are shown besides the log: TensorBoard, Weights & Biases, Trackio.

They are copies. Nothing is ever read back from them, and a run is the same with or without. What a
step has no value for is not sent. Leaves out the log itself (`twinstats.records`).
"""

import contextlib
import hashlib
import importlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.config import Config
from twinstats.errors import UsageError
from twinstats.records import read_run

Track = Callable[[int, Mapping[str, float]], None]
"""Shows the metrics of a step."""

TENSORBOARD = "tensorboard"
"""The folder in a run where TensorBoard's files are."""
_PROJECT = "twinstats"


@contextlib.contextmanager
def tracking(config: Config, run: Path, step: int) -> Iterator[Track]:
    """What `log.tensorboard` and `log.tracker` ask for, open as long as the context lasts.

    Args:
        config: The run's.
        run: Its folder, with a `run.json`.
        step: The last step that is done, -1 before any. Later ones were written by a process that
            was killed and come again: TensorBoard hides the first time, services may show both.

    Raises:
        UsageError: A package is not installed; the command that installs it is named.
    """
    with contextlib.ExitStack() as stack:
        tracks: list[Track] = []
        if config.log.tensorboard:
            tracks.append(stack.enter_context(_tensorboard(run / TENSORBOARD, step)))
        if config.log.tracker != "none":
            tracks.append(stack.enter_context(_service(config, run)))

        def track(step: int, metrics: Mapping[str, float]) -> None:
            known = {name: float(v) for name, v in metrics.items() if math.isfinite(v)}
            for one in tracks:
                one(step, known)

        yield track


def check_tracker(config: Config) -> None:
    """Refuses a tracker that is not installed.

    Raises:
        UsageError: The command that installs it is named.
    """
    if config.log.tracker != "none":
        _module(config.log.tracker)


@contextlib.contextmanager
def _tensorboard(folder: Path, step: int) -> Iterator[Track]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder, purge_step=step + 1) as writer:

        def track(step: int, metrics: Mapping[str, float]) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        yield track


@contextlib.contextmanager
def _service(config: Config, run: Path) -> Iterator[Track]:
    """W&B or Trackio, which have one interface."""
    module = _module(config.log.tracker)
    description = read_run(run)
    digest = _digest(description)
    own = {"dir": str(run), "id": digest} if config.log.tracker == "wandb" else {}
    module.init(
        project=_PROJECT,
        name=f"{run.resolve().name}-{digest}",
        config=description["configuration"],
        resume="allow",
        **own,
    )
    try:
        yield lambda step, metrics: module.log(dict(metrics), step=step)
    finally:
        module.finish()


def _digest(description: Mapping[str, Any]) -> str:
    """Tells runs of one name apart; a resumed run has that of its beginning."""
    kept = {key: description[key] for key in ("configuration", "seed", "started")}
    if "first_length" in description:
        kept["configuration"] = kept["configuration"] | {"length": description["first_length"]}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(
            f"`log.tracker={name}` needs the package {name}: pip install 'twinstats[{name}]'."
        ) from error
