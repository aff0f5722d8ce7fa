"""The configuration of a run: one frozen tree.

A field exists only if a second value is in use. Leaves out where the defaults come from: recipes.
"""

import functools
import math
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.config.paths import paths
from twinstats.errors import UsageError

KlKind = Literal["k1", "k2", "k3"]

_LEAST: dict[str, float] = {
    "model.layers": 1,
    "model.hidden": 1,
    "model.intermediate": 1,
    "model.heads": 1,
    "model.kv_heads": 1,
    "model.vocabulary": 300,
    "model.max_length": 64,
    "warmup.steps": 0,
    "warmup.learning_rate": 0,
    "optimizer.learning_rate": 0,
    "optimizer.weight_decay": 0,
    "loss.clip_low": 0,
    "loss.clip_high": 0,
    "loss.kl_coefficient": 0,
    "loss.epochs": 1,
    "loss.minibatches": 1,
    "loss.micro_rows": 1,
    "warmup.episodes": 1,
    "warmup.rows": 1,
    "warmup.row_tokens": 2,
    "warmup.warmup_steps": 1,
    "optimizer.warmup_steps": 0,
    "lora.rank": 0,
    "learner.chunk_tokens": 1,
    "evaluation.samples": 1,
    "task.parts": 1,
    "rollout.groups": 1,
    "rollout.group_size": 1,
    "rollout.max_turn_tokens": 1,
    "rollout.max_batch": 1,
    "engine.cache_mib": 0,
    "needs.critic_learning_rate": 0,
    "needs.judge_nats": 0,
    "credit.twins": 1,
    "credit.rollouts": 1,
    "length.steps": 0,
    "length.total_tokens": 1,
    "evaluation.questions": 1,
    "evaluation.every": 0,
    "checkpoint.every": 1,
    "checkpoint.keep": 1,
    "log.text_rows": 0,
}
_MOST: dict[str, float] = {  # a noise key has 16 bits for the number of a twin
    "credit.twins": 65_535,
    "credit.rollouts": 65_535,
    "credit.budget": 65_535,
    "evaluation.samples": 65_535,  # beyond, as of the next, memory ends before the answers do
    "rollout.group_size": 65_535,
}
_POSITIVE = (
    "rollout.temperature",
    "rollout.tool_seconds",
    "engine.timeout_seconds",
    "engine.parity_nats",
    "needs.judge_seconds",
    "loss.importance_cap",
    "loss.max_kl",
    "warmup.decay_share",
    "lora.alpha",
    "optimizer.max_gradient_norm",
)
FREE = ("credit.options",)  # under them any name goes; what reads them refuses wrong ones
_SHARES = (
    "warmup.four_part_share",
    "warmup.decay_share",
    "warmup.observation_share",
    "warmup.minimum_exact_match",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Qwen2-architecture model that is built on the spot, or one that is `pretrained`.

    `pretrained` is a name of `trainer.policy.pretrained.PACKAGED`, a local folder, or a name on the
    hub. The sizes are then the model's own: of these only `vocabulary`, which must be as large, and
    `max_length` count.
    """

    pretrained: str = ""
    layers: int = 2
    hidden: int = 128
    intermediate: int = 512
    heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 3072
    max_length: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupConfig:
    """Supervised warm-up on demonstrations of mixed quality, of models that are not pretrained.

    Of `episodes` demonstrations `four_part_share` ask four questions, the others one. Each of the
    `steps` updates has `rows` rows of `row_tokens` tokens; the rate goes up over `warmup_steps` and
    falls to 0 over the last `decay_share`. Of the tokens that were shown rather than sampled, a
    random `observation_share` is learned. Training refuses a policy, pretrained ones too, whose
    sampled exact match on test questions, if the task tells it, is below `minimum_exact_match`.
    """

    episodes: int = 16000
    four_part_share: float = 0.5
    steps: int = 900
    warmup_steps: int = 40
    decay_share: float = 0.4
    rows: int = 12
    row_tokens: int = 256
    learning_rate: float = 4e-3
    observation_share: float = 0.3
    minimum_exact_match: float = 0.25
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """What is played.

    `data` is a file of questions or chats, for tasks that read one, and `retriever` the address
    that searches for them (none: an index over the file `corpus`). `format` is how a tool is called
    in a task that has several ways.
    """

    name: str = "facts"
    parts: int = 4
    data: str = ""
    test_data: str = ""
    corpus: str = ""
    retriever: str = ""
    format: Literal["tags", "hermes"] = "tags"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """How episodes are played. A tool that takes longer than `tool_seconds` has failed."""

    groups: int = 4
    group_size: int = 8
    temperature: float = 1.0
    max_turn_tokens: int = 32
    max_batch: int = 128
    tool_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What samples: `hf`, or vLLM in this process or at `servers` (addresses, comma-separated).

    `drafts` lets twins verify their factual's tokens instead of decoding them (`hf`); `cache_mib`
    bounds the keys and values kept for forks (`hf`), or all that vLLM in this process has. After
    each change of weights an engine of its own must agree with the learner's log-probabilities to
    `parity_nats` a token. An answer of vLLM may take `timeout_seconds`. With `batch_invariant` its
    logits do not depend on what a row is batched with.
    """

    name: Literal["hf", "vllm"] = "hf"
    drafts: bool = True
    cache_mib: int = 2048
    servers: str = ""
    timeout_seconds: float = 120.0
    parity_nats: float = 0.05
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsConfig:
    """What methods need besides episodes: critic, judge, regressor.

    `judge` is the policy itself, or the address of an OpenAI-compatible server, as
    http://localhost:8000/v1, which asks `judge_model` and has `judge_seconds` for a reply. Its key,
    if it wants one, is read from the environment: TWINSTATS_JUDGE_KEY. The policy proposes a turn
    if its log-odds of yes against no move by more than `judge_nats`. `regressor=auto` is TabPFN
    where its weights are.
    """

    critic_learning_rate: float = 1e-3
    judge: str = "policy"
    judge_model: str = ""
    judge_seconds: float = 60.0
    judge_nats: float = 0.5
    regressor: Literal["auto", "tabpfn", "sklearn"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig:
    """The credit method; a method takes from here the options it has.

    `budget` is the expected auxiliary tokens as a multiple of the factual ones; none means `twins`
    twins of every turn. Of a budget, `explore` is the share spent evenly over turns, `null` the
    probability that a turn with a twin gets a null twin too, and `fresh` that a twin gets a control
    with fresh luck; what a step spends beyond its plan, later steps save. `rollouts` is of `vine`
    and its like. `credit.options.NAME=VALUE` sets any other option of the method, and
    `credit.options=none` takes them all back.
    """

    method: str = "rloo"
    twins: int = 1
    rollouts: int = 3
    budget: float | None = 1.0
    explore: float = 0.1
    null: float = 0.05
    fresh: float = 0.1
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The clipped policy gradient, and what joins it.

    `ratio` is that of each token, or of its turn: exp of its tokens' mean log-ratio. Tokens are
    averaged (`token`), or within each turn, turns being summed and divided by the number of
    episodes (`turn`: as much for a short turn as for a long one) or of turns (`turn_mean`), or
    summed and divided by the number of episodes (`constant`).

    Each batch is gone through `epochs` times in `minibatches` updates, `micro_rows` rows of an
    update at a time. `kl` estimates the KL to the policy training started from; it counts
    `kl_coefficient` in the loss, or lowers a token's credit. `importance_cap` cuts the weights
    learner / engine (none: no weights). `max_kl` stops training once that KL, in nats
    a token, passes it. `drop_truncated` and `drop_equal_groups` take episodes that a limit cut, and
    groups whose outcomes are all equal, out of the update, once their credit was computed.
    """

    ratio: Literal["token", "turn"] = "token"
    aggregation: Literal["token", "turn", "turn_mean", "constant"] = "turn"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: KlKind = "k2"
    kl_in: Literal["loss", "credit"] = "loss"
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.0
    importance_cap: float | None = None
    epochs: int = 1
    minibatches: int = 1
    micro_rows: int = 64
    max_kl: float | None = None
    drop_truncated: bool = False
    drop_equal_groups: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters on all linear layers in place of the weights themselves; rank 0: none."""

    rank: int = 0
    alpha: float = 32.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How an update is computed: what it costs, never what it is (but for rounding).

    `precision` is that of matrix products; weights and sums stay in float32. Logits exist for
    `chunk_tokens` tokens at a time (none: for all of a micro-batch). With several processes,
    `sharding` says whether each holds the whole model or a part of it.
    """

    precision: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    chunk_tokens: int | None = None
    sharding: Literal["ddp", "fsdp2"] = "ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW. The rate goes up over `warmup_steps` and then, by `schedule`, down to 0 at the end.

    The end is that of the steps or of `length.total_tokens`, whichever is nearer.
    """

    learning_rate: float = 3e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthConfig:
    """When training ends: after `steps`, or once `total_tokens` were sampled."""

    steps: int = 100
    total_tokens: int | None = None

    def share_done(self, *, step: int, total_tokens: float) -> float:
        """How much of a run is over, up to 1: of its steps or its tokens, whichever is more."""
        by_steps = step / self.steps if self.steps else 1.0
        by_tokens = total_tokens / self.total_tokens if self.total_tokens else 0.0
        return min(1.0, max(by_steps, by_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Evaluation on test questions, before and after and every `every` steps (0: never between).

    Each is answered greedily once and `samples` times sampled, for pass@k.
    """

    questions: int = 500
    every: int = 0
    samples: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """A checkpoint every `every` steps and at the end; the last `keep` stay, and the best."""

    every: int = 20
    keep: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What is logged besides the tables: text of factuals of `text_rows` rows a step, with forks.

    `tracker` sends metrics to a service as well.
    """

    text_rows: int = 1
    tensorboard: bool = True
    tracker: Literal["none", "wandb", "trackio"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole of a training run.

    `reward` is a function, package.module:name, that scores episodes in place of the task.

    Raises:
        UsageError: A number with which no run is possible; the field is named.
    """

    recipe: str
    seed: int = 0
    reward: str = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    needs: NeedsConfig = field(default_factory=NeedsConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        for path in paths(self):
            value: Any = functools.reduce(getattr, path.split("."), self)
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"`{path}` must be finite, got {value}.")
            if value is not None and path in _LEAST and value < _LEAST[path]:
                raise UsageError(f"`{path}` must be at least {_LEAST[path]}, got {value}.")
            if value is not None and path in _MOST and value > _MOST[path]:
                raise UsageError(f"`{path}` must be at most {_MOST[path]}, got {value}.")
            if value is not None and path in _POSITIVE and not value > 0:
                raise UsageError(f"`{path}` must be above 0, got {value}.")
            if path in _SHARES and not 0 <= value <= 1:
                raise UsageError(f"`{path}` must be in [0, 1], got {value}.")
        _check_texts("credit.options", self.credit.options)
        judge = self.needs.judge
        if judge != "policy" and not _is_address(judge):
            raise UsageError(f"`needs.judge` must be policy or an http address, got {judge!r}.")


def _is_address(text: str) -> bool:
    """Whether a text is http:// or https:// and names a host."""
    try:
        parts = urllib.parse.urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _check_texts(path: str, values: Any) -> None:
    if not isinstance(values, Mapping) or not all(isinstance(v, str) for v in values.values()):
        raise UsageError(f"`{path}` must hold texts by name, got {values!r}.")
