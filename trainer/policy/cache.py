"""Policies that are kept in a folder once they are made, so that the next run finds them there."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from trainer.policy import Policy, load_policy


def cached(folder: Path, make: Callable[[], Policy]) -> Policy:
    """The policy in a folder, or what `make` returns, kept there for the next time.

    Processes that make one at the same time do not disturb each other: the first folder stays.
    """
    if not (folder / "model.safetensors").is_file():
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            make().save(temporary)
            _publish(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # where saving was stopped
    return load_policy(folder)


def _publish(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:  # another process was first, with the same contents
        if not folder.is_dir():
            raise
