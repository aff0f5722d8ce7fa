"""What `twice` can do with logs: `figures` and `report`."""

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[list[Path], typer.Argument(help="Runs, or folders that hold runs.")]


def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="A folder that does not exist yet.")],
    only: Annotated[
        list[str] | None, typer.Option("--figure", help="A figure or table_NAME; may be repeated.")
    ] = None,
) -> None:
    """Draws figures from logs: PDF, PNG and the CSV each was drawn from; tables beside them."""
    from paper.build import build_figures

    built = build_figures(runs, out, names=only or None)
    for name in built.figures:
        typer.echo(f"{name}: {out / name}.pdf")
    for name in built.tables:
        typer.echo(f"{name}: {out / name}.md")
    if built.missing:
        typer.echo(
            f"not drawn, what they need is not in the logs: {', '.join(built.missing)} "
            f"({out / 'figures.json'} says what makes it)",
            err=True,
        )


def report(
    runs: Runs, out: Annotated[Path, typer.Option(help="An HTML file that does not exist yet.")]
) -> None:
    """Writes one self-contained page: overview, figures, coupling, and a look into single twins."""
    from paper.report import write_report

    write_report(runs, out)
    typer.echo(f"report: {out}")
