"""A random agent that plays real facts, its rollouts, and what two engines must agree in."""

import sys

import torch

from trainer.config import Config, ModelConfig, RolloutConfig, TaskConfig, changed
from trainer.loop.train import train_tasks
from trainer.policy import Policy, build_model, build_tokenizer
from trainer.setup import make_rollout
from trainer.tasks.demonstrations import demonstrations, text_of
from trainer.tasks.facts import SPECIAL_TOKENS
from twinstats.episodes import DIFFERENT, FRESH, KEEP, RESAMPLE, SHARED, Fork
from twinstats.noise import generator
from twinstats.rows import null_disagreements

MODEL = ModelConfig(
    layers=2, hidden=64, intermediate=128, heads=2, kv_heads=1, vocabulary=600, max_length=320
)
CONFIG = Config(
    recipe="demo",
    seed=5,
    model=MODEL,
    task=TaskConfig(parts=2),
    rollout=RolloutConfig(groups=3, group_size=2, max_turn_tokens=12, max_batch=12),
)
PARITY = 1e-3  # nats a token; both sides compute in float32


def make_policy():
    """A random model whose distributions are far from flat, and the demo's tokenizer."""
    # bm25s would import numba, where it is installed, after which vLLM's CPU build makes no engine
    sys.modules["numba"] = None
    texts = [
        text_of(one.segments)
        for one in demonstrations(60, num_parts=2, rng=generator(0, "tests/demonstrations"))
    ]
    tokenizer = build_tokenizer(texts, vocabulary=MODEL.vocabulary, special=SPECIAL_TOKENS)
    policy = Policy(build_model(MODEL, seed=0).eval(), tokenizer)
    shift(policy, 5.0)
    return policy


def shift(policy, scale):
    """Another policy in the place of the old one."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.ndim == 2:
                weight.mul_(scale)


def rollout_of(policy, *settings, engine=None):
    """A rollout, with the engine that the settings name or with this one."""
    rollout = make_rollout(policy, changed(CONFIG, settings))
    rollout.engine = rollout.engine if engine is None else engine
    return rollout


def play(rollout, step=0):
    """Factuals of a few tasks."""
    return rollout.play(train_tasks(CONFIG, step), CONFIG.rollout.group_size, step)


def fork(rollout, episodes):
    """Twins of all turns: resampled with shared and with fresh luck, kept, and different."""
    kinds = [(RESAMPLE, SHARED), (RESAMPLE, FRESH), (KEEP, SHARED), (DIFFERENT, SHARED)]
    forks = [
        Fork(one, turn, action=action, luck=luck)
        for one in episodes
        for turn in range(one.num_turns)
        for action, luck in kinds
    ]
    return rollout.fork(forks)


def told(episodes):
    """What the engines must agree in."""
    return [
        (tuple(turn.action for turn in one.turns), one.outcome, one.terminated, one.truncated)
        for one in episodes
    ]


def assert_rollouts_agree(found, wanted):
    """The same factuals, and the same twins of all their turns; null twins are their factuals."""
    factuals, references = play(found), play(wanted)
    assert told(factuals) == told(references)
    for one, other in zip(factuals, references, strict=True):
        for turn, own in zip(one.turns, other.turns, strict=True):
            assert abs(turn.logprob - own.logprob) < 1e-3
    twins, controls = fork(found, factuals), fork(wanted, references)
    assert told(twins) == told(controls)
    assert all(one.outcome is not None for one in twins)
    nulls, by_token, by_outcome = null_disagreements(twins)
    assert nulls == sum(one.num_turns for one in factuals) and (by_token, by_outcome) == (0, 0)
    assert nulls > 20 and len(set(told(twins))) > nulls
