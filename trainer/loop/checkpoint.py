"""Checkpoints: a folder a step, whole or not there, every file under a checksum.

Model and optimizer tensors as safetensors, everything else as JSON; nothing is unpickled.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from twinstats.errors import UsageError
from twinstats.records import sync, write_json

MANIFEST = "manifest.json"
_STATE = "state.json"
_FILES = ("model.safetensors", "optimizer.safetensors", _STATE)
_NEEDS = "needs.safetensors"  # only where a need was learned


class CorruptCheckpointError(ValueError):
    """A checkpoint whose files are not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Whole:
    """The newest checkpoint that is whole, and newer ones that are damaged."""

    path: Path
    checkpoint: "Checkpoint"
    damaged: tuple[Path, ...] = ()


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


def save_checkpoint(
    folder: Path, checkpoint: Checkpoint, *, keep: int, best: int | None = None
) -> Path:
    """Writes a checkpoint under a temporary name and renames it; then removes old ones.

    Args:
        folder: Of all checkpoints of a run.
        checkpoint: The new one.
        keep: How many of the last ones stay.
        best: The step of one that stays besides.

    Raises:
        ValueError: `keep` below 1.
        OSError: The disk is full or not writable; earlier checkpoints are untouched.
    """
    if keep < 1:
        raise ValueError(f"`keep` must be at least 1, got {keep}.")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _name(checkpoint.step)
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
    stays = None if best is None else folder / _name(best)
    for old in checkpoints(folder)[:-keep]:
        if old != stays:
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
    write_json(folder / _STATE, {"step": checkpoint.step, "state": checkpoint.state})
    write_json(folder / MANIFEST, _digests(folder))
    for path in (*folder.iterdir(), folder):
        sync(path)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-[0-9]*"))


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint after checking every file.

    Raises:
        CorruptCheckpointError: A file is missing, is not what the manifest says, or holds none.
    """
    manifest, actual = _manifest(path), _digests(path)
    for name in sorted({*_FILES, *manifest, *actual}):
        _check(path / name, manifest, actual)
    description = load_state(path)
    try:
        return Checkpoint(
            description["step"],
            load_file(path / "model.safetensors"),
            load_file(path / "optimizer.safetensors"),
            description["state"],
            load_file(path / _NEEDS) if _NEEDS in manifest else {},
        )
    except SafetensorError as error:
        raise CorruptCheckpointError(f"{path} holds no checkpoint: {error}.") from error


def load_state(path: Path) -> dict[str, Any]:
    """What a checkpoint holds besides tensors: `step` and `state`.

    Raises:
        CorruptCheckpointError: It is missing, is not what the manifest says, or holds none.
    """
    _check(path / _STATE, _manifest(path), _digests(path, [_STATE]))
    try:
        description = json.loads((path / _STATE).read_text(encoding="utf-8"))
        return {"step": int(description["step"]), "state": dict(description["state"])}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path} holds no checkpoint: {error}.") from error


def _manifest(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads((path / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path} has no readable {MANIFEST}: {error}.") from error


def _check(file: Path, manifest: dict[str, str], actual: dict[str, str]) -> None:
    """Refuses a file that is not what the manifest says."""
    if file.name not in actual or actual[file.name] != manifest.get(file.name):
        raise CorruptCheckpointError(f"{file} is missing or damaged.")


def newest(folder: Path, step: int | None = None) -> Path | None:
    """The newest checkpoint, or that of a step; null when there is none at all.

    Raises:
        UsageError: The step was asked for and is not there.
    """
    found = checkpoints(folder)
    if step is None:
        return found[-1] if found else None
    for path in found:
        if path.name == _name(step):
            return path
    have = ", ".join(str(int(path.name.removeprefix("step-"))) for path in found) or "none"
    raise UsageError(f"{folder} has no checkpoint of step {step}; it has: {have}.")


def named(folder: Path, which: str | None) -> Path | None:
    """The checkpoint of a step, the newest (null), or the `best`; null when there is none at all.

    Raises:
        UsageError: It is not there, or the word is neither a step nor best.
        CorruptCheckpointError: The newest checkpoint, which tells the best, is damaged.
    """
    last = newest(folder)
    if which is None or last is None:
        return last
    if which == "best":
        best = load_state(last)["state"].get("best")
        if best is None:
            raise UsageError(f"{folder} has no best checkpoint: nothing was evaluated.")
        return newest(folder, best["step"])
    if not which.isascii() or not which.isdigit():
        raise UsageError(f"`--checkpoint` takes a step or best, got {which!r}.")
    return newest(folder, int(which))


def whole_checkpoint(folder: Path, *, fallback: bool = False) -> Whole | None:
    """The newest checkpoint, or with `fallback` the newest whole one; null when there is none.

    Raises:
        CorruptCheckpointError: The newest is damaged, or with `fallback` all are.
    """
    damaged: list[Path] = []
    for path in reversed(checkpoints(folder)):
        try:
            return Whole(path, load_checkpoint(path), tuple(damaged))
        except CorruptCheckpointError as error:
            if not fallback:
                raise CorruptCheckpointError(
                    f"{error} `--fallback` goes on from the newest whole checkpoint before it."
                ) from error
            damaged.append(path)
    if damaged:
        raise CorruptCheckpointError(f"All {len(damaged)} checkpoints in {folder} are damaged.")
    return None


def set_aside(path: Path) -> Path:
    """Renames a damaged checkpoint, so that it is none any more; returns where it is now."""
    target, count = path.with_name(f"damaged-{path.name}"), 1
    while target.exists():
        count += 1
        target = path.with_name(f"damaged-{path.name}-{count}")
    path.rename(target)
    sync(path.parent)
    return target


def _digests(folder: Path, names: Iterable[str] = (*_FILES, _NEEDS)) -> dict[str, str]:
    """The checksum of each of these files that is there."""
    files = [folder / name for name in sorted(names)]
    return {one.name: _digest(one) for one in files if one.is_file()}


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
