"""`twice train --dry-run`: what a run would take, without starting it."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import typer

from trainer.config import Config

if TYPE_CHECKING:
    from trainer.cost.estimate import Estimate

_GIB = 2**30
_WIDTH = 40


def dry_run(config: Config, *, gpus: int) -> None:
    """Prints memory, tokens, expected twins and time per step; nothing is loaded or written.

    Args:
        config: The run's.
        gpus: Number of GPUs that learn, one a process.

    Raises:
        UsageError: What `check_numbers`, `check_processes` and `estimate` refuse.
    """
    from trainer.cost.estimate import estimate
    from trainer.distributed.processes import Processes, check_processes
    from trainer.setup import check_numbers

    check_numbers(config)
    check_processes(config, Processes(size=gpus))
    for line in lines(config, estimate(config, gpus=gpus)):
        typer.echo(line)


def lines(config: Config, found: "Estimate") -> Iterator[str]:
    """The estimate as text."""
    serving = f"{found.servers} that sample" if found.servers else "the first of which also samples"
    yield f"{config.recipe}: {found.shape.parameters:,} parameters, credit {config.credit.method}"
    yield f"{found.gpus} {found.gpu.name} that learn, {serving}. Estimated, not measured."
    yield from _memory("Memory of a learner's GPU, GiB", found.learner)
    yield from _memory("Memory that sampling takes, GiB", found.sampler)
    for whose, held in found.held.items():
        fits = "fits" if held <= found.gpu.memory else "DOES NOT FIT"
        yield _row(
            f"in all, {whose}", f"{held / _GIB:.1f} of {found.gpu.memory / _GIB:.0f}: {fits}"
        )
    yield from _tokens(found)
    yield from _seconds(found)
    yield from _assumptions()


def _memory(title: str, parts: Mapping[str, float]) -> Iterator[str]:
    yield from ("", title)
    yield from (_row(name, _number(held / _GIB)) for name, held in parts.items())


def _tokens(found: "Estimate") -> Iterator[str]:
    step = found.step
    yield from ("", "Expected of a step")
    yield _row("episodes", f"{step.rows:,} of {step.turns} turns")
    yield _row("sampled tokens, trained", f"{step.sampled:,.0f}")
    yield _row("shown tokens", f"{step.shown:,.0f}")
    if step.auxiliary is None:
        yield _row("tokens of forks", f"not known: {step.reason}")
    else:
        yield _row("tokens of forks", f"{step.auxiliary:,.0f}")
        yield _row("twins and other forks", f"{step.forks:,.0f}")


def _seconds(found: "Estimate") -> Iterator[str]:
    stages = found.seconds
    yield from ("", "Seconds of a step")
    yield from (_row(name, _number(value)) for name, value in stages.items())
    if found.hours is None or found.steps is None:
        yield _row("the run", "not known")
        return
    total = sum(value or 0.0 for value in stages.values())
    yield _row("in all", _number(total))
    sampled = found.step.sampled + (found.step.auxiliary or 0.0)
    yield _row("the run", f"{found.steps:,.0f} steps, {found.steps * sampled:,.0f} sampled tokens")
    yield _row("hours of the run", _number(found.hours))


def _assumptions() -> Iterator[str]:
    from trainer.cost import memory, seconds, tokens

    yield from ("", "Assumed")
    for name, value in {
        "part of its limit that a turn, and a context, has": f"{tokens.FILL:g}",
        "part of peak operations in the learner": f"{seconds.LEARNER_SHARE:g}",
        "part of peak operations in encoding": f"{seconds.PREFILL_SHARE:g}",
        "part of memory bandwidth in decoding": f"{seconds.BANDWIDTH_SHARE:g}",
        "seconds of a decoding pass, besides": f"{seconds.PASS_SECONDS:g}",
        "GB/s of weights through a folder": f"{seconds.SYNC_BYTES / 1e9:g}",
        "GB that a process takes besides": f"{memory.OVERHEAD / 1e9:g}",
    }.items():
        yield f"  {name}: {value}"
    yield "  not counted: tools, exchange of gradients, evaluations, checkpoints, padding"


def _row(name: str, value: str) -> str:
    return f"  {name:<{_WIDTH}}{value}"


def _number(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
