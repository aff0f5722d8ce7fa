"""Rows of files: parquet and JSON lines, read by polars, each row named by file and number.

Leaves out what a row means (`chat_rows`).
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from twinstats.errors import UsageError

READERS = {
    ".parquet": pl.read_parquet,
    ".jsonl": lambda path: pl.read_ndjson(path, infer_schema_length=None),
}


class FileRow(NamedTuple):
    """A row: its number over all files, where it stands, and its columns."""

    number: int
    place: str
    columns: Mapping[str, Any]


class Files:
    """The rows of several files, one after another; a row becomes Python's only when asked for.

    Args:
        field: The configuration field that names them.
        paths: The files, comma-separated.

    Raises:
        UsageError: A file is missing, of another kind, or cannot be read.
    """

    def __init__(self, field: str, paths: str) -> None:
        self._paths = paths_in(field, paths)
        self._frames = [_read(field, path) for path in self._paths]

    def __len__(self) -> int:
        return sum(frame.height for frame in self._frames)

    def __getitem__(self, number: int) -> FileRow:
        rest = number
        for path, frame in zip(self._paths, self._frames, strict=True):
            if rest < frame.height:
                place = f"{path}, row {rest + 1}"
                return FileRow(number, place, frame.row(rest, named=True))
            rest -= frame.height
        raise IndexError(number)


def paths_in(field: str, paths: str) -> list[Path]:
    """The files that a field names, comma-separated.

    Raises:
        UsageError: One is missing.
    """
    found = [Path(path.strip()) for path in paths.split(",") if path.strip()]
    for path in found:
        if not path.is_file():
            raise UsageError(f"`{field}` must name files that exist: {path} does not.")
    return found


@cache
def file_digest(path: Path) -> str:
    """The SHA-256 of a file; read once a process."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(field: str, path: Path) -> pl.DataFrame:
    if path.suffix not in READERS:
        raise UsageError(
            f"`{field}` must name files that end in {' or '.join(READERS)}, got {path}."
        )
    try:
        return READERS[path.suffix](path)
    except (pl.exceptions.PolarsError, OSError) as error:
        said = str(error).splitlines()[0]
        raise UsageError(f"`{field}`: {path} cannot be read: {said}") from error
