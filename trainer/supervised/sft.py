"""Supervised fine-tuning on demonstrations of others: a warm start for a run.

All weights are trained, or with `lora.rank` adapters that are merged in the end, in one process, as
`learner` and `loss.micro_rows` say; the run holds the loss of every update, and the policy as a
Hugging Face folder. Leaves out reading demonstrations (`demonstration_file`) and the loop
(`updates`). It cannot be resumed: until it is done there is no policy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trainer.config import Config, WarmupConfig
from trainer.policy import Policy
from trainer.policy.folder import save_folder
from trainer.policy.lora import add_adapters, has_adapters, merged
from trainer.policy.ruined import refuse_ruined
from trainer.supervised.updates import Progress, Tokens, fit, packed
from twinstats.errors import UsageError
from twinstats.records import Run, create_run, metric_rows

MODEL = "model"
"""Where in the run folder the policy is."""


def sft(
    config: Config,
    policy: Policy,
    demonstrations: Sequence[Tokens],
    out: Path,
    *,
    epochs: int,
    learning_rate: float,
    started: Callable[[], str],
    progress: Progress | None = None,
) -> Path:
    """Trains a policy on demonstrations and writes the run `out`, with the policy in `out`/model.

    Demonstrations are packed whole into rows of `model.max_length` tokens, `warmup.rows` rows an
    update; the rate rises over the first tenth of the updates (at most `warmup.warmup_steps`) and
    falls to 0 over the last `warmup.decay_share`.

    Args:
        config: Of the run that is to start from it; its seed draws the adapters, nothing else.
        policy: Where training starts; it is changed.
        demonstrations: What is learned.
        out: A new run folder.
        epochs: How often each demonstration is seen.
        learning_rate: The highest.
        started: Tells the time, for `run.json`.
        progress: Gets (step, steps, loss).

    Returns:
        The folder of the policy: `model.pretrained` takes it up.

    Raises:
        UsageError: No epoch, no rate, adapters that do not fit, or the folder exists.
        RuntimeError: The rate was too high: a loss, or what the weights compute, is not finite.
    """
    if epochs < 1 or not learning_rate > 0:
        raise UsageError(
            "`epochs` must be at least 1 and `learning_rate` above 0, "
            f"got {epochs} and {learning_rate}."
        )
    add_adapters(policy.model, config.lora, seed=config.seed)
    rows = packed(demonstrations, config.model.max_length)
    schedule = _schedule(config.warmup, len(rows.ids_RL), epochs, learning_rate)
    own = {"epochs": epochs, "learning_rate": learning_rate, "warmup_steps": schedule.warmup_steps}
    configuration = asdict(config) | {"sft": own}  # `warmup` is of the policy it starts from
    run = create_run(
        out,
        command="twice sft",
        configuration=configuration,
        seed=config.seed,
        started=started(),
    )
    sizes: dict[str, Any] = {
        "sft/demonstrations_count": len(demonstrations),
        "sft/learned_tokens": int(rows.learned_RL.sum()),
        "sft/rows_count": len(rows.ids_RL),
    }
    run.write("metrics", 0, metric_rows(0, sizes))
    fit(
        policy,
        rows,
        schedule,
        _logged(run, progress),
        learner=config.learner,
        micro_rows=config.loss.micro_rows,
    )
    refuse_ruined(policy, "the last update", remedy="--learning-rate")
    if has_adapters(policy.model):
        policy = Policy(merged(policy.model), policy.tokenizer)
    save_folder(policy, run.path / MODEL)
    run.finish(started())
    return run.path / MODEL


def _logged(run: Run, progress: Progress | None) -> Progress:
    """Logs the loss of each update, and ends what is not finite."""

    def on_update(step: int, steps: int, loss: float) -> None:
        run.write("metrics", step, metric_rows(step, {"sft/loss_nats": loss}))
        if not math.isfinite(loss):
            raise RuntimeError(
                f"Update {step}: the loss is not finite, a smaller --learning-rate may help."
            )
        if progress is not None:
            progress(step, steps, loss)

    return on_update


def _schedule(warmup: WarmupConfig, num_rows: int, epochs: int, rate: float) -> WarmupConfig:
    steps = max(1, math.ceil(epochs * num_rows / warmup.rows))
    rise = min(warmup.warmup_steps, max(1, steps // 10))
    return replace(warmup, steps=steps, warmup_steps=rise, learning_rate=rate)
