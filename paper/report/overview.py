"""What the page says of each run, as text: what it was, what it spent, what coupling saved.

Leaves out single twins (`inspector`) and how it is shown (`page.html`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from scipy.special import ndtri

from paper import coupling, logs, style
from paper.report.inspector import TwinView, twin_views
from twinstats import logged_pairs, records
from twinstats.results import show
from twinstats.variance import VarianceAccount

NUM_PERIODS = 3
NONE = "\N{EN DASH}"
NO_LAW = (
    "Which law the run is in (pairs growing as 1/effect or 1/effect\N{SUPERSCRIPT TWO}) is "
    "undecided: on-policy twins average to zero by construction, so it takes forks replayed over "
    "several lucks, which training does not log. twinstats.regime decides it from such forks."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as text.

    Attributes:
        caption: What it holds.
        columns: Headings; the first is of the rows' names.
        rows: Cells, as many as there are columns.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What the page shows of one run.

    Attributes:
        label: What it is called.
        facts: Command, method, seed, commit, versions and times.
        configuration: The leaves of its configuration.
        tables: Coupling by turn and over time, last metrics, rows logged.
        twins: Pairs to look into.
        law: What can be said about the law of its pairs; empty without pairs.
    """

    label: str
    facts: tuple[tuple[str, str], ...]
    configuration: Table
    tables: tuple[Table, ...]
    twins: tuple[TwinView, ...]
    law: str


def run_view(run: Path, label: str) -> RunView:
    """Everything that the page shows of one run."""
    description = records.read_run(run)
    leaves = records.flatten(description.get("configuration") or {})
    pairs, metrics = logs.read([run], "pairs"), logs.read([run], "metrics")
    tables = [_by_turn(pairs), _over_time(pairs), _last_metrics(metrics), _logged(run)]
    twins = twin_views(pairs, logs.read([run], "texts"), logs.read([run], "credit"))
    return RunView(
        label=label,
        facts=_facts(description, leaves),
        configuration=Table(
            caption="Configuration",
            columns=("field", "value"),
            rows=tuple((name, text_of(value)) for name, value in leaves.items()),
        ),
        tables=tuple(table for table in tables if table is not None),
        twins=tuple(twins),
        law=NO_LAW if pairs is not None else "",
    )


def _facts(description: dict[str, Any], leaves: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    versions = description.get("versions") or {}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    method = leaves.get("credit.method")
    facts = {
        "command": description.get("command"),
        "recipe": leaves.get("recipe"),
        "credit method": None if method is None else style.mark(str(method)),
        "seed": description.get("seed"),
        "commit": description.get("commit"),
        "versions": listed,
        "noise": description.get("noise"),
        "started": description.get("started"),
        "finished": description.get("finished") or "not yet",
    }
    return tuple((name, text_of(value)) for name, value in facts.items() if value is not None)


def text_of(value: Any) -> str:
    """A value of a configuration or a metric as people read it; a dash for null."""
    if value is None:
        return NONE
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else show(value)
    return str(value)


def interval_text(measured: dict[str, float | None]) -> str:
    """A value with its interval; a dash where undefined."""
    if measured["value"] is None:
        return NONE
    text = show(measured["value"], 3)
    if measured["low"] is None or measured["high"] is None:
        return text
    return f"{text} [{show(measured['low'], 3)}, {show(measured['high'], 3)}]"


COUPLING = (
    "pairs",
    "equal decisions",
    "discordance",
    "\N{GREEK SMALL LETTER RHO}_eff",
    "gain, raw",
    "gain, deduplicated",
    "twin tokens",
)


def coupling_cells(twins: pl.DataFrame) -> tuple[str, ...]:
    """The cells of `COUPLING` for joined twins."""
    found = logged_pairs.account(twins)
    if found is None:
        return ("0",) + (NONE,) * (len(COUPLING) - 1)
    return (*_account_cells(found), f"{int(twins['sampled'].sum()):,}")


def _account_cells(found: VarianceAccount) -> tuple[str, ...]:
    gains = coupling.gains(found)
    return (
        str(found.num_pairs),
        NONE if found.equal_share is None else show(found.equal_share, 3),
        interval_text(coupling.measured(found, "discordance")),
        interval_text(coupling.measured(found, "rho_eff")),
        interval_text(gains["raw"]),
        interval_text(gains["deduplicated"]),
    )


def _by_turn(pairs: pl.DataFrame | None) -> Table | None:
    if pairs is None:
        return None
    twins = logged_pairs.joined(pairs).sort("slot")
    slots = twins["slot"].unique().sort().to_list()
    in_parts = coupling.has_parts(slots)
    rows = [
        (coupling.slot_name(slot, in_parts), *coupling_cells(twins.filter(pl.col("slot") == slot)))
        for slot in slots
    ]
    head = "part.turn" if in_parts else "turn"
    return Table(
        caption="Coupling and spending by turn", columns=(head, *COUPLING), rows=tuple(rows)
    )


def _over_time(pairs: pl.DataFrame | None) -> Table | None:
    if pairs is None:
        return None
    twins = logged_pairs.joined(pairs)
    steps = twins["step"].unique().sort().to_list()
    if len(steps) < NUM_PERIODS:
        return None
    rows = []
    for index in range(NUM_PERIODS):
        first = steps[index * len(steps) // NUM_PERIODS]
        last = steps[(index + 1) * len(steps) // NUM_PERIODS - 1]
        own = twins.filter(pl.col("step").is_between(first, last))
        rows.append((f"{first}\N{EN DASH}{last}", *coupling_cells(own)))
    return Table(caption="Coupling over time", columns=("steps", *COUPLING), rows=tuple(rows))


def last_values(metrics: pl.DataFrame | None) -> dict[str, tuple[int, float | None]]:
    """The last step of each metric, and its value there."""
    if metrics is None:
        return {}
    last = metrics.sort("step", maintain_order=True).group_by("name", maintain_order=True).last()
    rows = last.sort("name").select("name", "step", "value").iter_rows()
    return {str(name): (int(step), value) for name, step, value in rows}


def _last_metrics(metrics: pl.DataFrame | None) -> Table | None:
    values = last_values(metrics)
    if not values:
        return None
    rows = tuple((name, text_of(value), str(step)) for name, (step, value) in values.items())
    return Table(caption="Metrics at the end", columns=("metric", "value", "step"), rows=rows)


def _logged(run: Path) -> Table:
    rows = []
    for name in records.tables(run):
        frame = logs.read([run], name)
        num_rows = 0 if frame is None else len(frame)
        rows.append((name, f"{num_rows:,}", str(len(logs.readable_parts(run, name)))))
    return Table(caption="What was logged", columns=("table", "rows", "parts"), rows=tuple(rows))


def training_tables(runs: Sequence[Path], names: dict[Path, str]) -> tuple[Table, ...]:
    """The training runs side by side: achievement and cost, and what coupling saved."""
    described = {row["run"]: row for row in logs.describe(runs).to_dicts()}
    trained = [run for run in runs if described[names[run]]["method"] is not None]
    if not trained:
        return ()
    achieved, rewarded, saved = [], [], []
    for run in trained:
        row = described[names[run]]
        metrics, pairs = logs.read([run], "metrics"), logs.read([run], "pairs")
        head = (names[run], style.mark(row["method"]), text_of(row["seed"]))
        achieved.append((*head, *_achievement(metrics)))
        rewarded.append((*head, *_test_ends(metrics, *OUTCOME)))
        if pairs is not None:
            cells = coupling_cells(logged_pairs.joined(pairs))[:-1]
            saved.append((*head, *cells, *_floor_cells(pairs)))
    first = ("run", "method", "seed")
    tables = [
        Table(
            caption="What the runs achieved, with 95% intervals over the test questions, and what "
            "they spent",
            columns=(*first, *ACHIEVEMENT),
            rows=tuple(achieved),
        )
    ]
    if rewarded := [row for row in rewarded if set(row[len(first) :]) != {NONE}]:
        tables.append(
            Table(
                caption="What the runs' own rewards paid on test questions",
                columns=(*first, "test outcome before", "after"),
                rows=tuple(rewarded),
            )
        )
    if saved:
        tables.append(
            Table(
                caption="What coupling saved, and the floor of the replay",
                columns=(*first, *COUPLING[:-1], *FLOOR),
                rows=tuple(saved),
            )
        )
    return tuple(tables)


EXACT_MATCH = ("eval/exact_match_share", "eval/stderr_share")
OUTCOME = ("eval/outcome_share", "eval/outcome_stderr_share")
ACHIEVEMENT = (
    "test exact match before",
    "after",
    "questions",
    "factual tokens",
    "auxiliary tokens",
    "auxiliary / factual",
    "seconds a step",
)


def _achievement(metrics: pl.DataFrame | None) -> tuple[str, ...]:
    if metrics is None:
        return (NONE,) * len(ACHIEVEMENT)
    questions = last_values(metrics).get("eval/num_questions_count", (0, None))[1]
    factual, twin = (_total(metrics, f"train/{kind}_tokens") for kind in ("sampled", "auxiliary"))
    seconds = metrics.filter(pl.col("name") == "time/step_seconds")["value"].median()
    return (
        *_test_ends(metrics, *EXACT_MATCH),
        NONE if questions is None else f"{questions:.0f}",
        f"{factual:,.0f}",
        f"{twin:,.0f}",
        show(twin / factual, 3) if factual else NONE,
        show(float(seconds), 3) if isinstance(seconds, float) else NONE,
    )


def _total(metrics: pl.DataFrame, name: str) -> float:
    return float(metrics.filter(pl.col("name") == name)["value"].sum())


def _test_ends(metrics: pl.DataFrame | None, name: str, stderr: str) -> tuple[str, str]:
    """A metric at the first and the last evaluation that has it."""
    if metrics is None:
        return NONE, NONE
    tests = metrics.filter(pl.col("name") == name).drop_nulls("value").sort("step")
    return _test_text(metrics, tests.head(1), stderr), _test_text(metrics, tests.tail(1), stderr)


def _test_text(metrics: pl.DataFrame, test: pl.DataFrame, stderr: str) -> str:
    if test.is_empty():
        return NONE
    step, value = test["step"][0], float(test["value"][0])
    errors = metrics.filter(pl.col("name") == stderr, pl.col("step") == step)
    errors = errors.drop_nulls("value")
    if errors.is_empty():
        return f"{value:.3f}"
    half = float(ndtri(0.975)) * errors["value"][0]
    low, high = value - half, value + half
    if stderr == EXACT_MATCH[1]:  # a share; an outcome may be any number
        low, high = max(low, 0), min(high, 1)
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


FLOOR = ("null twins", "differ by token", "differ by outcome")


def _floor_cells(pairs: pl.DataFrame) -> tuple[str, ...]:
    floor = logged_pairs.null_floor(pairs)
    if not floor["num_nulls"]:
        return ("0", NONE, NONE)
    names = ("num_nulls", "token_disagreements", "outcome_disagreements")
    return tuple(str(floor[name]) for name in names)
