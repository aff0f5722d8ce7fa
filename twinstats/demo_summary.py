"""What the demo measured, read from its logs: `summary.json` and the closing table.

Every number is computed here from the logs; nothing is known in advance.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from twinstats.episodes import SLOTS_PER_PART
from twinstats.logged_pairs import account, joined, null_floor
from twinstats.pairs import paired
from twinstats.records import read, read_run
from twinstats.results import show

Summary = dict[str, Any]

_WIDTH = 120  # columns of the closing table where there is no terminal to ask


def summarise(out: Path, seconds: Mapping[str, float]) -> Summary:
    """Everything the demo reports, as JSON types."""
    runs = _training_runs(out)
    study, coupling = out / "simulate", out / "coupling"
    trained = [run for run in runs if run != coupling]
    return {
        "bias": _bias(study),
        "variance": _variance(study),
        "exponents": _exponents(study),
        "coupling": _coupling(coupling),
        "null_twins": null_floor(read([run for run in runs if _has_pairs(run)], "pairs").collect()),
        "training": _training(trained),
        "made": _made(out),
        "seconds": dict(seconds),
    }


def _training_runs(out: Path) -> list[Path]:
    found = sorted(path.parent for path in out.glob("*/run.json"))
    return [run for run in found if "credit" in read_run(run)["configuration"]]


def _has_pairs(run: Path) -> bool:
    return (run / "pairs").is_dir()


def _bias(study: Path) -> list[Summary]:
    """For each method and quantity it claims unbiased: the sum over an episode's turns."""
    rows = read(study, "unbiased").collect()
    found = []
    for (method, quantity), own in rows.filter(pl.col("claimed")).group_by(
        "method", "quantity", maintain_order=True
    ):
        # an advantage has a total over an episode; a gradient is judged place by place
        worst = own.sort(pl.col("bias").abs(), descending=True).row(0, named=True)
        found.append(
            {
                "method": method,
                "quantity": quantity,
                "num_places": len(own),
                "largest_bias": worst["bias"],
                "interval": [worst["low"], worst["high"]],
                "margin": worst["margin"],
                "equivalent_places": int(own["equivalent"].sum()),
            }
        )
    return found


def _variance(study: Path) -> list[Summary]:
    """The bandit's regimes: measured ratio of variances beside 1 - rho_eff."""
    rows = read(study, "variance").collect().filter(pl.col("world") == "bandit")
    columns = ["setting", "rho_eff", "rho_eff_low", "rho_eff_high", "ratio", "predicted"]
    return rows.select(columns).to_dicts()


def _exponents(study: Path) -> list[Summary]:
    columns = ["regime", "coupling", "reading", "slope", "low", "high", "reason"]
    return read(study, "complexity_fit").collect().select(columns).to_dicts()


def _coupling(run: Path) -> list[Summary]:
    """Coupling of the warmed-up policy's twins, over all turns and by slot."""
    twins = joined(read(run, "pairs").collect())
    slots = sorted(twins["slot"].unique().to_list())
    groups = [("all", twins)] + [
        (f"part {slot // SLOTS_PER_PART}, turn {slot % SLOTS_PER_PART}", own)
        for slot in slots
        for own in [twins.filter(pl.col("slot") == slot)]
    ]
    return [_account_row(name, own) for name, own in groups]


def _account_row(name: str, twins: pl.DataFrame) -> Summary:
    found = account(twins)
    assert found is not None
    statistics = {
        key: {"value": getattr(found, key), "interval": found.intervals.get(key)}
        for key in (
            "coupling_gain",
            "coupling_gain_deduplicated",
            "rho_eff",
            "discordance",
            "equal_share",
        )
    }
    return {"place": name, "num_pairs": found.num_pairs, **statistics}


def _training(runs: Sequence[Path]) -> list[Summary]:
    """Each method before and after training, over its seeds."""
    by_method: dict[str, list[Path]] = {}
    for run in runs:
        method = read_run(run)["configuration"]["credit"]["method"]
        by_method.setdefault(method, []).append(run)
    return [_method_row(method, own) for method, own in by_method.items()]


def _method_row(method: str, runs: Sequence[Path]) -> Summary:
    metrics = read(runs, "metrics").collect()
    plays = read(runs, "evaluations").filter(pl.col("decoding") == "sampled").collect()
    before, after = (
        plays.filter(pl.col("step") == pl.col("step").min().over("run")),
        plays.filter(pl.col("step") == pl.col("step").max().over("run")),
    )
    pairs = after.join(before, on=["run", "task", "sample"], suffix="_before")
    factual = _total(metrics, "train/sampled_tokens")
    auxiliary, steps = _total(metrics, "train/auxiliary_tokens"), _total_steps(metrics)
    change = paired(
        pairs["outcome"].to_numpy(),
        pairs["outcome_before"].to_numpy(),
        cluster=pairs["task"].to_list(),
    )
    return {
        "method": method,
        "num_runs": len(runs),
        "before": _share(before),
        "after": _share(after),
        "after_by_run": {str(k[0]): _share(own) for k, own in after.group_by("run")},
        "change": {"value": change.estimate, "interval": change.confidence_interval()},
        "sampled_tokens": factual,
        "auxiliary_tokens": auxiliary,
        "steps": steps,
        "mean_of_a_run": {
            "steps": steps / len(runs),
            "factual_tokens": factual / len(runs),
            "auxiliary_tokens": auxiliary / len(runs),
            "total_tokens": (factual + auxiliary) / len(runs),
        },
    }


def _share(plays: pl.DataFrame) -> Summary:
    """Share of questions answered right; its interval is over episodes, clustered by task."""
    right = plays["outcome"].to_numpy()
    found = paired(right, np.zeros(len(right)), cluster=plays["task"].to_list())
    return {"value": found.estimate, "interval": found.confidence_interval()}


def _total(metrics: pl.DataFrame, name: str) -> int:
    return int(metrics.filter(pl.col("name") == name)["value"].sum())


def _total_steps(metrics: pl.DataFrame) -> int:
    return int(metrics.group_by("run").agg(pl.col("step").max())["step"].sum())


def _made(out: Path) -> list[str]:
    files = [out / "report.html", out / "summary.json"]
    files += sorted((out / "figures").glob("*.pdf"))
    return [str(file) for file in files]


def closing_table(summary: Summary) -> None:
    """Prints the summary as people read it."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    for table in (
        _bias_table(summary["bias"]),
        _exponent_table(summary["exponents"]),
        _coupling_table(summary["coupling"]),
        _training_table(summary["training"]),
    ):
        console.print(table)
    null = summary["null_twins"]
    console.print(
        f"Null twins: {null['num_nulls']} replayed, {null['token_disagreements']} differ by token, "
        f"{null['outcome_disagreements']} by outcome."
    )
    console.print(f"Took {summary['seconds']['all'] / 60:.1f} minutes. Made:")
    for path in summary["made"]:
        console.print(f"  {path}", soft_wrap=True)


def _bias_table(rows: Sequence[Summary]) -> Table:
    table = _table(
        "Bias of credit in a chain with known truth (the worst place, simultaneous 95%)",
        ("method", "quantity", "largest bias", "interval", "margin", "inside margin"),
    )
    for row in rows:
        table.add_row(
            row["method"],
            row["quantity"],
            _fixed(row["largest_bias"], 4),
            _interval(row["interval"], 4),
            show(row["margin"]),
            f"{row['equivalent_places']} of {row['num_places']} places",
        )
    return table


def _exponent_table(rows: Sequence[Summary]) -> Table:
    table = _table(
        "Pairs needed against effect: exponent (shared luck = twins)",
        ("regime", "luck", "reading", "exponent", "95% interval"),
    )
    for row in rows:
        interval = None if row["low"] is None else [row["low"], row["high"]]
        table.add_row(
            row["regime"],
            row["coupling"],
            row["reading"],
            _fixed(row["slope"], 3),
            _interval(interval, 3),
        )
    return table


def _coupling_table(rows: Sequence[Summary]) -> Table:
    table = _table(
        "Coupling of the warmed-up policy: Var(fresh luck) / Var(shared luck), same decisions",
        ("fork at", "pairs", "equal decisions", "raw gain", "deduplicated gain", "rho_eff"),
    )
    gains = ("coupling_gain", "coupling_gain_deduplicated")
    for row in rows:
        table.add_row(
            row["place"],
            str(row["num_pairs"]),
            _fixed(row["equal_share"]["value"], 2),
            *(_with_interval(row[name], 1) for name in gains),
            _with_interval(row["rho_eff"], 2),
        )
    return table


def _training_table(rows: Sequence[Summary]) -> Table:
    scores = ("before", "after", "change")
    counts = " or ".join(str(count) for count in sorted({row["num_runs"] for row in rows}))
    table = _table(
        "Training at equal sampled tokens: exact match on test questions (95% over questions)",
        ("method", *scores, "steps", "factual", "auxiliary", "total"),
    )
    table.caption = f"Runs a method: {counts}. Steps and sampled tokens are the mean of a run."
    table.caption_justify = "left"
    for row in rows:
        own = row["mean_of_a_run"]
        table.add_row(
            row["method"],
            # shares as .327: all columns have room on one line
            *(re.sub(r"\b0\.", ".", _with_interval(row[name], 3)) for name in scores),
            _fixed(own["steps"], 1),
            *(f"{own[f'{name}_tokens']:,.0f}" for name in ("factual", "auxiliary", "total")),
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0)
    return table


def _with_interval(row: Summary, decimals: int) -> str:
    return f"{_fixed(row['value'], decimals)} {_interval(row['interval'], decimals)}"


def _interval(interval: Sequence[float | None] | None, decimals: int) -> str:
    """An interval as people read it; a word has no brackets, or a console takes it for markup."""
    if interval is None:
        return "undefined"
    return f"[{', '.join(_fixed(end, decimals) for end in interval)}]"


def _fixed(value: float | None, decimals: int) -> str:
    """A number with so many decimals, no zero being negative; `undefined` for null."""
    return "undefined" if value is None else f"{value:z.{decimals}f}"
