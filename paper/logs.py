"""What the figures know of runs: which there are, what they are called, what was read.

Leaves out the format of a run (`twinstats.records`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from twinstats import records
from twinstats.errors import UsageError


class MissingLogs(UsageError):
    """The logs that a figure is drawn from are not there; the message says how to make them."""


def missing(
    figure: str,
    needs: Sequence[str],
    runs: Sequence[Path],
    command: str,
    *,
    rows: str = "rows of its own",
) -> MissingLogs:
    """The error for a figure whose logs are missing: the tables, or what a table lacks.

    Args:
        figure: Name of the figure.
        needs: Names of the tables it is drawn from; one is enough.
        runs: Where they were looked for.
        command: What makes them.
        rows: What the figure needs of a table that is there.
    """
    found = [table for table in needs if any(readable_parts(run, table) for run in runs)]
    absent = [table for table in needs if table not in found]
    lacks = [f"no {' or '.join(absent)}"] if absent else []
    lacks += [f"no {rows} in {' or '.join(found)}"] if found else []
    where = ", ".join(labels(runs).values())
    return MissingLogs(f"{figure}: {' and '.join(lacks)} in {where}; make it with `{command}`.")


def reasons(rows: pl.DataFrame) -> str:
    """Why the rows have no value, each reason once and in brackets; empty where none is told."""
    told = rows.drop_nulls("reason")["reason"].unique(maintain_order=True).to_list()
    return f" ({'; '.join(told)})" if told else ""


def expand(paths: Sequence[Path]) -> list[Path]:
    """The run folders that were named, each once, in the order of their labels.

    A path is a run, or a folder whose immediate sub-folders are runs.

    Raises:
        UsageError: No path, or one that is neither.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        runs = [path] if _is_run(path) else sorted(filter(_is_run, path.glob("*")))
        if not runs:
            raise UsageError(f"{path} is no run and holds none: there is no run.json.")
        for run in runs:
            found.setdefault(run.resolve(), run)
    if not found:
        raise UsageError("`runs` must name at least one run.")
    names = labels(list(found.values()))
    return sorted(names, key=lambda run: names[run])


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file()


def labels(runs: Sequence[Path]) -> dict[Path, str]:
    """What each run is called: the last folders of its path, as few as tell all runs apart."""
    names = {run: run.resolve().parts for run in runs}
    short: dict[Path, str] = {}
    for run, own in names.items():
        others = [parts for parts in names.values() if parts != own]
        depth = 1
        while depth < len(own) and any(parts[-depth:] == own[-depth:] for parts in others):
            depth += 1
        short[run] = "/".join(own[-depth:])
    return short


def read(runs: Sequence[Path], table: str) -> pl.DataFrame | None:
    """A table of all runs that have it, with each run's label as `run`; null if none has.

    Parts that cannot be read are named in a warning, and the rest is read.
    """
    names = labels(runs)
    frames = [
        records.read(run, table).with_columns(run=pl.lit(names[run]))
        for run in runs
        if readable_parts(run, table)
    ]
    if not frames:
        return None
    return pl.concat(frames, how="diagonal_relaxed").collect()


def describe(runs: Sequence[Path]) -> pl.DataFrame:
    """One row a run: its label, and what of its configuration the figures tell runs apart by."""
    names = labels(runs)
    return pl.DataFrame(
        [_description(names[run], records.read_run(run)) for run in runs],
        schema={
            "run": pl.String,
            "method": pl.String,
            "recipe": pl.String,
            "setting": pl.String,
            "seed": pl.Int64,
            "learns": pl.Boolean,
        },
    )


def _description(label: str, description: dict[str, Any]) -> dict[str, Any]:
    leaves = records.flatten(description.get("configuration") or {})
    return {
        "run": label,
        "method": leaves.get("credit.method"),
        "recipe": leaves.get("recipe"),
        "setting": _setting(leaves),
        "seed": description.get("seed"),
        "learns": leaves.get("optimizer.learning_rate") != 0,
    }


def _setting(leaves: Mapping[str, Any]) -> str | None:
    """What an agent trained on: the recipe, and where it tells questions an episode and reward."""
    recipe, parts = leaves.get("recipe"), leaves.get("task.parts")
    if recipe is None or parts is None:
        return recipe
    reward = f", {leaves['reward']}" if leaves.get("reward") else ""
    return f"{recipe}, {parts} question{'s' * (parts != 1)}{reward}"


def readable_parts(run: Path, table: str) -> list[Path]:
    """The parts of a table that are whole."""
    return [part for part in records.parts(run, table) if _is_whole(part)]


def _is_whole(part: Path) -> bool:
    try:
        pl.read_parquet(part)
    except (pl.exceptions.PolarsError, OSError):
        return False
    return True


def digests(runs: Sequence[Path], tables: Sequence[str]) -> dict[str, str]:
    """SHA-256 of every file that a figure of these tables reads, by the run's label and path."""
    found: dict[str, str] = {}
    for run, name in labels(runs).items():
        parts = [part for table in tables for part in readable_parts(run, table)]
        for file in [run / "run.json", *parts] if parts else []:
            found[f"{name}/{file.relative_to(run).as_posix()}"] = digest(file.read_bytes())
    return dict(sorted(found.items()))


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def study(name: str, key: Sequence[str], runs: Sequence[Path], command: str) -> pl.DataFrame:
    """A table of a study over worlds, one row a key, settings in the order of their horizons.

    Raises:
        MissingLogs: The study was not run.
    """
    found = read(runs, name)
    if found is None:
        raise missing(name, [name], runs, command)
    return (
        found.drop("run", "step", strict=False)
        .unique(key, keep="first", maintain_order=True)
        .sort("world", "horizon", "density", *key, maintain_order=True)
    )
