"""The learner: what its updates add up to, and what they look at."""

import dataclasses

import numpy as np
import pytest
import torch

from trainer.config import changed
from trainer.learner import Learner, engine_logprobs, filtered
from trainer.loss import make_batch
from trainer.setup import make_optimizer, make_rollout
from trainer.train import train_tasks
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
    monkeypatch.setattr(
        Learner, "_one", lambda self, batch, *_, told: (seen.append(batch), told_one(told))
    )

    def told_one(told):
        told.tokens, told.gradient_norms = 1, [0.0]

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
