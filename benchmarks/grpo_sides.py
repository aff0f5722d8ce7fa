"""The two sides of `benchmarks.trainer`: GRPO steps of this trainer, and of TRL's.

Both play the same prompts, one turn each, with models of equal weights, and learn from the same
reward with the same loss. A turn ends at the token `<end>`, whose probability hardly depends on
what stands before it: lengths are nearly geometric, cut at `MAX_NEW`.
"""

import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from trainer.config import (
    Config,
    CreditConfig,
    LearnerConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    TaskConfig,
)
from trainer.learning.learner import Learner
from trainer.learning.optimizer import make_optimizer
from trainer.policy import PAD, Policy, build_model
from trainer.setup import make_method, make_rollout
from trainer.tasks import Row, Step
from twinstats.credit import assign
from twinstats.episodes import Task, group_by_task
from twinstats.noise import generator

END = "<end>"
GENERATIONS = 8
SHORTEST, LONGEST = 16, 64  # tokens of a prompt
MAX_NEW, MEAN_LENGTH = 128, 32  # tokens of a turn
RATE = 1e-6
STAGES = ("sampling", "credit", "log-probabilities and loss", "backward", "optimizer", "rest")
_SHARED = 0.06  # an entry of the vector that all embeddings share


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What both sides train, and how.

    Attributes:
        model: The demo's sizes, unless said otherwise.
        prompts: Prompts of a step, each with `GENERATIONS` turns.
        micro_rows: Rows of a pass with gradient.
        chunk_tokens: `learner.chunk_tokens` of our side.
    """

    model: ModelConfig = field(default_factory=lambda: ModelConfig(max_length=256))
    prompts: int = 16
    micro_rows: int = 64
    chunk_tokens: int | None = None


@dataclass(slots=True)
class Tally:
    """What steps took and made.

    Attributes:
        seconds: By stage.
        trained: Tokens that were trained; all that were sampled are.
        longest: Tokens of the longest turn.
    """

    seconds: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    longest: int = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the seconds of a block, without those of the blocks inside it."""
        before, began = self.seconds.total(), time.perf_counter()
        yield
        inside = self.seconds.total() - before
        self.seconds[name] += time.perf_counter() - began - inside

    def count(self, lengths: Iterable[int]) -> None:
        """Counts turns in by their number of tokens."""
        for length in lengths:
            self.trained += length
            self.longest = max(self.longest, length)


class Side(Protocol):
    """A trainer that takes GRPO steps.

    Attributes:
        tally: Of the steps that were taken last, or are being taken.
    """

    tally: Tally

    def steps(self, count: int) -> Tally:
        """Takes some steps."""
        ...


def make_policy(model: ModelConfig) -> Policy:
    """A random model of words that ends a turn after `MEAN_LENGTH` tokens, if it is not cut."""
    words = {PAD: 0, END: 1} | {f"w{number}": number for number in range(2, model.vocabulary)}
    plain = Tokenizer(models.WordLevel(words, unk_token=PAD))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token=PAD, eos_token=END)
    network = build_model(model, seed=0)
    _end_with(network, 1 / MEAN_LENGTH)
    network.generation_config.eos_token_id, network.generation_config.pad_token_id = 1, 0
    network.config.eos_token_id = 1
    return Policy(network, tokenizer)


@torch.no_grad()
def _end_with(network: PreTrainedModel, chance: float) -> None:
    """Gives `<end>` this probability, nearly, after any text.

    All embeddings get a vector in common, so that the last hidden state has a steady part along it;
    all tokens but one gain the same by it.
    """
    table_VH = network.get_input_embeddings().weight
    shared_H = torch.full_like(table_VH[0], _SHARED)
    table_VH += shared_H
    ids = torch.arange(2, 2 + 8 * 64).reshape(8, 64)
    push = network.base_model(input_ids=ids).last_hidden_state @ shared_H
    wanted = math.log(chance / (1 - chance) * len(table_VH))
    table_VH[1] = table_VH.mean(0) + shared_H * (wanted / push.mean())


def make_prompts(setting: Setting) -> list[str]:
    """Prompts of random words, of many lengths."""
    rng = generator(0, "benchmark/prompts")
    lengths = rng.integers(SHORTEST, LONGEST + 1, size=setting.prompts)
    words = setting.model.vocabulary
    return [" ".join(f"w{k}" for k in rng.integers(2, words, size=n)) for n in lengths]


def reward_of(text: str) -> float:
    """The share of a text's words whose number is even."""
    words = text.replace(END, "").split()
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))


class OneTurn:
    """The task: a prompt, one turn, its reward."""

    stop: ClassVar[tuple[str, ...]] = (END,)
    max_turns: ClassVar[int] = 1

    def reset(self, row: Row, noise: Any = None) -> str:
        """The prompt."""
        return str(row["prompt"])

    def step(self, text: str, noise: Any = None) -> Step:
        """Ends the episode."""
        info = {"part": 0, "turn": 0, "won": False, "truncated": END not in text}
        return Step("", reward_of(text), True, info)

    def slot(self, history: list[str]) -> int:
        """The number of the turn."""
        return len(history)


class Ours:
    """The parts of `trainer.loop.train`, in its order; nothing is logged or saved."""

    def __init__(self, setting: Setting) -> None:
        config = _config(setting)
        policy = make_policy(setting.model)
        self.tally, self._step = Tally(), 0
        self._rollout = make_rollout(policy, config, environment=OneTurn)
        self._method = make_method(config)
        self._learner = Learner.of(policy, make_optimizer(policy, config), config)
        _time_optimizer(self._learner.optimizer, self)
        prompts = make_prompts(setting)
        self._tasks = [Task(str(k), {"prompt": one}) for k, one in enumerate(prompts)]

    def steps(self, count: int) -> Tally:
        """Takes some steps."""
        self.tally = Tally()
        for _ in range(count):
            self._step += 1
            with self.tally.stage("rest"):
                self._one(self.tally)
        return self.tally

    def _one(self, tally: Tally) -> None:
        with tally.stage("sampling"):
            episodes = self._rollout.play(self._tasks, GENERATIONS, self._step)
        with tally.stage("credit"):
            groups = group_by_task(episodes, seed=0, step=self._step)
            credits = assign(self._rollout, groups, self._method)
        with tally.stage("log-probabilities and loss"), _timed_backward(tally):
            self._learner.update(credits, self._step)
        self._rollout.engine.sync()
        tally.count(len(turn.action) for one in episodes for turn in one.turns)


class Theirs:
    """TRL's `GRPOTrainer` with transformers' `generate`, as its documentation sets it up."""

    def __init__(self, setting: Setting) -> None:
        policy = make_policy(setting.model)
        self.tally = Tally()
        self._trainer = _timed_trainer(self)(
            model=policy.model,
            reward_funcs=_rewards,
            args=_arguments(setting),
            train_dataset=_dataset(make_prompts(setting)),
            processing_class=policy.tokenizer,
        )
        _time_optimizer(self._trainer.create_optimizer(), self)

    def steps(self, count: int) -> Tally:
        """Takes some steps: a training of its own, of which setting up is not counted."""
        self.tally = Tally()
        self._trainer.args.max_steps = count
        with _timed_backward(self.tally):
            self._trainer.train()
        return self.tally


def _timed_trainer(side: Side) -> Any:
    """`GRPOTrainer` with its stages timed: it does what it does."""
    from transformers import PrinterCallback
    from trl import GRPOTrainer

    class Timed(GRPOTrainer):
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            self.remove_callback(PrinterCallback)  # it prints each step between our tables
            self.add_callback(_timed_steps(side))

        def compute_loss(self, *args: Any, **how: Any) -> Any:
            with side.tally.stage("log-probabilities and loss"):
                return super().compute_loss(*args, **how)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            with side.tally.stage("credit"):
                made = super()._generate_and_score_completions(inputs)
            side.tally.count(made["completion_mask"].sum(1).tolist())
            return made

        def _generate(self, prompts: Any) -> Any:
            with side.tally.stage("sampling"):
                return super()._generate(prompts)

    return Timed


def _timed_steps(side: Side) -> Any:
    """A callback that counts what no stage does, from the begin of each step to its end."""
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        def on_step_begin(self, *args: Any, **how: Any) -> None:
            self.inside = side.tally.stage("rest")
            self.inside.__enter__()

        def on_step_end(self, *args: Any, **how: Any) -> None:
            self.inside.__exit__(None, None, None)

    return Steps()


@contextmanager
def _timed_backward(tally: Tally) -> Iterator[None]:
    """Counts the backward passes of a block apart."""
    plain = torch.Tensor.backward

    def timed(*args: Any, **how: Any) -> None:
        with tally.stage("backward"):
            plain(*args, **how)

    torch.Tensor.backward = timed
    try:
        yield
    finally:
        torch.Tensor.backward = plain


def _time_optimizer(optimizer: torch.optim.Optimizer, side: Side) -> None:
    """Counts an optimizer's steps apart."""
    began = [0.0]

    def before(*args: Any) -> None:
        began[0] = time.perf_counter()

    def after(*args: Any) -> None:
        side.tally.seconds["optimizer"] += time.perf_counter() - began[0]

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def _rewards(completions: list[str], **columns: Any) -> list[float]:
    return [reward_of(text) for text in completions]


def _dataset(prompts: list[str]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"prompt": prompts})


def _config(setting: Setting) -> Config:
    return Config(
        recipe="benchmark",
        model=setting.model,
        task=TaskConfig(parts=1),
        rollout=RolloutConfig(
            groups=setting.prompts, group_size=GENERATIONS, max_turn_tokens=MAX_NEW, max_batch=128
        ),
        credit=CreditConfig(method="grpo"),
        loss=LossConfig(aggregation="token", micro_rows=setting.micro_rows),
        learner=LearnerConfig(chunk_tokens=setting.chunk_tokens),
        optimizer=OptimizerConfig(learning_rate=RATE),
    )


def _arguments(setting: Setting) -> Any:
    """Our settings in TRL's words; what is not on the list is as TRL has it."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=setting.micro_rows,
        gradient_accumulation_steps=setting.prompts * GENERATIONS // setting.micro_rows,
        num_generations=GENERATIONS,
        max_completion_length=MAX_NEW,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        loss_type="dapo",
        beta=0.0,
        epsilon=0.2,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
