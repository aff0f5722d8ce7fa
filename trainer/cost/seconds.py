"""How long a step is expected to take, by stage.

Operations and bytes are counted exactly; what a machine makes of them is assumed. Leaves out tools
and environments, the exchange of gradients, checkpoints and evaluations.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trainer.config import Config
from trainer.cost.memory import BFLOAT16, FLOAT32, fitting_rows, kv_bytes
from trainer.cost.shape import Shape
from trainer.cost.tokens import StepTokens
from trainer.learning.reference import needs_reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a GPU can do at most.

    Attributes:
        name: As it is sold.
        low_flops: Operations a second of matrix products in bfloat16, dense.
        high_flops: The same in float32.
        bandwidth: Bytes a second that its memory moves.
        memory: Bytes of it.
    """

    name: str
    low_flops: float
    high_flops: float
    bandwidth: float
    memory: float


H200 = Gpu(name="H200", low_flops=989e12, high_flops=67e12, bandwidth=4.8e12, memory=141e9)
"""As NVIDIA states them for the SXM form."""

LEARNER_SHARE = 0.35
"""Assumed: of the peak operations that passes of the learner reach."""
PREFILL_SHARE = 0.5
"""Assumed: of the peak operations that an engine reaches when it encodes what is shown."""
BANDWIDTH_SHARE = 0.6
"""Assumed: of the memory's bandwidth that decoding reaches."""
PASS_SECONDS = 5e-3
"""Assumed: of a decoding pass besides what it reads, in launches, sampling and scheduling."""
SYNC_BYTES = 2e9
"""Assumed: bytes a second at which weights go through a folder, one way."""


def forward_flops(shape: Shape, *, rows: int, length: int, scored: int) -> float:
    """Operations of a forward pass, a multiplication and an addition counted as two.

    2 for each weight of a matrix and token, 4 L Q for attention in each layer (all L positions, as
    kernels without a causal mask compute), 2 H V for each token whose law is asked for.

    Args:
        shape: The model's.
        rows: Number of rows.
        length: Positions of each.
        scored: Tokens that reach the vocabulary layer, in all rows.
    """
    token = shape.layers * (2 * shape.linear + 4 * length * shape.query)
    return float(rows * length * token + 2 * scored * shape.table)


def update_flops(config: Config, shape: Shape, step: StepTokens) -> float:
    """Operations of a step's passes over its episodes.

    A trained token costs 3 forward passes (with adapters 2: no weight needs a gradient) in every
    epoch. Checkpointing computes the layers once more, all but their last matrix, and chunks the
    vocabulary layer. The behaviour policy's own pass (several updates a step) and that of the
    reference cost 1 each.
    """
    rows, length, scored = step.rows, round(step.row_length), round(step.sampled)
    once = forward_flops(shape, rows=rows, length=length, scored=scored)
    passes = (2 if config.lora.rank else 3) * once
    if config.learner.gradient_checkpointing:
        last = 2 * rows * length * shape.layers * shape.hidden * shape.intermediate
        passes += forward_flops(shape, rows=rows, length=length, scored=0) - last
    if config.learner.chunk_tokens is not None:
        passes += 2 * scored * shape.table
    looks = (config.loss.epochs * config.loss.minibatches > 1) + needs_reference(config.loss)
    return config.loss.epochs * passes + looks * once


def step_seconds(
    config: Config, shape: Shape, step: StepTokens, *, gpus: int, servers: int, gpu: Gpu = H200
) -> dict[str, float | None]:
    """Seconds of a step by stage; null where the tokens of forks are not known.

    Args:
        config: The run's.
        shape: The model's.
        step: What the step holds.
        gpus: Number of GPUs that learn.
        servers: Number of GPUs that only sample; 0: the first learner samples.
        gpu: What all of them are.
    """
    samplers = max(1, servers)
    size = BFLOAT16 if servers else FLOAT32
    peak = gpu.low_flops if servers else gpu.high_flops
    fits = fitting_rows(config, shape, step, servers=servers)
    shown = forward_flops(shape, rows=1, length=round(step.row_length), scored=0)
    shown *= step.shown / step.row_length
    rate = gpu.bandwidth * BANDWIDTH_SHARE
    decoded = {
        name: None
        if tokens is None
        else tokens / samplers / fits * (_pass_bytes(shape, step, fits, size) / rate + PASS_SECONDS)
        for name, tokens in (("sampling", step.sampled), ("forks", step.auxiliary))
    }
    is_low = config.learner.precision == "bfloat16"
    learner = LEARNER_SHARE * gpus * (gpu.low_flops if is_low else gpu.high_flops)
    return {
        "prompts and observations": shown / samplers / peak / PREFILL_SHARE,
        **decoded,
        "update": update_flops(config, shape, step) / learner,
        "weights to the servers": _sync_bytes(shape, servers) / SYNC_BYTES,
    }


def _sync_bytes(shape: Shape, servers: int) -> float:
    """Bytes that go into the folder and out of it: weights are float32, and read by all at once."""
    return 2.0 * FLOAT32 * shape.parameters if servers else 0.0


def _pass_bytes(shape: Shape, step: StepTokens, rows: int, size: int) -> float:
    """Bytes that a decoding pass of some rows reads: all weights, and the rows' contexts."""
    return size * shape.parameters + rows * step.row_length * kv_bytes(shape, size=size)


def run_hours(config: Config, step: StepTokens, seconds: dict[str, float | None]) -> float | None:
    """Hours of the whole run; null where a stage's seconds are not known."""
    known = list(_known(seconds))
    steps = num_steps(config, step)
    if len(known) < len(seconds) or steps is None:
        return None
    return steps * sum(known) / 3600


def num_steps(config: Config, step: StepTokens) -> float | None:
    """Steps until `length` ends the run; null where a limit of tokens decides, unknown here."""
    limit = config.length.total_tokens
    if limit is None:
        return float(config.length.steps)
    if step.auxiliary is None:
        return None
    return min(float(config.length.steps), limit / (step.sampled + step.auxiliary))


def _known(seconds: dict[str, float | None]) -> Iterator[float]:
    yield from (value for value in seconds.values() if value is not None)
