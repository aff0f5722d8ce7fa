"""Puts the page together and writes it.

The page holds no script: its policy forbids all but its own style and inlined pictures, so that
even text that slipped through could not run. Leaves out what is on it (`overview`, `inspector`).
"""

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from paper import logs, style
from paper.build import tables_of
from paper.figures import FIGURES
from paper.report import overview
from twinstats.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureView:
    """A figure on the page.

    Attributes:
        name: Its name.
        picture: Data URI of its SVG.
        width: How wide it is drawn, inches.
        numbers: Data URI of the CSV it was drawn from.
        caption: What it shows.
    """

    name: str
    picture: str
    width: float
    numbers: str
    caption: str


def write_report(runs: Sequence[Path], out: Path) -> None:
    """Writes one self-contained HTML page about runs.

    Args:
        runs: Runs, or folders that hold runs.
        out: A file that does not exist.

    Raises:
        UsageError: No run, or a file that exists.
    """
    folders = logs.expand(runs)
    if out.exists():
        raise UsageError(f"{out} already exists: name another file.")
    content = page(folders)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.write_text(content, encoding="utf-8")
    os.replace(temporary, out)


def page(runs: Sequence[Path]) -> str:
    """The page as text; the same logs give the same text."""
    names = logs.labels(runs)
    tables, missing = tables_of(list(FIGURES), runs)
    figures = []
    for name, table in tables.items():
        module = FIGURES[name]
        drawn = module.draw(table)
        figures.append(
            FigureView(
                name=name,
                picture=_data_uri("image/svg+xml", style.svg(drawn)),
                width=float(drawn.get_figwidth()),
                numbers=_data_uri("text/csv", table.write_csv()),
                caption=module.caption(table),
            )
        )
    return _template().render(
        figures=figures,
        missing=missing,
        tables=overview.training_tables(runs, names),
        runs=[overview.run_view(run, names[run]) for run in runs],
        text_of=overview.text_of,
    )


def _data_uri(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode('ascii')}"


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
