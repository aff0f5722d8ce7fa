"""The log: a run is a folder with `run.json` and one folder a table of Parquet parts.

A part holds the rows of one step. It is written under a temporary name, synced and renamed, so a
reader sees all of it or nothing. Parts of different steps may come from different processes.
Leaves out what the rows mean for twins (`rows`).
"""

import importlib.metadata
import json
import math
import os
import re
import subprocess
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from twinstats.errors import UsageError
from twinstats.results import json_value
from twinstats.tables import SCHEMA_VERSION, SCHEMAS

NOISE_LAYOUT = "philox4x32-10/block256/u52"
_SHOWN = 16  # changed fields that a refusal names
_PACKAGES = ("twinstats", "numpy", "scipy", "polars", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is being written.

    Attributes:
        path: Its folder.
    """

    path: Path

    def write(self, table: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes the rows of one step as one part; no rows, no part.

        NaN and infinities become null. For `metrics` the column `reason` then says which it was,
        unless the row brought a reason.

        Raises:
            ValueError: A name that is no identifier, a column the table does not have, a value
                that is not of its column's type, or a step below 0 or written before.
        """
        if not rows:
            return
        if not re.fullmatch(r"[a-z][a-z0-9_]*", table):
            raise ValueError(f"`table` must be lower-case letters, digits and _, got {table!r}.")
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"`step` must be a whole number of at least 0, got {step!r}.")
        part = self.part(table, step)
        if part.exists():
            raise ValueError(f"`step` {step} of table {table!r} is already written in {part}.")
        frame = _frame(table, step, rows)
        part.parent.mkdir(parents=True, exist_ok=True)
        content = {"schema": str(SCHEMA_VERSION)}
        temporary = part.with_suffix(f".{os.getpid()}.tmp")
        frame.write_parquet(temporary, metadata=content)
        _publish(temporary, part)

    def part(self, table: str, step: int) -> Path:
        """The file that holds the rows of a step, written or not."""
        return self.path / table / f"step-{step:08d}.parquet"

    def rewind(self, last_step: int) -> int:
        """Removes what was written after `last_step`, so that it can be written again.

        Returns:
            Number of parts removed.
        """
        parts = [part for part in _all_parts(self.path) if step_of(part) > last_step]
        for part in parts:
            part.unlink()
        for left in self.path.glob("*/*.tmp"):
            left.unlink()
        return len(parts)

    def finish(self, finished: str) -> None:
        """Notes in `run.json` when the run ended."""
        write_json(self.path / "run.json", read_run(self.path) | {"finished": finished})


def create_run(
    path: Path | str, *, command: str, configuration: Mapping[str, Any], seed: int, started: str
) -> Run:
    """A new run folder with its `run.json`.

    Args:
        path: A folder that does not exist or is empty.
        command: What was called, without machine paths.
        configuration: The whole configuration, as JSON can hold it.
        seed: The run's seed.
        started: When, as text: this package has no clock.

    Raises:
        UsageError: The folder holds something already.
    """
    folder = Path(path)
    refuse_existing(folder)
    description = {
        "schema": SCHEMA_VERSION,
        "command": command,
        "configuration": json_value(configuration),
        "seed": seed,
        "commit": _commit(),
        "versions": _versions(),
        "noise": NOISE_LAYOUT,
        "started": started,
        "finished": None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("run.*.tmp"):
        left.unlink()
    write_json(folder / "run.json", description)
    return Run(folder)


def refuse_existing(folder: Path, *, remedy: str = "name another folder, or give --resume") -> None:
    """Does nothing for a folder that is not there or is empty.

    Where a writer was killed before there was a `run.json`, half of one counts as nothing.

    Raises:
        UsageError: It holds something already, or is a file.
    """
    if folder.exists() and (
        not folder.is_dir() or any(not one.match("run.*.tmp") for one in folder.iterdir())
    ):
        raise UsageError(f"{folder} already exists: {remedy}.")


def reopen_run(
    path: Path | str,
    configuration: Mapping[str, Any],
    *,
    understood: Callable[[dict[str, Any]], Mapping[str, Any]] = dict,
    free: Collection[str] = (),
) -> Run:
    """A run folder to go on with.

    Args:
        path: The folder.
        configuration: The whole configuration of now.
        understood: What the configuration that is stored there means to this version.
        free: Dotted paths of fields that may have changed.

    Raises:
        UsageError: No run there, or one with another configuration; the fields are named.
    """
    folder = Path(path)
    before = flatten(understood(read_run(folder)["configuration"]))
    now = flatten(json_value(configuration))
    names = before.keys() | now.keys()
    changed = sorted(n for n in names if n not in free and before.get(n) != now.get(n))
    if changed:
        listed = ", ".join(f"{k} ({before.get(k)} -> {now.get(k)})" for k in changed[:_SHOWN])
        listed += f", {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise UsageError(f"{folder} was made with another configuration: {listed}.")
    for left in (*folder.glob("*.tmp"), *folder.glob("*/*.tmp")):  # of a writer that was killed
        left.unlink()
    return Run(folder)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a nested mapping by their dotted paths."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        leaves |= flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return leaves


def read_run(path: Path | str) -> dict[str, Any]:
    """The contents of a run's `run.json`.

    Raises:
        UsageError: No run there, an unreadable `run.json`, or a newer schema than this reader's.
    """
    file = Path(path) / "run.json"
    if not file.is_file():
        raise UsageError(f"{Path(path)} is no run: it has no run.json.")
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not readable JSON: {error}.") from error
    content = description if isinstance(description, dict) else {}
    if isinstance(content.get("schema"), int):
        _check_schema(content["schema"], file)
        if isinstance(content.get("configuration"), dict):
            return content
    raise UsageError(f"{file} must hold an object with `schema` and `configuration`.")


def read(runs: Path | str | Sequence[Path | str], table: str) -> pl.LazyFrame:
    """A table of one or several runs, with a column `run` that names each.

    It is the folder's name, or its path where two of them have the same name.

    Columns are the union of all parts', whatever their order; what a part lacks is null. A part
    that cannot be read (cut in half, say) is named in a warning, and the rest is read.

    Raises:
        UsageError: No run, no such table in any of them, or a part of a newer schema.
    """
    folders = [Path(runs)] if isinstance(runs, (str, Path)) else [Path(run) for run in runs]
    names = [folder.name for folder in folders]
    frames = []
    for folder in folders:
        read_run(folder)
        label = folder.name if names.count(folder.name) == 1 else str(folder)
        for part in parts(folder, table):
            if is_whole(part):
                frames.append(pl.scan_parquet(part).with_columns(run=pl.lit(label)))
    if not frames:
        have = sorted({name for folder in folders for name in tables(folder)})
        where = ", ".join(str(folder) for folder in folders)
        raise UsageError(f"No table {table!r} in {where}; there are: {', '.join(have) or 'none'}.")
    return pl.concat(frames, how="diagonal_relaxed")


def parts(run: Path | str, table: str) -> list[Path]:
    """The files of a table, by step."""
    return sorted((Path(run) / table).glob("step-*.parquet"))


def tables(run: Path | str) -> list[str]:
    """Names of the tables that hold a part, in alphabetical order."""
    return sorted({part.parent.name for part in _all_parts(Path(run))})


def metric_rows(step: int, values: Mapping[str, float | int | None]) -> list[dict[str, Any]]:
    """Rows of the table `metrics`: one a name, a slash path whose last part has the unit."""
    return [{"step": step, "name": name, "value": value} for name, value in values.items()]


def _frame(table: str, step: int, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    made = [_clean({**row, "step": step}) for row in rows]
    schema = SCHEMAS.get(table)
    if schema is None:
        return pl.DataFrame(made, infer_schema_length=None)
    extra = sorted({name for row in rows for name in row} - schema.keys())
    if extra:
        raise ValueError(
            f"Table {table!r} has no column {', '.join(extra)}; it has {list(schema)}."
        )
    if table == "metrics":
        made = [
            clean | {"reason": _reason(row, clean)} for row, clean in zip(rows, made, strict=True)
        ]
    try:
        return pl.DataFrame(made, schema=schema)
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise ValueError(f"Table {table!r} has columns {schema}: {error}") from error


def _clean(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: json_value(value) for name, value in row.items()}


def _reason(row: Mapping[str, Any], clean: Mapping[str, Any]) -> str | None:
    """Why a metric has no value: the row's own words, or which kind of number it was."""
    if clean.get("reason") is not None or clean.get("value") is not None:
        return clean.get("reason")
    value = row.get("value")
    return "infinite" if value is not None and math.isinf(value) else "undefined"


def _publish(temporary: Path, target: Path) -> None:
    """Syncs a finished file and gives it its name: after a crash it is whole or not there."""
    sync(temporary)
    os.replace(temporary, target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Sees a file's contents, or a folder's names, onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes strict JSON (no NaN) so that a crash leaves the old file or the new one."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    text = json.dumps(json_value(value), indent=1, allow_nan=False, ensure_ascii=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    _publish(temporary, path)


def _all_parts(folder: Path) -> Iterable[Path]:
    return folder.glob("*/step-*.parquet")


def step_of(part: Path) -> int:
    """The step that a part of a table is of."""
    return int(part.stem.removeprefix("step-"))


def is_whole(part: Path) -> bool:
    """Whether all of a part can be read, its pages too; a warning names one that cannot.

    Raises:
        UsageError: A part of a newer schema.
    """
    try:
        content = pl.read_parquet_metadata(part)
        pl.read_parquet(part)
    except (pl.exceptions.PolarsError, OSError) as error:
        warnings.warn(f"{part} cannot be read and is left out: {error}.", stacklevel=3)
        return False
    _check_schema(int(content.get("schema", 0)), part)
    return True


def _check_schema(version: int, where: Path) -> None:
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{where} has schema {version}; this version reads up to {SCHEMA_VERSION}."
        )


def _commit() -> str | None:
    """The commit of the code that runs, null outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
