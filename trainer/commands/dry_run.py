"""`twice train --dry-run`: what a run would take, without starting it."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import typer

from trainer.config import Config, changed

if TYPE_CHECKING:
    from trainer.cost.estimate import Estimate

_GIB = 2**30
_WIDTH = 40
# tried where a run does not fit
_GPUS = (1, 2, 4, 8, 16, 32)
_CHUNK, _ROWS = 256, 16
_FILLED = 0.9  # of a GPU's memory: what fits by less than a tenth may not fit


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
        fits = "fits" if held <= found.gpu.memory else f"DOES NOT FIT; {_way_out(config, found)}"
        yield _row(
            f"in all, {whose}", f"{held / _GIB:.1f} of {found.gpu.memory / _GIB:.0f}: {fits}"
        )
    yield from _tokens(found)
    yield from _seconds(found)
    yield from _assumptions()


def _way_out(config: Config, found: "Estimate") -> str:
    """Settings with which all fits, on as few GPUs that learn as possible, or that none do."""
    from trainer.cost.estimate import estimate

    serving = _serving(config, found)
    chunk = min(_CHUNK, config.learner.chunk_tokens or _CHUNK)
    least = ("learner.gradient_checkpointing=true", "loss.micro_rows=1")
    for gpus in (found.gpus, *(one for one in _GPUS if one > found.gpus)):
        own = [*serving, "learner.sharding=fsdp2"] if gpus > 1 else serving
        for settings in (own, [*own, *least, f"learner.chunk_tokens={chunk}"]):
            tried = estimate(changed(config, settings), gpus=gpus)
            if max(tried.held.values()) <= _FILLED * found.gpu.memory:
                needed = [one for one in settings if changed(config, [one]) != config]
                words = [] if gpus == found.gpus else [f"--gpus {gpus}"]
                return f"it does with {' '.join([*words, *(f'--set {one}' for one in needed)])}"
    return f"nor does it with up to {_GPUS[-1]} GPUs that learn"


def _serving(config: Config, found: "Estimate") -> list[str]:
    """Settings with which vLLM samples on GPUs of its own and fits there, or `hf` takes less."""
    from trainer.cost.estimate import estimate

    if config.engine.name != "vllm":
        return [f"rollout.max_batch={min(_ROWS, config.rollout.max_batch)}"]
    settings = [] if found.servers else ["engine.servers=HOST:8000"]
    sampler = estimate(changed(config, settings), gpus=found.gpus).sampler
    excess = sum(sampler.values()) - _FILLED * found.gpu.memory
    if excess > 0:
        cache = max(0, config.engine.cache_mib - math.ceil(excess / 2**20))
        settings.append(f"engine.cache_mib={cache}")
    return settings


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
