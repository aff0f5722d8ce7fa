"""Training with methods whose needs a model fills: they learn, and resume to the same run."""

import dataclasses
import itertools

import pytest
import torch

from tests.trainer.test_train import Killed, assert_same, metric, play, results
from trainer.config import changed
from trainer.engines.hf import HfEngine
from trainer.loop.checkpoint import load_checkpoint, newest
from trainer.needs import Setup
from trainer.needs.critic import Critic
from trainer.policy import Policy, build_model
from trainer.setup import make_rollout
from trainer.tasks.rows import task_rows
from twinstats.credit import METHODS
from twinstats.episodes import Task

__all__ = ["play"]  # a fixture

METHODS_HERE = {
    "ppo": (),
    "sharpo": (),
    "craft": (),
    "factor": ("credit.rollouts=2", "credit.options.every=2"),
    "budget_gate": (),
    "igpo": (),
    "hcapo": (),
    "arpo": ("credit.options.leaves=4",),
}


@pytest.mark.parametrize("method", METHODS_HERE)
def test_a_method_whose_needs_a_model_fills_moves_the_policy(play, policy, tmp_path, method):
    settings = [f"credit.method={method}", *METHODS_HERE[method], "length.steps=2"]
    run = play(tmp_path / "run", *settings)
    assert max(metric(run, "loss/gradient_norm")) > 0
    assert not any(metric(run, "train/failed_count"))
    weights = load_checkpoint(newest(run / "checkpoints")).model
    start = dict(policy.model.named_parameters())
    assert any(not torch.equal(weights[name], start[name]) for name in weights)


def test_these_are_all_methods_with_such_needs():
    own = {"value", "teacher_gap", "gold_logprob", "hindsight_logprob", "first_entropy"}
    found = {
        name for name, entry in METHODS.items() if any(need.name in own for need in entry.needs)
    }
    assert found == set(METHODS_HERE)


def killed_after(step):
    def kill(done, metrics):
        if done == step:
            raise Killed

    return kill


def ppo(play, out, **fields):
    return play(out, "credit.method=ppo", **fields)


def test_a_run_with_a_critic_that_is_killed_and_resumed_is_the_undisturbed_one(play, tmp_path):
    undisturbed = ppo(play, tmp_path / "undisturbed")
    with pytest.raises(Killed):
        ppo(play, tmp_path / "run", on_step=killed_after(3))
    resumed = ppo(play, tmp_path / "run", resume=True)
    assert_same(everything(resumed), everything(undisturbed))
    needs = everything(resumed)[1]
    assert needs["value/weight"].any() and needs["value/optimizer/0/exp_avg_sq"].any()
    losses, shares = (
        metric(resumed, f"critic/{name}") for name in ("loss", "explained_variance_share")
    )
    assert len(losses) == len(shares) == 4 and all(loss >= 0 for loss in losses)


def everything(run):
    """Tables, and all tensors of the last checkpoint: the critic's and its optimizer's too."""
    found, weights = results(run)
    return found, weights | load_checkpoint(newest(run / "checkpoints")).needs


def test_a_run_without_needs_saves_none(play, tmp_path):
    run = play(tmp_path / "run", "length.steps=1")
    assert not (newest(run / "checkpoints") / "needs.safetensors").exists()
    assert load_checkpoint(newest(run / "checkpoints")).needs == {}


def test_the_engine_is_told_of_every_change_of_weights(play, tmp_path, monkeypatch):
    plain, told = HfEngine.sync, []

    def sync(self):
        told.append({k: v.clone() for k, v in self._model.named_parameters()})
        plain(self)

    monkeypatch.setattr(HfEngine, "sync", sync)

    with pytest.raises(Killed):
        play(tmp_path / "run", on_step=killed_after(3))
    saved = load_checkpoint(newest(tmp_path / "run" / "checkpoints")).model
    known = changes(told)
    assert len(known) == 4  # where training starts, and what steps 1, 2 and 3 made
    assert all(torch.equal(known[2][name], saved[name]) for name in saved)
    del told[:]
    play(tmp_path / "run", resume=True)
    known = changes(told)
    assert len(known) == 3  # the checkpoint's weights, then steps 3 and 4
    assert all(torch.equal(known[0][name], saved[name]) for name in saved)


def changes(told):
    """What an engine was told, without what it knew already."""
    return told[:1] + [
        after
        for before, after in itertools.pairwise(told)
        if any(not torch.equal(before[name], after[name]) for name in after)
    ]


@pytest.mark.slow
def test_a_critic_explains_outcomes_on_the_tiny_policy(config, tokenizer, parity):
    """Trained on many episodes of one policy, it beats the mean on others."""
    own = changed(config, ["rollout.max_turn_tokens=3"])
    policy = Policy(build_model(own.model, seed=0), tokenizer)
    rollout = make_rollout(policy, own)
    tasks = [Task(row.id, row.info) for row in task_rows("train", 1, key="critic")[:64]]
    needs = dataclasses.replace(own.needs, critic_learning_rate=3e-3)
    critic = Critic(
        Setup(policy=policy, environment=object, config=dataclasses.replace(own, needs=needs))
    )
    shares = [
        critic.learn(rollout.play(tasks, 2, step))["critic/explained_variance_share"]
        for step in range(1, 21)
    ]
    assert sum(shares[-10:]) / 10 > 0.1  # .19 when this was written
