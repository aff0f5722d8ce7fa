"""Files of JSON lines: an object a line, kept as it was written.

Leaves out what a line means (`logged.episode_log`, `supervised.demonstration_file`, `tasks.files`).
"""

import json
from pathlib import Path
from typing import Any

from twinstats.errors import UsageError


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a file that are not empty, numbered from 1.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def json_object(line: str) -> dict[str, Any]:
    """A line of JSON lines.

    Raises:
        ValueError: It is no JSON object, or has a key twice.
    """
    try:
        row = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"A line must be a JSON object, but {error}.") from error
    if not isinstance(row, dict):
        raise ValueError(f"A line must be a JSON object, got {type(row).__name__}.")
    return row


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is in it twice")
    return row
