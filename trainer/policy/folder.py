"""A policy as a Hugging Face folder: all of it or nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from trainer.policy import Policy
from twinstats.errors import UsageError
from twinstats.records import sync


def refuse_folder(folder: Path) -> None:
    """Does nothing for a folder that does not exist.

    Raises:
        UsageError: It does.
    """
    if folder.exists():
        raise UsageError(f"{folder} already exists: name another folder.")


def save_folder(policy: Policy, folder: Path) -> None:
    """Writes model (safetensors), config and tokenizer into a new folder.

    Raises:
        UsageError: The folder exists.
    """
    write_folder(folder, policy.save)


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """A new folder with what `write` puts into it; a failed or killed write leaves no such folder.

    It is filled under a temporary name beside it, synced, and renamed.

    Raises:
        UsageError: The folder exists.
    """
    refuse_folder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir()
    try:
        write(temporary)
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(folder.parent)
