"""How all figures look, and how they become the same bytes twice.

Nothing here touches pyplot or leaves a setting behind. Leaves out what is drawn.
"""

import functools
import io
import math
import re
import string
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, SymmetricalLogLocator
from matplotlib.transforms import ScaledTranslation

from twinstats.credit import METHODS

COLUMN, PAGE = 3.4, 7.0
"""Widths of a figure: one column and the whole page, inches."""

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5A5A5A")
"""Okabe and Ito's palette, told apart by the colour-blind; the first is for twins."""

LABEL_POINTS = 34
"""Height of an axis' ticks and label."""

_MOST_DECADES = 2.5  # of a symmetrical logarithmic axis that names 2 and 5 as well
_FEWEST_NAMED = 3  # numbers of a logarithmic axis
_STEPS = ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
_KEY_INCHES, _LETTER_INCHES = 0.5, 0.06  # of a legend's entry: its line, and each letter

MARKERS = ("o", "s", "D", "^", "v", "P", "X")
MUTED = "#6b6b6b"

SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.5,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.0,
    "pdf.fonttype": 42,
    "pdf.use14corefonts": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "twinstats",
    "savefig.dpi": 200,
    "figure.dpi": 100,
}

P = ParamSpec("P")
R = TypeVar("R")


_LOCK = threading.RLock()


@contextmanager
def house() -> Iterator[None]:
    """The settings of all figures, and a missing glyph is an error, for the time of the block.

    Both are global while it lasts, so one thread is in it at a time.
    """
    with _LOCK, matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Glyph .* missing")
        yield


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """`draw`, run with the settings of the house."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with house():
            return draw(*args, **kwargs)

    return drawn


def panels(
    count: int, *, width: float = PAGE, height: float = 2.7, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, lettered where there are several."""
    figure, rows = grid(1, count, width=width, height=height, ratios=ratios)
    return figure, rows[0]


def grid(
    num_rows: int,
    num_columns: int,
    *,
    width: float = PAGE,
    height: float = 2.7,
    ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with rows of panels, each `height` inches high, lettered where there are several."""
    figure = Figure(figsize=(width, height * num_rows), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(num_rows, num_columns, squeeze=False, width_ratios=ratios)
    if num_rows * num_columns > 1:
        for letter, panel in zip(string.ascii_lowercase, rows.flat, strict=False):
            panel.set_title(letter, loc="left", fontweight="bold")
    return figure, [list(row) for row in rows]


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PDF or PNG, without dates or versions in it.

    Raises:
        ValueError: A character that the font cannot show.
    """
    empty: dict[str, dict[str, Any]] = {
        ".pdf": {"CreationDate": None},
        ".png": {"Software": None},
    }
    with house():
        try:
            _settle(figure)
            figure.savefig(path, metadata=empty[path.suffix])
        except UserWarning as warning:
            raise ValueError(f"{path.name} cannot be drawn: {warning}.") from warning


def _settle(figure: Figure) -> None:
    """Lays the figure out once, for all files it is written to."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def svg(figure: Figure) -> str:
    """A figure as the text of an SVG file."""
    stream = io.StringIO()
    with house():
        _settle(figure)
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"<metadata>.*?</metadata>\s*", "", stream.getvalue(), flags=re.DOTALL)


def looks(names: Sequence[str], first: Sequence[str] = ("twin", "twice")) -> dict[str, dict]:
    """A colour and marker for each name: `first` comes first, the rest in alphabetical order."""
    ordered = sorted(names, key=lambda name: (not name.startswith(tuple(first)), name))
    return {
        name: {
            "color": COLOURS[index % len(COLOURS)],
            "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
        }
        for index, name in enumerate(ordered)
    }


def is_reconstructed(method: str | None) -> bool:
    """Whether a credit method is built from second-hand descriptions."""
    return method in METHODS and METHODS[method].reconstructed


def mark(name: str, method: str | None = None) -> str:
    """A method's name, with an asterisk where it is reconstructed."""
    return f"{name}*" if is_reconstructed(method or name) else name


def log_bars(
    values: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """Lengths of error bars for a log axis: what would reach 0 or below stops at a tenth.

    Args:
        values: Positive values.
        low: Lower bounds; null means no bar.
        high: Upper bounds; null means no bar.
    """
    below, above = [], []
    for value, bottom, top in zip(values, low, high, strict=True):
        bottom = value if bottom is None else max(bottom, value / 10)
        top = value if top is None else top
        below.append(max(value - bottom, 0.0))
        above.append(max(top - value, 0.0))
    return below, above


def short_number(value: float) -> str:
    """A count as an axis shows it: 1.5k, 20M."""
    if value == 0:
        return "0"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"


def bars(panel: Axes, rows: pl.DataFrame, *, is_log: bool = False, **look: Any) -> None:
    """Draws the columns place, value, low, high as points with intervals."""
    if is_log:
        lengths = log_bars(rows["value"].to_list(), rows["low"].to_list(), rows["high"].to_list())
    else:
        low, high = rows["low"].fill_null(rows["value"]), rows["high"].fill_null(rows["value"])
        below, above = rows["value"] - low, high - rows["value"]
        lengths = below.clip(0).to_list(), above.clip(0).to_list()
    shown: dict[str, Any] = {"ls": "", "elinewidth": 0.9, "capsize": 1.5} | look
    panel.errorbar(rows["place"].to_list(), rows["value"].to_list(), yerr=lengths, **shown)


def plain_log_axis(axis: Axis, *, steps: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """Labels a log axis with plain numbers, `steps` in each decade."""
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(lambda value, _: short_number(value))
    axis.set_minor_formatter(NullFormatter())


def steps_within(low: float, high: float) -> tuple[float, ...]:
    """The fewest steps of a decade that name three numbers of a log axis from `low` to `high`."""
    decades = 10.0 ** np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        named = np.outer(decades, steps)
        if np.count_nonzero((named >= low) & (named <= high)) >= _FEWEST_NAMED:
            return steps
    return _STEPS[-1]


def plain_symlog_axis(axis: Axis, *, linear: float) -> None:
    """Labels an axis that is linear up to `linear` and logarithmic beyond with plain numbers.

    The axis has its limits already: between far ones only powers of ten are named.
    """
    ends = np.abs(axis.get_view_interval())
    num_decades = float(np.log10(np.maximum(ends / linear, 1)).sum())
    steps = [1, 2, 5] if num_decades <= _MOST_DECADES else [1]
    axis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=linear, subs=steps))
    axis.set_major_formatter(lambda value, _: signed_number(value))
    axis.set_minor_formatter(NullFormatter())


def signed_number(value: float) -> str:
    """A number that may be negative as an axis shows it."""
    return f"\N{MINUS SIGN}{short_number(-value)}" if value < 0 else short_number(value)


def shared_legend(figure: Figure, panels: Sequence[Axes], *, last: str) -> None:
    """A legend under all panels, one entry a name, whichever panel has it; `last` comes last."""
    found: dict[str, Any] = {}
    for panel in panels:
        handles, texts = panel.get_legend_handles_labels()
        found |= dict(zip(texts, handles, strict=True))
    names = sorted(found, key=lambda name: name == last)
    column = _KEY_INCHES + _LETTER_INCHES * max(map(len, names), default=0)
    figure.legend(
        [found[name] for name in names],
        names,
        loc="outside lower center",
        ncols=max(1, min(len(names), int(figure.get_figwidth() / column))),
    )


def legend_below(panel: Axes, *, num_columns: int = 1) -> None:
    """A legend under the panel's axis label, where it hides nothing."""
    figure = panel.get_figure()
    assert isinstance(figure, Figure)
    below = ScaledTranslation(0, -LABEL_POINTS / 72, figure.dpi_scale_trans)
    panel.legend(
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        bbox_transform=panel.transAxes + below,
        ncols=num_columns,
        borderaxespad=0.0,
        handlelength=1.4,
        columnspacing=1.0,
    )
