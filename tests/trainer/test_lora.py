"""Adapters: what is trained, saved, sampled from and measured against."""

import pytest
import torch

from tests.trainer.conftest import MODEL
from tests.trainer.test_train import Killed, assert_same, play, results
from trainer.config import LoraConfig, changed
from trainer.engines.hf import HfEngine
from trainer.learning.learner import Learner
from trainer.learning.optimizer import make_optimizer, trained_parameters
from trainer.loop.checkpoint import load_checkpoint, newest
from trainer.loop.train import train_tasks
from trainer.policy import build_model, padded, token_logprobs
from trainer.policy.lora import adapters_off, add_adapters, has_adapters, plain_weights
from trainer.setup import make_rollout
from twinstats.credit import assign, make
from twinstats.episodes import group_by_task
from twinstats.errors import UsageError

__all__ = ["play"]  # a fixture

LORA = LoraConfig(rank=3, alpha=12.0)


@pytest.fixture
def adapted(policy):
    """A policy with adapters that do something: B is drawn as well."""
    add_adapters(policy.model, LORA, seed=5)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, one in trained_parameters(policy.model).items():
            if "lora_B" in name:
                one.copy_(torch.randn(one.shape, generator=draws) / 10)
    return policy


def logprobs(model):
    ids, mask = padded([[5, 9, 30, 7, 2], [1, 2, 3]])
    wanted = mask.clone()
    wanted[:, 0] = False
    with torch.no_grad():
        return token_logprobs(model, ids, mask, wanted, temperature=1.0)[0]


def test_fresh_adapters_change_nothing_and_only_they_are_trained(policy):
    before = logprobs(policy.model)
    names = [name for name, _ in policy.model.named_parameters()]
    add_adapters(policy.model, LoraConfig(rank=0), seed=5)
    assert not has_adapters(policy.model)
    state = torch.get_rng_state()
    add_adapters(policy.model, LORA, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logprobs(policy.model), before)
    trained = trained_parameters(policy.model)
    linear = [name for name in names if name.endswith("proj.weight")]
    assert len(linear) == 7 * MODEL.layers and len(trained) == 2 * len(linear)
    assert all("lora_" in name for name in trained)
    assert [name for name, _ in plain_weights(policy.model)] == names


def test_adapters_are_those_of_the_seed(policy):
    def drawn(seed):
        model = build_model(MODEL, seed=0)
        add_adapters(model, LORA, seed=seed)
        return torch.cat([one.detach().flatten() for one in trained_parameters(model).values()])

    assert torch.equal(drawn(5), drawn(5)) and not torch.equal(drawn(5), drawn(6))


def test_the_plain_weights_compute_what_the_adapted_model_does(adapted):
    plain = build_model(MODEL, seed=1)
    plain.load_state_dict(dict(plain_weights(adapted.model)), strict=False)  # tied: no lm_head
    torch.testing.assert_close(logprobs(plain), logprobs(adapted.model), rtol=1e-4, atol=1e-5)
    with adapters_off(adapted.model):
        base = logprobs(adapted.model)
    assert torch.equal(base, logprobs(build_model(MODEL, seed=0)))
    assert float((base - logprobs(adapted.model)).abs().max()) > 0.01
    assert all(one.requires_grad for n, one in adapted.model.named_parameters() if "lora_" in n)


def test_alpha_over_rank_scales_the_product(adapted):
    name = "model.layers.0.self_attn.q_proj"
    layer = adapted.model.get_submodule(name)
    product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    expected = layer.base_layer.weight + 12 / 3 * product
    torch.testing.assert_close(dict(plain_weights(adapted.model))[f"{name}.weight"], expected)


def credits_of(policy, config):
    rollout = make_rollout(policy, config)
    episodes = rollout.play(train_tasks(config, 1), config.rollout.group_size, 1)
    return assign(rollout, group_by_task(episodes, seed=5, step=1), make("rloo"))


def test_the_engine_samples_from_the_adapted_policy(adapted, config, parity):
    learner = Learner.of(adapted, make_optimizer(adapted, config), config)
    credits = credits_of(adapted, config)
    assert 0 < learner.update(credits, 1)["engine/logprob_gap_nats"] < 1e-4
    with adapters_off(adapted.model):
        credits = credits_of(adapted, config)
    assert learner.update(credits, 2)["engine/logprob_gap_nats"] > 1e-2


def test_the_engine_notices_an_adapter_that_moved(adapted):
    engine = HfEngine(adapted.model, stop=frozenset(), max_turn_tokens=2)
    assert engine._weights.changed() and not engine._weights.changed()
    with torch.no_grad():
        next(iter(trained_parameters(adapted.model).values())).mul_(2)
    assert engine._weights.changed()


def test_the_reference_is_the_base_model_and_no_second_copy(adapted, config, parity):
    own = changed(config, ["loss.kl_coefficient=0.1", "optimizer.learning_rate=0"])
    learner = Learner.of(adapted, make_optimizer(adapted, own), own)
    assert learner.reference is None
    credits = credits_of(adapted, config)
    kl = learner.update(credits, 1)["loss/kl_nats"]
    plain = build_model(MODEL, seed=0).eval()
    assert kl == pytest.approx(
        Learner(adapted, learner.optimizer, own, plain).update(credits, 1)["loss/kl_nats"]
    )
    assert kl > 1e-3


def test_what_makes_no_adapter_is_refused(policy):
    with pytest.raises(UsageError, match="`lora.rank` must be at most 16, the smallest side"):
        add_adapters(policy.model, LoraConfig(rank=17), seed=0)
    assert not has_adapters(policy.model)
    add_adapters(policy.model, LORA, seed=0)
    with pytest.raises(UsageError, match="has adapters already"):
        add_adapters(policy.model, LORA, seed=0)


def test_a_run_saves_its_adapters_only_and_resumes_bit_for_bit(play, tmp_path):
    settings = ("lora.rank=3", "loss.max_kl=9", "optimizer.schedule=cosine")
    whole = play(tmp_path / "whole", *settings)

    def kill(done, metrics):
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        play(tmp_path / "broken", *settings, on_step=kill)
    broken = play(tmp_path / "broken", *settings, resume=True)
    assert_same(results(broken), results(whole))
    found, expected = (load_checkpoint(newest(run / "checkpoints")) for run in (broken, whole))
    assert found.step == expected.step == 4
    assert all("lora_" in name for name in expected.model)
    assert any(float(one.abs().max()) > 0 for n, one in expected.model.items() if "lora_B" in n)
    for name, value in expected.optimizer.items():
        assert torch.equal(found.optimizer[name], value), name
