"""Fields that a resumed run may change.

They say how a machine does the work, not what comes out, or how long it goes on. All others are
what a run is, and `--resume` refuses another value of them.
"""

MACHINE = (
    "engine.servers",
    "engine.timeout_seconds",
    "engine.cache_mib",
    "engine.drafts",
    "log.tensorboard",
    "log.tracker",
    # these change results, by rounding alone
    "rollout.max_batch",
    "loss.micro_rows",
    "learner.precision",
    "learner.gradient_checkpointing",
    "learner.chunk_tokens",
    "learner.sharding",
)
"""Paths of the machine's fields. `run.json` keeps the values that a run was started with."""

LENGTH = ("length.steps", "length.total_tokens")
"""Paths of the length's fields, free where the rate is constant. `run.json` tells the last."""
