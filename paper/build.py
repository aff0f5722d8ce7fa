"""Writes figures and tables from runs, with the CSV of each and what it was read from.

The same logs give the same bytes. Leaves out what they show (`paper.figures`, `paper.tables`).
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import polars as pl

from paper import logs, style
from paper.figures import FIGURES, FigureModule
from paper.tables import TABLES, TableModule
from paper.tables.formats import latex, markdown
from twinstats.errors import UsageError, unknown
from twinstats.records import refuse_existing, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a build wrote.

    Attributes:
        out: The folder.
        figures: Names of the figures that were drawn.
        tables: Names of the tables that were written, each with `table_` before it.
        missing: For each of the others, why not and the command that makes its logs.
    """

    out: Path
    figures: tuple[str, ...]
    tables: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


def build_figures(runs: Sequence[Path], out: Path, *, names: Sequence[str] | None = None) -> Built:
    """Draws figures into a new folder: NAME.pdf, NAME.png, NAME.csv, NAME.txt, `figures.json`.

    Tables go there too: table_NAME.tex, table_NAME.md, table_NAME.csv. `figures.json` holds for
    each its caption, and the SHA-256 of every log file it was read from and of every file it was
    written to. A crash leaves no folder.

    Args:
        runs: Runs, or folders that hold runs.
        out: A folder that does not exist or is empty.
        names: Which figures, and tables with `table_` before their names; null means all whose logs
            are there.

    Raises:
        UsageError: No run, an unknown name, a folder that holds something, no logs for a figure
            that was asked for by name, or for any.
    """
    known = {name: name for name in FIGURES} | {f"table_{name}": name for name in TABLES}
    wanted = list(known) if names is None else list(dict.fromkeys(names))
    for name in wanted:
        if name not in known:
            raise unknown("figure", name, known)
    folders = logs.expand(runs)
    refuse_existing(out, remedy="name another folder")
    tables, missing = tables_of([name for name in wanted if name in FIGURES], folders)
    listed, absent = _listed([known[name] for name in wanted if name not in FIGURES], folders)
    missing |= absent
    if missing and (names is not None or not (tables or listed)):
        raise UsageError(" ".join(missing.values()))
    _in_new_folder(out, tables, listed, folders, missing)
    return Built(
        out=out,
        figures=tuple(tables),
        tables=tuple(f"table_{name}" for name in listed),
        missing=missing,
    )


def tables_of(
    names: Sequence[str], runs: Sequence[Path]
) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables of the figures whose logs are there, and why the others are missing."""
    tables, absent = {}, {}
    for name in names:
        try:
            tables[name] = FIGURES[name].table(runs)
        except logs.MissingLogs as error:
            absent[name] = str(error)
    return tables, absent


def _listed(
    names: Sequence[str], runs: Sequence[Path]
) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The same for `paper.tables`; what is missing has `table_` before its name."""
    listed, absent = {}, {}
    for name in names:
        try:
            listed[name] = TABLES[name].table(runs)
        except logs.MissingLogs as error:
            absent[f"table_{name}"] = f"table {error}"
    return listed, absent


def _in_new_folder(
    out: Path,
    tables: Mapping[str, pl.DataFrame],
    listed: Mapping[str, pl.DataFrame],
    runs: Sequence[Path],
    missing: Mapping[str, str],
) -> None:
    """Writes everything beside `out`, then gives it its name."""
    out.parent.mkdir(parents=True, exist_ok=True)
    workplace = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    workplace.mkdir()
    try:
        written = {
            name: _write_figure(FIGURES[name], name, table, workplace, runs)
            for name, table in tables.items()
        }
        content = {
            "matplotlib": matplotlib.__version__,
            "figures": written,
            "tables": {
                name: _write_table(TABLES[name], name, table, workplace, runs)
                for name, table in listed.items()
            },
            "missing": dict(missing),
        }
        write_json(workplace / "figures.json", content)
        if out.exists():
            out.rmdir()
        os.replace(workplace, out)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _write_figure(
    module: FigureModule, name: str, table: pl.DataFrame, folder: Path, runs: Sequence[Path]
) -> dict[str, Any]:
    """Writes one figure's files; what `figures.json` says of it."""
    picture = module.draw(table)
    for kind in ("pdf", "png"):
        style.save(picture, folder / f"{name}.{kind}")
    table.write_csv(folder / f"{name}.csv")
    caption = module.caption(table)
    (folder / f"{name}.txt").write_text(caption + "\n", encoding="utf-8")
    files = [folder / f"{name}.{kind}" for kind in ("csv", "pdf", "png", "txt")]
    return _described(caption, files, runs, module.NEEDS)


def _write_table(
    module: TableModule, name: str, table: pl.DataFrame, folder: Path, runs: Sequence[Path]
) -> dict[str, Any]:
    """Writes one table's files; what `figures.json` says of it."""
    shown, caption = module.show(table), module.caption(table)
    files = [folder / f"table_{name}.{kind}" for kind in ("csv", "md", "tex")]
    table.write_csv(files[0])
    files[1].write_text(markdown(shown, caption), encoding="utf-8")
    files[2].write_text(latex(shown, caption), encoding="utf-8")
    return _described(caption, files, runs, module.NEEDS)


def _described(
    caption: str, files: Sequence[Path], runs: Sequence[Path], needs: Sequence[str]
) -> dict[str, Any]:
    return {
        "caption": caption,
        "files": {file.name: logs.digest(file.read_bytes()) for file in files},
        "logs": logs.digests(runs, needs),
    }
