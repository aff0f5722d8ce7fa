"""What breaks the replay: twins and null twins of a fixed policy, where something is not exact.

One setting is played in several variants, each with a rollout of its own; tasks, seeds and keys are
the same in all. Rows of `oracle_floor`, one a (variant, outcome, fork), are those of `oracle_forks`
and besides:

    same_tokens  whether every turn from the fork on is the factual's
    logprob_gap  of a null twin: how far the log-probability of a token of its tail is from the
                 factual's at most, nats, in the turns before what is said or shown differs
    reason       of a fork that failed

Every fork plays its own tail, also after an equal decision: what the replay adds is in all of them.
Leaves out credit (`study`), and figures.
"""

import copy
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

from trainer.config import Config
from trainer.noise.margins import Margins
from trainer.noise.sources import Sampler, sample
from trainer.oracle.batches import OnBatch, open_run, unfinished
from trainer.oracle.config import FloorConfig, Setting, batch_tasks, settings_of
from trainer.oracle.rows import Row, coupling_forks, fork_row
from trainer.oracle.worlds import REWARD, outcome_of
from trainer.policy import Policy
from trainer.rollout import Rollout
from trainer.setup import make_rollout
from trainer.tasks import ENVIRONMENTS, Environment
from trainer.tasks.noisy import NoisyFacts
from twinstats.episodes import Episode, Task, Turn
from twinstats.records import Run, metric_rows, read
from twinstats.rows import is_same_play

TABLE = "oracle_floor"
"""The table of the study, the last that a batch writes: with it the batch is finished."""

RUNNER_UP = 0.2
"""How often the noisy search returns its second-best document."""

NEAR_TIE = 0.1
"""A token whose score leads by less is at risk, nats: about what bfloat16 moves a logit by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to play the same tasks.

    Attributes:
        name: As rows have it.
        dtype: Of the weights; null: the policy's own.
        retokenise: As in `Rollout`.
        shares_tools: As in `Rollout`.
        environment: Makes the environment of one episode; null: that of the task.
    """

    name: str
    dtype: torch.dtype | None = None
    retokenise: bool = False
    shares_tools: bool = True
    environment: Callable[[], Environment] | None = None

    def rollout(self, policy: Policy, config: Config, sampler: Sampler = sample) -> Rollout:
        """The rollout of this variant; weights of another type are a copy."""
        if self.dtype is not None:
            policy = Policy(copy.deepcopy(policy.model).to(self.dtype), policy.tokenizer)
        return make_rollout(
            policy,
            config,
            sampler=sampler,
            environment=self.environment,
            retokenise=self.retokenise,
            shares_tools=self.shares_tools,
        )


_noisy = functools.partial(NoisyFacts, probability=RUNNER_UP)

EXACT = Variant(name="exact")
"""The policy as it is, all luck keyed: nothing should differ."""

VARIANTS = (
    EXACT,
    Variant(name="bfloat16", dtype=torch.bfloat16),
    Variant(name="retokenised", retokenise=True),
)
"""Of every task. In bfloat16 a token's logits depend on what it is batched with, and forks are
batched otherwise than their factuals."""

NOISY_VARIANTS = (
    Variant(name="noisy tool, keyed", environment=_noisy),
    Variant(name="noisy tool, unkeyed", environment=_noisy, shares_tools=False),
)
"""Of the task `facts`, the only one with a noisy search."""


def variants_of(setting: Setting) -> tuple[Variant, ...]:
    """The variants in which a setting's task can be played."""
    return (*VARIANTS, *NOISY_VARIANTS) if setting.world == "facts" else VARIANTS


def floor(
    config: Config,
    policy: Policy,
    out: Path,
    *,
    study: FloorConfig,
    source: Mapping[str, Any],
    started: Callable[[], str],
    resume: bool = False,
    on_batch: OnBatch | None = None,
) -> list[Row]:
    """Plays the study into the run folder `out`; returns the rows of `summary`.

    The setting is the task with as many parts as `task.parts` says. Numbers of all variants but
    bfloat16 are the same however the engine batches.

    Args:
        config: How episodes are played.
        policy: Plays them; it is not changed.
        out: A new run folder, or with `resume` one to go on with.
        study: How much is played.
        source: Where the policy is from, for `run.json`.
        started: Tells the time, for `run.json`.
        resume: Go on with the first batch that is not finished.
        on_batch: Gets the number of batches done, that of all, and the variant.

    Raises:
        UsageError: The folder exists, or was made with another configuration; more tasks are asked
            for than there are.
    """
    setting = settings_of(config)[-1]
    tasks, variants = batch_tasks(setting, study), variants_of(setting)
    whole = asdict(config) | {"floor": asdict(study), "policy": dict(source)}
    margins = Margins(NEAR_TIE) if config.engine.name == "hf" else None  # vLLM draws by itself
    sampler = sample if margins is None else margins
    rollout = functools.lru_cache(maxsize=1)(
        lambda n: variants[n].rollout(policy, setting.config, sampler)
    )
    if not resume:
        rollout(0)  # what cannot be played leaves no folder
    run = open_run(out, whole, started=started, resume=resume)
    names = [variant.name for variant in variants]
    batches = unfinished(run, names, study.num_batches, table=TABLE, on_batch=on_batch)
    for step, number, batch in batches:
        known = {"setting": setting.name, "variant": names[number]}
        begun = time.perf_counter()
        rows = played_rows(rollout(number), setting.world, tasks[batch], batch, twins=study.twins)
        counts = rollout(number).take_counts() | ({} if margins is None else margins.take())
        counts["time/batch_seconds"] = time.perf_counter() - begun
        run.write("metrics", step, metric_rows(step, counts))
        run.write(TABLE, step, [known | row for row in rows])
    run.finish(started())
    return summary(run)


def played_rows(
    rollout: Rollout, world: str, tasks: Sequence[Task], batch: int, *, twins: int
) -> list[Row]:
    """Plays an episode of each task and its forks; a row an (outcome, fork).

    Args:
        rollout: Plays them.
        world: The task's name.
        tasks: Those of the batch.
        batch: Its number, the same in all variants, which thus share their luck.
        twins: Twins of every turn.
    """
    episodes = [one for one in rollout.play(tasks, 1, batch) if one.outcome is not None]
    forks = [
        dataclasses.replace(fork, skip_equal=False)
        for episode in episodes
        for fork in coupling_forks(episode, twins, "gumbel")
    ]
    names = getattr(ENVIRONMENTS[world], "outcomes", (REWARD,))
    return [row for twin in rollout.fork(forks) for row in _fork_rows(twin, names)]


def _fork_rows(twin: Episode, names: Sequence[str]) -> list[Row]:
    """A fork's row of each outcome."""
    assert twin.fork is not None
    own = fork_row(twin)
    is_played = twin.outcome is not None
    told = {
        "same_tokens": is_same_play(twin) if is_played else None,
        "logprob_gap": _logprob_gap(twin) if is_played and own["kind"] == "null" else None,
        "reason": twin.info.get("reason"),
    }
    return [
        own
        | told
        | {
            "outcome": name,
            "factual": outcome_of(twin.fork.episode, name),
            "fork": outcome_of(twin, name),
        }
        for name in names
    ]


def _logprob_gap(null: Episode) -> float | None:
    """Of the turns before any token differs; null where there is none, or no log-probabilities."""
    assert null.fork is not None
    own, parent = (one.turns[null.fork.turn + 1 :] for one in (null, null.fork.episode))
    turns = zip(own, parent, strict=False)
    same = itertools.takewhile(lambda pair: _tokens(pair[0]) == _tokens(pair[1]), turns)
    told = [[turn.info["logprobs"] or () for turn in pair] for pair in same]
    gaps = [abs(a - b) for pair in told for a, b in zip(*pair, strict=False)]
    return max(gaps, default=None)


def _tokens(turn: Turn) -> tuple[int, ...]:
    """What was shown before a turn, and what was said in it."""
    return (*turn.info["shown"], *turn.action)


def summary(run: Run) -> list[Row]:
    """Of each setting, variant and outcome, what its null twins came to.

    `num_nulls` of them were played, `num_differing` drew other tokens (or failed, `num_failed`),
    and `floor` is their mean squared difference of outcome, null where all failed. `at_risk` is the
    share of all tokens drawn whose lead was below `NEAR_TIE`, null where the engine does not tell.
    """
    nulls = read(run.path, TABLE).filter(pl.col("kind") == "null")
    gap = pl.col("factual").cast(pl.Float64) - pl.col("fork").cast(pl.Float64)
    found = nulls.group_by("setting", "variant", "outcome", maintain_order=True).agg(
        num_nulls=pl.len(),
        num_differing=(~pl.col("same_tokens").cast(pl.Boolean).fill_null(False)).sum(),
        num_failed=pl.col("fork").null_count(),
        floor=(gap**2).mean(),
    )
    return (
        found.join(_at_risk(run), on="variant", how="left", maintain_order="left")
        .collect()
        .to_dicts()
    )


def _at_risk(run: Run) -> pl.LazyFrame:
    """The share of tokens at risk of each variant."""
    steps = read(run.path, TABLE).select("step", "variant").unique()
    counts = read(run.path, "metrics").filter(pl.col("name").str.starts_with("noise/"))
    of = {
        name: pl.col("value").filter(pl.col("name") == f"noise/{name}_count").sum()
        for name in ("at_risk", "drawn")
    }
    shares = counts.join(steps, on="step").group_by("variant").agg(**of)
    return shares.select("variant", at_risk=pl.col("at_risk") / pl.col("drawn"))
