"""`twice watch`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trainer.commands.score_tables import share, wide_console
from trainer.evaluation.scores import EXACT_MATCH, OUTCOME
from trainer.loop.watch import Log, Pair, Point, View

_BARS = " ▁▂▃▄▅▆▇█"
_LENGTH = 40  # of a sparkline
_LINE = 160  # letters of a turn that are shown
_CURVES = {
    "reward": "train/outcome_share",
    "test outcome": OUTCOME,
    "test exact match": EXACT_MATCH,
    "coupling gain": "pairs/coupling_gain_ratio",
    "rho_eff": "pairs/rho_eff_ratio",
    "discordance": "pairs/discordance_share",
    "entropy (nats)": "loss/entropy_nats",
    "KL (nats)": "loss/kl_nats",
}


def watch(
    run: Annotated[Path, typer.Argument(help="A run folder of `twice train`.")],
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
) -> None:
    """Watch a run from another terminal, until it ends or by Ctrl-C."""
    log, console = Log(run), wide_console()
    view = log.look()
    if once:
        console.print(drawing(view))
        return
    with Live(drawing(view), console=console, auto_refresh=False) as live:
        while not view.is_finished:
            time.sleep(every)
            view = log.look()
            live.update(drawing(view), refresh=True)


def drawing(view: View) -> RenderableType:
    """A run as it is shown: curves, tokens, time by stage, the last twin."""
    parts: list[RenderableType] = [_head(view)]
    if view.steps:
        parts.append(_curves(view))
        stages = view.latest("time/")
        if stages:
            parts.append(_stages(stages))
    else:
        parts.append(Text("Nothing is logged yet: the first evaluation comes first.", style="dim"))
    if view.pair is not None:
        parts.append(_twin(view.pair))
    return Panel(Group(*parts), title=view.name, title_align="left")


def sparkline(points: Sequence[Point], length: int = _LENGTH) -> str:
    """A curve in one line of at most `length` letters; a gap where no value is known.

    Each letter is the mean of a stretch of points, between the least and the largest such mean.
    """
    values = np.array([np.nan if value is None else value for _, value in points])
    known = [
        part[np.isfinite(part)] for part in np.array_split(values, min(length, len(values)) or 1)
    ]
    means = [part.mean() if len(part) else None for part in known]
    told = [mean for mean in means if mean is not None]
    if not told:
        return ""
    low, width = min(told), max(told) - min(told)
    levels = [None if mean is None else (mean - low) / width if width else 0.5 for mean in means]
    return "".join(_BARS[0] if one is None else _BARS[1 + round(7 * one)] for one in levels)


def _head(view: View) -> Text:
    configuration = view.description["configuration"]
    length = configuration.get("length", {})
    tokens = view.last("train/total_tokens")
    said = [
        f"{configuration.get('recipe', view.description['command'])}, "
        f"{configuration.get('credit', {}).get('method', 'no method')}",
    ]
    limit = length.get("total_tokens")
    said.append(f"step {view.step}" + ("" if limit else f" of {length.get('steps', '?')}"))
    if tokens is not None:
        said.append(f"{tokens:,.0f} tokens" + (f" of {limit:,}" if limit else ""))
    speed = view.last("time/sampled_tokens_per_second")
    if speed is not None:
        said.append(f"{speed:,.0f} tokens/s")
    said.append("finished" if view.is_finished else f"started {view.description['started']}")
    return Text("  ·  ".join(said), style="bold")


def _curves(view: View) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="cyan")
    for name, metric in _CURVES.items():
        points = view.series(metric)
        if any(value is not None for _, value in points):
            table.add_row(name, share(view.last(metric)), sparkline(points))
    return table


def _stages(stages: dict[str, float]) -> Table:
    """Seconds of each stage of the last step, as bars of their shares; evaluation stands apart."""
    apart = ("step_seconds", "evaluation_seconds")
    names = [one for one in stages if one.endswith("_seconds") and one not in apart]
    whole = stages.get("step_seconds", sum(stages[name] for name in names))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, title_justify="left")
    table.add_row("time of a step", f"{whole:.2f} s", "")
    for name in sorted(names, key=lambda name: -stages[name]):
        bar = "█" * round(30 * min(1.0, stages[name] / whole)) if whole else ""
        table.add_row(f"  {name.removesuffix('_seconds')}", f"{stages[name]:.2f} s", bar)
    if evaluation := stages.get("evaluation_seconds"):
        table.add_row("evaluation, besides", f"{evaluation:.2f} s", "")
    return table


def _twin(pair: Pair) -> Group:
    """Text of a run is shown as it is: it is not markup."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, text, outcome in (
        ("shown", pair.observation, None),
        ("said", pair.factual, pair.outcomes[0]),
        ("twin", pair.twin, pair.outcomes[1]),
    ):
        end = "" if outcome is None else share(outcome)
        table.add_row(name, Text(_line(text)), end)
    title = Text(f"Last twin: step {pair.step}, turn {pair.turn}, and what came out", style="bold")
    return Group(title, table)


def _line(text: str) -> str:
    """A turn in one line, without letters that would move a terminal's cursor."""
    line = "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))
    return line if len(line) <= _LINE else f"…{line[1 - _LINE :]}"
