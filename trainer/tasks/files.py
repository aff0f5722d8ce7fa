"""Rows of files: parquet and JSON lines, each row named by file and number.

Leaves out what a row means (`chat_rows`).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import polars as pl

from trainer.json_lines import json_object, numbered_lines
from twinstats.errors import UsageError


class FileRow(NamedTuple):
    """A row: its number over all files, where it stands, and its columns."""

    number: int
    place: str
    columns: Mapping[str, Any]


class Files:
    """The rows of several files, one after another.

    Args:
        field: The configuration field that names them.
        paths: The files, comma-separated.

    Raises:
        UsageError: A file is missing, of another kind, or cannot be read.
    """

    def __init__(self, field: str, paths: str) -> None:
        self._paths = paths_in(field, paths)
        self._parts = [_read(field, path) for path in self._paths]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __getitem__(self, number: int) -> FileRow:
        rest = number
        for path, rows in zip(self._paths, self._parts, strict=True):
            if rest < len(rows):
                place = f"{path}, row {rest + 1}"
                return FileRow(number, place, rows[rest])
            rest -= len(rows)
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


def _read(field: str, path: Path) -> Sequence[Mapping[str, Any]]:
    if path.suffix not in READERS:
        raise UsageError(
            f"`{field}` must name files that end in {' or '.join(READERS)}, got {path}."
        )
    try:
        return READERS[path.suffix](path)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise UsageError(f"`{field}`: {path} cannot be read: {said}") from error


class _Frame(Sequence[Mapping[str, Any]]):
    """The rows of a table; one becomes Python's only when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._frame = pl.read_parquet(path)

    def __len__(self) -> int:
        return self._frame.height

    def __getitem__(self, number: Any) -> Any:
        return self._frame.row(number, named=True)


def _lines(path: Path) -> list[Mapping[str, Any]]:
    """JSON lines, each value of the type it was written with; what a row lacks is null.

    polars would give a whole column one type, and so turn lists into texts where some are texts.

    Raises:
        ValueError: A line that is no JSON object.
    """
    rows = []
    for number, line in numbered_lines(path):
        try:
            rows.append(json_object(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{**columns, **row} for row in rows]


READERS: Mapping[str, Callable[[Path], Sequence[Mapping[str, Any]]]] = MappingProxyType(
    {".parquet": _Frame, ".jsonl": _lines}
)
