"""Checkpoints: a folder a step, whole or not there, every file under a checksum.

Model and optimizer tensors as safetensors, everything else as JSON; nothing is unpickled.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from twinstats.errors import UsageError
from twinstats.records import sync, write_json

MANIFEST = "manifest.json"
_FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
_NEEDS = "needs.safetensors"  # only where a need was learned


class CorruptCheckpointError(ValueError):
    """A checkpoint whose files are not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        step: Steps done.
        model: The model's tensors by name.
        optimizer: The optimizer's tensors, `index/name` by parameter.
        state: The rest: the method's memory, token counts.
        needs: What providers of needs learned, `need/name` by tensor.
    """

    step: int
    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    state: dict[str, Any]
    needs: dict[str, torch.Tensor] = field(default_factory=dict)


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Writes a checkpoint under a temporary name and renames it; then removes all but `keep`.

    Raises:
        ValueError: `keep` below 1.
        OSError: The disk is full or not writable; earlier checkpoints are untouched.
    """
    if keep < 1:
        raise ValueError(f"`keep` must be at least 1, got {keep}.")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{checkpoint.step:08d}"
    temporary = folder / f".{target.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _write(temporary, checkpoint)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        free = shutil.disk_usage(folder).free
        raise OSError(f"{target} was not written ({free:,} bytes are free): {error}.") from error
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    sync(folder)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    for left in folder.glob(".step-*"):
        shutil.rmtree(left)
    return target


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint's files and sees them onto the disk."""
    folder.mkdir()
    model = {name: tensor.contiguous() for name, tensor in checkpoint.model.items()}
    save_file(model, folder / "model.safetensors")
    save_file(checkpoint.optimizer, folder / "optimizer.safetensors")
    if checkpoint.needs:
        save_file(checkpoint.needs, folder / _NEEDS)
    write_json(folder / "state.json", {"step": checkpoint.step, "state": checkpoint.state})
    write_json(folder / MANIFEST, _digests(folder))
    for path in (*folder.iterdir(), folder):
        sync(path)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-[0-9]*"))


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint after checking every file.

    Raises:
        CorruptCheckpointError: A file is missing, is not what the manifest says, or holds none.
    """
    try:
        manifest = dict(json.loads((path / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path} has no readable {MANIFEST}: {error}.") from error
    actual = _digests(path)
    for name in sorted({*_FILES, *manifest, *actual}):
        if name not in actual or actual[name] != manifest.get(name):
            raise CorruptCheckpointError(f"{path / name} is missing or damaged.")
    try:
        description = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return Checkpoint(
            description["step"],
            load_file(path / "model.safetensors"),
            load_file(path / "optimizer.safetensors"),
            description["state"],
            load_file(path / _NEEDS) if _NEEDS in manifest else {},
        )
    except (KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise CorruptCheckpointError(f"{path} holds no checkpoint: {error}.") from error


def newest(folder: Path, step: int | None = None) -> Path | None:
    """The newest checkpoint, or that of a step; null when there is none at all.

    Raises:
        UsageError: The step was asked for and is not there.
    """
    found = checkpoints(folder)
    if step is None:
        return found[-1] if found else None
    for path in found:
        if path.name == f"step-{step:08d}":
            return path
    have = ", ".join(str(int(path.name.removeprefix("step-"))) for path in found) or "none"
    raise UsageError(f"{folder} has no checkpoint of step {step}; it has: {have}.")


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state as flat tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}/{name}": torch.as_tensor(value).clone()
        for index, values in state.items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Gives an optimizer the state that `optimizer_tensors` took."""
    full = optimizer.state_dict()
    state: dict[int, dict[str, torch.Tensor]] = {}
    for path, value in tensors.items():
        index, name = path.split("/")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": full["param_groups"]})


def _digests(folder: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
        if file.name in (*_FILES, _NEEDS)
    }
