"""The command `twice plan`: sample sizes on the terminal."""

from typing import Annotated

import typer

from twinstats.errors import UsageError
from twinstats.power import pairs_needed


def plan(
    effect: Annotated[float, typer.Option(help="Effect to find: factual minus twin.")],
    discordance: Annotated[
        float | None, typer.Option(help="Binary outcomes: P(the two outcomes differ).")
    ] = None,
    sd: Annotated[
        float | None,
        typer.Option(
            help="Other outcomes: deviation of the differences; with rho, of one outcome."
        ),
    ] = None,
    rho: Annotated[float | None, typer.Option(help="Correlation of the two outcomes.")] = None,
    alpha: Annotated[float, typer.Option(help="Level of the test.")] = 0.05,
    power: Annotated[float, typer.Option(help="Probability to find the effect.")] = 0.8,
    test: Annotated[str, typer.Option(help="exact, midp, connor, wald or t.")] = "exact",
) -> None:
    """How many pairs of factual and twin it takes to find an effect."""
    try:
        pairs = pairs_needed(
            effect, discordance=discordance, sd=sd, rho=rho, alpha=alpha, power=power, test=test
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    typer.echo(f"{pairs} pairs ({test} test, alpha {alpha}, power {power})")
