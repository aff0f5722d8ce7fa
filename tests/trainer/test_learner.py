"""The learner: what its updates add up to, and what they look at."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from trainer.config import changed
from trainer.learning.credited import engine_logprobs, filtered
from trainer.learning.learner import Learner
from trainer.learning.loss import make_batch
from trainer.learning.optimizer import make_optimizer, trained_parameters
from trainer.loop.train import train_tasks
from trainer.policy import Policy, token_logprobs
from trainer.policy.lora import add_adapters
from trainer.setup import make_rollout
from twinstats.episodes import Credit


@pytest.fixture
def played(policy, config):
    """Two groups of two episodes with credit of both signs."""
    episodes = make_rollout(policy, config).play(train_tasks(config, 1), 2, 1)
    rng = np.random.default_rng(0)
    return [
        Credit(episodes=pair, values=[rng.normal(size=e.num_turns) for e in pair])
        for pair in (episodes[:2], episodes[2:])
    ]


def learner(policy, config, *settings):
    config = changed(config, list(settings))
    return Learner.of(policy, make_optimizer(policy, config), config)


def gradients(policy):
    return {name: one.grad.clone() for name, one in policy.model.named_parameters()}


@pytest.mark.parametrize("aggregation", ["token", "turn", "turn_mean", "constant"])
def test_accumulated_gradients_are_those_of_one_big_batch(policy, config, played, aggregation):
    settings = [
        f"loss.aggregation={aggregation}",
        "optimizer.learning_rate=0",
        "loss.kl_coefficient=0.1",
        "loss.entropy_coefficient=0.1",
    ]
    whole = learner(policy, config, *settings).update(played, 1)
    expected = gradients(policy)
    assert max(float(one.abs().max()) for one in expected.values()) > 1e-3
    for rows in (1, 3):
        parts = learner(policy, config, *settings, f"loss.micro_rows={rows}").update(played, 1)
        for name, gradient in gradients(policy).items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-7)
        assert parts == pytest.approx(whole, rel=1e-4, abs=1e-6)


def test_the_first_update_is_on_policy_and_later_ones_are_clipped_against_it(
    policy, config, played
):
    settings = ("optimizer.learning_rate=0.05", "loss.epochs=3")
    metrics = learner(policy, config, *settings).update(played, 1)
    assert metrics["loss/updates_count"] == 3
    assert metrics["loss/clipped_share"] > 0 and metrics["loss/moved_nats"] > 1e-4
    once = learner(policy, config, "optimizer.learning_rate=0.05").update(played, 1)
    assert once["loss/clipped_share"] == 0 == once["loss/moved_nats"]


def test_minibatches_see_every_row_once_an_epoch_in_another_order_each_step(
    policy, config, played, monkeypatch
):
    own = learner(policy, config, "loss.epochs=2", "loss.minibatches=2")
    seen = []
    monkeypatch.setattr(Learner, "_gradient", lambda self, batch, *_: seen.append(batch))
    monkeypatch.setattr(Learner, "_clipped", lambda self: 0.0)
    own.update(played, 1)
    ids = [tuple(row) for part in seen for row in part.ids_RL[:, :1].tolist()]
    assert len(seen) == 4 and len(ids) == 8
    assert [part.num_episodes for part in seen] == [2.0] * 4
    whole = make_batch(played)
    for epoch in (seen[:2], seen[2:]):
        assert sum(part.num_tokens for part in epoch) == whole.num_tokens
        assert sum(part.num_turns for part in epoch) == whole.num_turns


@pytest.mark.parametrize("aggregation", ["token", "turn", "turn_mean", "constant"])
def test_turn_ratios_know_the_turns_of_their_minibatch(policy, config, played, aggregation):
    settings = ["loss.ratio=turn", f"loss.aggregation={aggregation}", "loss.minibatches=2"]
    metrics = learner(policy, config, *settings).update(played, 1)
    assert metrics["loss/updates_count"] == 2
    assert metrics["loss/trained_tokens"] == make_batch(played).num_tokens


def test_an_entropy_bonus_alone_raises_the_entropy(policy, config, played):
    nothing = [
        dataclasses.replace(one, values=[np.zeros_like(own) for own in one.values])
        for one in played
    ]
    settings = ("optimizer.learning_rate=0.001", "loss.epochs=4")
    before = learner(policy, config).update(nothing, 1)["loss/entropy_nats"]
    assert learner(policy, config, *settings).update(nothing, 1)["loss/gradient_norm"] == 0
    learner(policy, config, *settings, "loss.entropy_coefficient=0.1").update(nothing, 1)
    after = learner(policy, config).update(nothing, 1)["loss/entropy_nats"]
    assert after > before + 1e-3  # of 7e-3 that it can rise


def test_the_kl_is_to_the_policy_that_training_started_from(policy, config, played):
    own = learner(policy, config, "loss.kl=k3", "loss.max_kl=9", "optimizer.learning_rate=0.01")
    first = own.update(played, 1)
    assert first["loss/kl_nats"] == pytest.approx(0, abs=1e-9)
    second = own.update(played, 2)
    assert second["loss/kl_nats"] > 1e-4
    assert "loss/kl_nats" not in learner(policy, config).update(played, 1)


def test_importance_weights_come_from_the_engine(policy, config, played):
    batch = make_batch(played)
    found = engine_logprobs(played, batch)
    told = [
        value
        for credit in played
        for episode in credit.episodes
        for turn in episode.turns
        for value in turn.info["logprobs"]
    ]
    assert found[batch.trained_RL].tolist() == pytest.approx(told)
    assert (found[~batch.trained_RL] == 0).all()
    metrics = learner(policy, config, "loss.importance_cap=1.5").update(played, 1)
    assert metrics["loss/capped_share"] == 0
    episode = played[0].episodes[0]
    blind = dataclasses.replace(episode.turns[0], info=episode.turns[0].info | {"logprobs": None})
    turns = (blind, *episode.turns[1:])
    unknown = dataclasses.replace(episode, turns=turns)
    credit = Credit(episodes=[unknown], values=played[0].values[:1])
    with pytest.raises(ValueError, match=f"turn 0 of episode {episode.name}"):
        learner(policy, config, "loss.importance_cap=1.5").update([credit], 1)


def test_what_is_dropped_is_counted_and_its_statistics_stay(config, played):
    def outcomes(values, cut):
        made = [
            dataclasses.replace(e, outcome=v, truncated=t)
            for e, v, t in zip(played[0].episodes, values, cut, strict=True)
        ]
        return dataclasses.replace(played[0], episodes=made)

    credits = [outcomes([1.0, 1.0], [False, False]), outcomes([1.0, 0.0], [False, True])]
    kept, counts = filtered(credits, config.loss)
    assert counts == {"loss/dropped_groups_count": 0, "loss/dropped_episodes_count": 0}
    assert all(np.isfinite(v).all() for credit in kept for v in credit.values)
    both = changed(config, ["loss.drop_truncated=true", "loss.drop_equal_groups=true"]).loss
    kept, counts = filtered(credits, both)
    assert counts == {"loss/dropped_groups_count": 1, "loss/dropped_episodes_count": 1}
    assert [bool(np.isfinite(v).all()) for credit in kept for v in credit.values] == [
        False,
        False,
        True,
        False,
    ]
    assert np.array_equal(kept[1].values[0], credits[1].values[0])


# How an update is computed


@pytest.mark.parametrize(
    "setting", ["learner.chunk_tokens=3", "learner.gradient_checkpointing=true", "lora.rank=2"]
)
def test_what_an_update_costs_does_not_change_what_it_is(policy, config, played, setting):
    settings = ["optimizer.learning_rate=0", "loss.entropy_coefficient=0.1", "loss.max_kl=9"]
    if setting.startswith("lora"):
        add_adapters(policy.model, changed(config, [setting]).lora, seed=0)
        settings, setting = [*settings, setting], "learner.gradient_checkpointing=true"
    whole = learner(policy, config, *settings).update(played, 1)
    expected = [one.grad.clone() for one in trained_parameters(policy.model).values()]
    found = learner(policy, config, *settings, setting).update(played, 1)
    assert max(float(one.abs().max()) for one in expected) > 1e-4
    for one, other in zip(trained_parameters(policy.model).values(), expected, strict=True):
        torch.testing.assert_close(one.grad, other, rtol=1e-4, atol=1e-6)
    assert found == pytest.approx(whole, rel=1e-4, abs=1e-6)


def test_bfloat16_rounds_the_products_and_the_gap_to_the_engine_tells_how_much(
    policy, config, played
):
    settings = ["optimizer.learning_rate=0", "loss.importance_cap=2"]
    exact = learner(policy, config, *settings).update(played, 1)
    expected = gradients(policy)
    rounded = learner(policy, config, *settings, "learner.precision=bfloat16").update(played, 1)
    gap = rounded["engine/logprob_gap_nats"]
    assert exact["engine/logprob_gap_nats"] < 1e-5 < 1e-3 < gap < 0.5
    for name, one in policy.model.named_parameters():
        assert one.dtype == one.grad.dtype == torch.float32
        difference = float((one.grad - expected[name]).norm() / expected[name].norm())
        assert 1e-5 < difference < 0.1, name
    assert rounded["loss/gradient_norm"] == pytest.approx(exact["loss/gradient_norm"], rel=0.03)


def test_the_kl_that_is_logged_and_limited_is_k3_whatever_the_loss_uses(policy, config, played):
    told = set()
    for kind in ("k1", "k2", "k3"):
        start = Policy(copy.deepcopy(policy.model), policy.tokenizer)
        settings = ("loss.kl_coefficient=1e-9", "optimizer.learning_rate=0.01")
        own = learner(start, config, f"loss.kl={kind}", *settings)
        own.update(played, 1)
        batch = make_batch(played)
        now, then = (
            token_logprobs(model, batch.ids_RL, batch.mask_RL, batch.trained_RL, temperature=1.0)[0]
            for model in (start.model, policy.model)
        )
        gap = (now - then)[batch.trained_RL].detach().double()
        told.add(round(own.update(played, 2)["loss/kl_nats"], 5))
    (value,) = told
    assert value == pytest.approx(float((torch.expm1(-gap) + gap).mean()), abs=1e-5)
    assert abs(value - float(gap.mean())) > 1e-3  # which k1 would have been


def test_the_rate_is_set_before_the_updates_and_logged(policy, config, played):
    settings = ("optimizer.schedule=linear", "optimizer.warmup_steps=2", "length.steps=4")
    own = learner(policy, config, *settings)
    found = [own.update(played, step)["loss/learning_rate"] for step in (1, 2, 3, 4)]
    assert found == pytest.approx([5e-4, 1e-3, 1e-3, 5e-4])
    assert own.optimizer.param_groups[0]["lr"] == found[-1]
    before = copy.deepcopy(policy.model)
    over = learner(policy, config, *settings, "length.total_tokens=10")
    assert over.update(played, 1, total_tokens=10)["loss/learning_rate"] == 0
    for one, other in zip(before.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_likelihood_ratios_are_of_whole_turns_before_and_after(policy, config, played):
    own = learner(policy, config, "optimizer.learning_rate=0.01")
    played[0].values[1][0] = np.nan
    before = own.turn_logprobs(played)
    for credit, found in zip(played, before, strict=True):
        for episode, values, turns in zip(credit.episodes, credit.values, found, strict=True):
            expected = np.where(np.isnan(values), np.nan, [t.logprob for t in episode.turns])
            np.testing.assert_allclose(turns, expected, atol=1e-4)
    same = own.ratios(played, before)
    assert np.nanmax(np.abs(np.concatenate([r for one in same for r in one]) - 1)) < 1e-6
    own.update(played, 1)
    moved = own.ratios(played, before)
    after = own.turn_logprobs(played)
    np.testing.assert_allclose(moved[1][0], np.exp(after[1][0] - before[1][0]))
    assert np.isnan(moved[0][1][0]) and np.nanmax(np.abs(moved[1][0] - 1)) > 0.05


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_an_update_follows_the_device_of_the_model(policy, config, played):
    settings = ("optimizer.learning_rate=0", "loss.epochs=2", "loss.minibatches=2", "loss.max_kl=9")
    expected = learner(policy, config, *settings).update(played, 1)
    there = Policy(copy.deepcopy(policy.model).cuda(), policy.tokenizer)
    found = learner(there, config, *settings).update(played, 1)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
