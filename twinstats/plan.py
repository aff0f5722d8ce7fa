"""The command `twice plan`: sample sizes on the terminal.

Prints what `power` computes; leaves out every formula.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from twinstats.errors import UsageError
from twinstats.power import detectable_effect, paired_power, pairs_needed
from twinstats.results import show

_BINARY_TESTS = ("exact", "midp", "connor", "wald")
_OTHER_TESTS = ("t", "wald")
_LINEAR_BELOW, _QUADRATIC_ABOVE = 3.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What was asked; `twins` and `independent` are options of `power`, the latter null."""

    effect: float | None
    num_pairs: int | None
    power: float
    tests: tuple[str, ...]
    twins: Mapping[str, Any]
    independent: Mapping[str, Any] | None


def plan(
    effect: Annotated[
        float | None, typer.Option(help="Effect to find: factual minus twin.")
    ] = None,
    discordance: Annotated[
        float | None, typer.Option(help="Binary outcomes: P(the two outcomes differ).")
    ] = None,
    base_rate: Annotated[
        float | None,
        typer.Option(help="Binary outcomes: P(twin succeeds), to compare independent pairs."),
    ] = None,
    sd: Annotated[
        float | None,
        typer.Option(
            help="Other outcomes: deviation of the differences; with rho, of one outcome."
        ),
    ] = None,
    rho: Annotated[float | None, typer.Option(help="Correlation of the two outcomes.")] = None,
    pairs: Annotated[
        int | None, typer.Option(help="Pairs at hand: adds their power and detectable effect.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Level of the test.")] = 0.05,
    power: Annotated[float, typer.Option(help="Probability to find the effect.")] = 0.8,
    alternative: Annotated[str, typer.Option(help="two-sided, greater or less.")] = "two-sided",
    test: Annotated[str | None, typer.Option(help="Only exact, midp, connor, wald or t.")] = None,
    cluster_size: Annotated[float, typer.Option(help="Pairs in a cluster, of one task say.")] = 1.0,
    icc: Annotated[float, typer.Option(help="Correlation of differences within a cluster.")] = 0.0,
) -> None:
    """How many pairs of factual and twin it takes to find an effect, or what N pairs find."""
    if effect is None and pairs is None:
        raise UsageError("`--effect` (pairs to find it) or `--pairs` (what they find) is needed.")
    tests = (_BINARY_TESTS if sd is None else _OTHER_TESTS) if test is None else (test,)
    shared = {
        "alpha": alpha,
        "alternative": alternative,
        "cluster_size": cluster_size,
        "icc": icc,
    }
    try:
        question = _Question(
            effect=effect,
            num_pairs=pairs,
            power=power,
            tests=tests,
            twins={"discordance": discordance, "sd": sd, "rho": rho, **shared},
            independent=_independent(effect, discordance, base_rate, sd, rho, shared),
        )
        table = _table(question)
    except ValueError as error:
        raise UsageError(str(error)) from error
    console = Console()
    console.print(_asked(question), highlight=False, soft_wrap=True)
    console.print(table)
    for line in _notes(question):
        console.print(line, highlight=False, soft_wrap=True)


def _independent(
    effect: float | None,
    discordance: float | None,
    base_rate: float | None,
    sd: float | None,
    rho: float | None,
    shared: Mapping[str, Any],
) -> dict[str, Any] | None:
    """The same outcomes without shared luck; null where that is not known.

    Raises:
        ValueError: A base rate that does not go with the effect or the discordance.
    """
    if sd is not None and rho is not None:
        return {"sd": sd, "rho": 0.0, **shared}
    if base_rate is None:
        return None
    if effect is None or discordance is None:
        raise ValueError("`--base-rate` needs `--effect` and `--discordance`.")
    low, high = max(0.0, -effect), min(1.0, 1.0 - effect)
    if not low <= base_rate <= high:
        raise ValueError(
            f"`--base-rate` must lie in [{low:g}, {high:g}] with effect {effect:g}, "
            f"got {base_rate:g}."
        )
    other = base_rate + effect
    most = min(base_rate + other, 2 - base_rate - other)
    if discordance > most * (1 + 1e-12):
        raise ValueError(
            f"`--discordance` must be at most {most:g} with rates {base_rate:g} and {other:g}, "
            f"got {discordance:g}."
        )
    apart = base_rate * (1 - other) + other * (1 - base_rate)
    return {"discordance": apart, **shared}


def _table(question: _Question) -> Table:
    """One row a test, one column a question."""
    columns: dict[str, Callable[[str], str]] = {}
    effect, num_pairs = question.effect, question.num_pairs
    if effect is not None:
        columns["pairs of twins"] = lambda test: _needed(question, question.twins, test)
        if (independent := question.independent) is not None:
            columns["independent pairs"] = lambda test: _needed(question, independent, test)
    if num_pairs is not None:
        if effect is not None:
            columns[f"power of {num_pairs}"] = lambda test: show(
                paired_power(effect, num_pairs, test=test, **question.twins)
            )
        columns[f"effect that {num_pairs} find"] = lambda test: _found(question, num_pairs, test)
    table = Table()
    table.add_column("test")
    for name in columns:
        table.add_column(name, justify="right")
    for test in question.tests:
        table.add_row(test, *(cell(test) for cell in columns.values()))
    return table


def _asked(question: _Question) -> str:
    options = question.twins
    found = "" if question.effect is None else f", effect {question.effect:g}"
    return f"alpha {options['alpha']:g} {options['alternative']}, power {question.power:g}{found}"


def _needed(question: _Question, options: Mapping[str, Any], test: str) -> str:
    assert question.effect is not None
    return str(pairs_needed(question.effect, power=question.power, test=test, **options))


def _found(question: _Question, num_pairs: int, test: str) -> str:
    """The detectable effect; `none` where even the largest possible one is not found."""
    options = question.twins
    largest = options["discordance"]
    if largest is not None:
        sign = -1.0 if options["alternative"] == "less" else 1.0
        if paired_power(sign * largest, num_pairs, test=test, **options) < question.power:
            return "none"
    return show(detectable_effect(num_pairs, power=question.power, test=test, **options))


def _notes(question: _Question) -> list[str]:
    """What the numbers rest on, one sentence a line."""
    options, notes = question.twins, []
    if options["cluster_size"] > 1:
        inflation = 1 + (options["cluster_size"] - 1) * options["icc"]
        notes.append(
            f"Clusters of {options['cluster_size']:g} pairs, ICC {options['icc']:g}: "
            f"{show(inflation)} times the pairs, already counted."
        )
    independent = question.independent
    if independent is not None and "discordance" in independent:
        notes.append(f"Independent pairs: discordance {show(independent['discordance'])}.")
    if question.effect is None:
        return notes
    if options["discordance"] is None:
        ratio = "deviation of the differences" if options["rho"] is None else "rho and deviation"
        notes.append(f"Law: pairs grow as 1/effect^2 while the {ratio} stay the same.")
    else:
        notes.append(_law(options["discordance"] / abs(question.effect)))
    return notes


def _law(ratio: float) -> str:
    known = f"Law: discordance / |effect| = {show(ratio)},"
    if ratio < _LINEAR_BELOW:
        return f"{known} linear: while it stays below {_LINEAR_BELOW:g}, pairs grow as 1/effect."
    if ratio > _QUADRATIC_ABOVE:
        return (
            f"{known} quadratic: most discordance cancels, and pairs grow as 1/effect^2 "
            "unless discordance shrinks with the effect."
        )
    return (
        f"{known} undecided: pairs grow as 1/effect only if discordance shrinks with the "
        "effect, else as 1/effect^2."
    )
