"""Tables of text as LaTeX (booktabs, over pages) and as Markdown."""

from collections.abc import Iterable

import polars as pl

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "°": r"$^\circ$",
}


def latex(table: pl.DataFrame, caption: str) -> str:
    """A longtable with booktabs' rules; needs the packages booktabs and longtable."""
    head = _latex_row(table.columns)
    lines = [
        f"\\begin{{longtable}}{{{'l' * table.width}}}",
        f"\\caption{{{_latex_text(caption)}}}\\\\",
        "\\toprule",
        head,
        "\\midrule",
        "\\endhead",
        "\\bottomrule",
        "\\endfoot",
        *(_latex_row(row) for row in table.iter_rows()),
        "\\end{longtable}",
    ]
    return "\n".join(lines) + "\n"


def markdown(table: pl.DataFrame, caption: str) -> str:
    """A pipe table under its caption."""
    rows: list[Iterable[object]] = [table.columns, ["---"] * table.width, *table.iter_rows()]
    lines = ["| " + " | ".join(map(_markdown_text, row)) + " |" for row in rows]
    return caption + "\n\n" + "\n".join(lines) + "\n"


def ratio_text(
    ratio: float | None, low: float | None, high: float | None, is_bound: bool | None
) -> str:
    """A ratio of tokens with its interval, whose upper end may be open; empty for null.

    >>> ratio_text(0.25, 0.2, None, True)
    '≤ 0.25 [0.20, ∞]'
    """
    if ratio is None:
        return ""
    sign = "≤ " if is_bound else ""
    bounds = "" if low is None else f" [{low:.2f}, {'∞' if high is None else f'{high:.2f}'}]"
    return f"{sign}{ratio:.2f}{bounds}"


def _latex_row(cells: Iterable[object]) -> str:
    return " & ".join(_latex_text(str(cell)) for cell in cells) + r" \\"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _markdown_text(text: object) -> str:
    escaped = str(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    return escaped.replace("*", "\\*").replace("_", "\\_")
