"""What a run's log says right now, for people who look on from another terminal.

Reads files alone, each once, so it can look while a run is written. Leaves out drawing
(`commands.watch`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from twinstats.records import is_whole, parts, read_run, step_of

Point = tuple[int, float | None]
"""A step and the value of a metric there, null where undefined."""


@dataclass(slots=True)
class Log:
    """A run's log as far as it was read.

    Attributes:
        run: Its folder.
    """

    run: Path
    _metrics: dict[tuple[Path, int], dict[str, float | None]] = field(default_factory=dict)

    def look(self) -> "View":
        """The run as it is now; parts that were read before are not read again.

        Raises:
            UsageError: The folder is no run.
        """
        description = read_run(self.run)
        now = _versions(parts(self.run, "metrics"))
        self._metrics = {
            part: self._metrics[part] if part in self._metrics else _values(part[0]) for part in now
        }
        steps = {step_of(part): own for (part, _), own in self._metrics.items()}
        return View(self.run.resolve().name, description, steps, last_pair(self.run))


@dataclass(frozen=True, slots=True)
class View:
    """A run at one moment.

    Attributes:
        name: Of its folder.
        description: Its `run.json`.
        steps: The metrics of every step that is logged, by name.
        pair: The last twin whose text was logged, beside its factual; null before any.
    """

    name: str
    description: Mapping[str, Any]
    steps: Mapping[int, Mapping[str, float | None]]
    pair: "Pair | None"

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end."""
        return self.description["finished"] is not None

    @property
    def step(self) -> int:
        """The last step that is logged; 0 before any."""
        return max(self.steps, default=0)

    def series(self, name: str) -> list[Point]:
        """All values of a metric, by step."""
        return [(step, own[name]) for step, own in sorted(self.steps.items()) if name in own]

    def last(self, name: str) -> float | None:
        """The last value of a metric that is not null."""
        known = [value for _, value in self.series(name) if value is not None]
        return known[-1] if known else None

    def latest(self, prefix: str) -> dict[str, float]:
        """The known metrics of the last step under a prefix, without it."""
        own = self.steps.get(self.step, {})
        return {
            name.removeprefix(prefix): value
            for name, value in own.items()
            if name.startswith(prefix) and value is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A twin beside its factual, with the text of the decision that differs.

    Attributes:
        step: When they were played.
        turn: The turn that was decided again.
        observation: What was shown before it; empty where that was not logged.
        factual: What the factual said.
        twin: What its twin said.
        outcomes: Of the factual and of the twin.
    """

    step: int
    turn: int
    observation: str
    factual: str
    twin: str
    outcomes: tuple[float, float]


def last_pair(run: Path) -> Pair | None:
    """The last twin whose decision and outcome are known and whose text was logged.

    Of the newest step with one, a twin that decided otherwise and ended otherwise is shown first.
    """
    for part in reversed(parts(run, "texts")):
        pairs = part.parents[1] / "pairs" / part.name
        if pairs.is_file() and is_whole(pairs) and is_whole(part):
            return _pair(pl.read_parquet(pairs), pl.read_parquet(part))
    return None


def _pair(pairs: pl.DataFrame, texts: pl.DataFrame) -> Pair | None:
    said = {
        (episode, turn, role): text
        for episode, turn, role, text in texts.select("episode", "turn", "role", "text").iter_rows()
    }
    known = pairs.filter(kind="twin").drop_nulls(["factual_outcome", "twin_outcome"])
    differs = pl.col("factual_outcome") != pl.col("twin_outcome")
    for row in known.sort(pl.col("equal"), ~differs, maintain_order=True).to_dicts():
        actions = [said.get((row[who], row["turn"], "action")) for who in ("factual", "twin")]
        if None not in actions:
            return Pair(
                step=row["step"],
                turn=row["turn"],
                observation=said.get((row["factual"], row["turn"], "observation"), ""),
                factual=str(actions[0]),
                twin=str(actions[1]),
                outcomes=(row["factual_outcome"], row["twin_outcome"]),
            )
    return None


def _versions(files: Iterable[Path]) -> list[tuple[Path, int]]:
    """Files with when they were written: a resumed run writes some of them anew."""
    found = []
    for file in files:
        try:
            found.append((file, file.stat().st_mtime_ns))
        except FileNotFoundError:  # a run that resumes is just removing it
            continue
    return found


def _values(part: Path) -> dict[str, float | None]:
    """The metrics of a step; none where the part cannot be read, which a warning says."""
    if not is_whole(part):
        return {}
    return dict(pl.read_parquet(part, columns=["name", "value"]).iter_rows())
