"""The loss: gradients by hand on 2 x 3, and what is and is not trained."""

import dataclasses

import numpy as np
import pytest
import torch

from trainer.config import LossConfig, changed
from trainer.learning.credited import has_credit
from trainer.learning.learner import Learner
from trainer.learning.loss import (
    Batch,
    Logprobs,
    kl,
    make_batch,
    policy_loss,
)
from trainer.learning.optimizer import make_optimizer
from trainer.loop.train import train_tasks
from trainer.policy import token_logprobs
from trainer.policy.tokens import action_spans, episode_ids
from trainer.setup import make_rollout
from twinstats.credit import assign, make
from twinstats.episodes import Credit, Episode, Fork, Task, Turn, group_by_task

NAN = float("nan")


def turn(shown, action):
    return Turn(tuple(action), -1.0, None, len(action), "s", info={"shown": tuple(shown)})


def episode(*turns, row=0):
    return Episode(Task("t"), 0, row, [turn(*one) for one in turns], 1.0, True, False)


def credit(episodes, values, **options):
    arrays = [np.array(one, float) for one in values]
    return Credit(episodes=episodes, values=arrays, **options)


def two_by_three():
    """Row 0: one token of turn 0, one of turn 1, one not trained; row 1: one turn of 3 tokens."""
    trained = torch.tensor([[True, True, False], [True, True, True]])
    return Batch(
        ids_RL=torch.zeros((2, 3), dtype=torch.long),
        mask_RL=torch.ones((2, 3), dtype=torch.bool),
        trained_RL=trained,
        advantage_RL=torch.tensor([[2.0, -1.0, 99.0], [3.0, 3.0, 3.0]]),
        turn_RL=torch.tensor([[0, 1, -1], [2, 2, 2]]),
        lengths=torch.tensor([1, 1, 3]),
        num_tokens=5,
        num_turns=3,
        num_episodes=2,
    )


def loss_and_gradient(batch, ratio, aggregation, shift=None, **clip):
    behaviour = torch.log(torch.full((2, 3), 0.5))
    logp = behaviour.clone() if shift is None else behaviour + torch.tensor(shift)
    logp.requires_grad_(True)
    config = LossConfig(ratio=ratio, aggregation=aggregation, **clip)
    loss = policy_loss(Logprobs(current=logp, behaviour=behaviour), batch, config)
    loss.total.backward()
    assert float(loss.total.detach()) == loss.policy
    return loss.policy, logp.grad, loss.clipped / batch.num_tokens


# Gradients by hand


@pytest.mark.parametrize("ratio", ["token", "turn"])
@pytest.mark.parametrize(
    ("aggregation", "loss", "gradient"),
    [
        # mean over the 5 trained tokens
        ("token", -(2 - 1 + 9) / 5, [[-0.4, 0.2, 0], [-0.6, -0.6, -0.6]]),
        # each turn's mean, summed, over 2 rows
        ("turn", -(2 - 1 + 3) / 2, [[-1, 0.5, 0], [-0.5, -0.5, -0.5]]),
        # the sum over 2 rows
        ("constant", -(2 - 1 + 9) / 2, [[-1, 0.5, 0], [-1.5, -1.5, -1.5]]),
        # each turn's mean, summed, over 3 turns
        ("turn_mean", -(2 - 1 + 3) / 3, [[-2 / 3, 1 / 3, 0], [-1 / 3, -1 / 3, -1 / 3]]),
    ],
)
def test_the_gradient_on_policy_by_hand(ratio, aggregation, loss, gradient):
    found, gradient_RL, clipped = loss_and_gradient(two_by_three(), ratio, aggregation)
    assert found == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(gradient_RL, gradient, rtol=1e-6)
    assert clipped == 0


def test_a_token_ratio_clips_token_by_token():
    log_2, log_half, log_small = np.log(2), np.log(0.5), np.log(1.1)
    shift = [[log_2, log_2, 0.0], [log_half, log_small, log_2]]
    loss, gradient, clipped = loss_and_gradient(two_by_three(), "token", "constant", shift)
    # ratio 2 with A 2: clipped at 1.2; with A -1: not; A 3: .5 not, 1.1 not, 2 clipped
    assert loss == pytest.approx(-(2.4 - 2 + 1.5 + 3.3 + 3.6) / 2, rel=1e-6)
    expected = [[0, 1, 0], [-0.75, -1.65, 0]]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    assert clipped == pytest.approx(2 / 5)


def test_the_two_sides_of_the_clip_are_their_own():
    batch = two_by_three()
    shift = np.log([[1.25, 0.65, 1.0], [1.0, 1.0, 1.0]]).tolist()
    for low, high, expected in ((0.2, 0.3, 1 / 5), (0.4, 0.2, 1 / 5), (0.4, 0.3, 0.0)):
        found = loss_and_gradient(batch, "token", "token", shift, clip_low=low, clip_high=high)
        assert found[2] == pytest.approx(expected)


def test_a_turn_ratio_is_that_of_the_mean_log_ratio():
    shift = [[0.0, 0.0, 0.0], [0.3, -0.1, 0.1]]
    loss, gradient, _ = loss_and_gradient(two_by_three(), "turn", "turn", shift)
    ratio = np.exp(0.1)
    assert loss == pytest.approx(-(2 - 1 + 3 * ratio) / 2, rel=1e-6)
    np.testing.assert_allclose(gradient[1], [-ratio / 2] * 3, rtol=1e-5)
    shift = [[0.0, 0.0, 0.0], [0.9, 0.9, -0.6]]  # mean .4: clipped as a whole
    loss, gradient, clipped = loss_and_gradient(two_by_three(), "turn", "turn", shift)
    assert loss == pytest.approx(-(2 - 1 + 3.6) / 2, rel=1e-6)
    assert gradient[1].tolist() == [0, 0, 0] and clipped == pytest.approx(3 / 5)


@pytest.mark.parametrize("ratio", ["token", "turn"])
@pytest.mark.parametrize("aggregation", ["token", "turn", "constant"])
def test_what_is_not_trained_is_never_read(ratio, aggregation):
    batch = two_by_three()
    clean = loss_and_gradient(batch, ratio, aggregation)
    batch.advantage_RL[0, 2] = NAN
    for poison in (NAN, float("inf"), 1e10):
        shift = [[0.0, 0.0, poison], [0.0, 0.0, 0.0]]
        found = loss_and_gradient(batch, ratio, aggregation, shift)
        assert found[0] == clean[0] and torch.equal(found[1], clean[1])


def test_with_turn_a_turns_weight_does_not_depend_on_its_length():
    for lengths in ((1, 1), (1, 7), (5, 2)):
        played = episode(*[([1], [2] * length) for length in lengths])
        batch = make_batch([credit([played], [[1.0, 2.0]])])
        logp = torch.zeros(batch.ids_RL.shape, requires_grad=True)
        both = Logprobs(current=logp, behaviour=logp.detach())
        policy_loss(both, batch, LossConfig(aggregation="turn")).total.backward()
        sums = [float(logp.grad[0, b:e].sum()) for b, e in action_spans(played)]
        np.testing.assert_allclose(sums, [-1.0, -2.0], rtol=1e-6)


def test_a_row_more_changes_no_other_rows_share_of_the_sum():
    one, two = episode(([1], [2, 3])), episode(([1, 1], [4]), row=1)
    for aggregation in ("turn", "constant"):
        config = LossConfig(aggregation=aggregation)
        parts = []
        for credits in ([one], [two], [one, two]):
            batch = make_batch([credit(credits, [[1.5]] * len(credits))])
            logp = torch.zeros(batch.ids_RL.shape)
            found = policy_loss(Logprobs(current=logp, behaviour=logp), batch, config)
            parts.append(found.policy * len(credits))
        assert parts[2] == pytest.approx(parts[0] + parts[1], rel=1e-6)


# What joins the policy gradient


def joined(batch, logp, reference=None, engine=None, entropy=None, behaviour=None, **options):
    """The loss of log-probabilities given as lists, and the gradient of the current ones."""
    current = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    others = {
        name: None if value is None else torch.tensor(value, dtype=torch.float64)
        for name, value in (("reference", reference), ("engine", engine), ("entropy", entropy))
    }
    behaviour = current.detach() if behaviour is None else torch.tensor(behaviour)
    given = Logprobs(current=current, behaviour=behaviour, **others)
    loss = policy_loss(given, batch, LossConfig(aggregation="constant", **options))
    loss.total.backward()
    return loss, current.grad


@pytest.mark.parametrize(
    ("kind", "value", "slope"),
    [("k1", 0.2, 1.0), ("k2", 0.02, 0.2), ("k3", 0.018730753, 1 - np.exp(-0.2))],
)
def test_a_kl_estimate_by_hand_and_the_gradient_it_has_as_a_loss(kind, value, slope):
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    found = kl(logp, torch.tensor([-1.2], dtype=torch.float64), kind)
    found.sum().backward()
    assert found.item() == pytest.approx(value, abs=1e-9)
    assert logp.grad.item() == pytest.approx(slope, rel=1e-12)


def test_in_the_mean_k1_and_k3_are_the_kl_and_their_gradients_are_not_its():
    """Enumerated over the tokens of a softmax: which gradient is which, against autograd's own."""
    scores = torch.tensor([0.3, -0.8, 1.1, 0.2], dtype=torch.float64, requires_grad=True)
    other = torch.log_softmax(torch.tensor([0.9, 0.1, -0.4, 0.0], dtype=torch.float64), -1)

    def gradient(value):
        (found,) = torch.autograd.grad(value, scores, retain_graph=True)
        return found

    logp = torch.log_softmax(scores, -1)
    law = logp.exp()
    reverse, forward = (law * (logp - other)).sum(), (other.exp() * (other - logp)).sum()
    fixed = law.detach()
    for kind in ("k1", "k3"):
        torch.testing.assert_close((fixed * kl(logp, other, kind)).sum(), reverse)
    as_loss = {kind: gradient((fixed * kl(logp, other, kind)).sum()) for kind in ("k1", "k2", "k3")}
    torch.testing.assert_close(as_loss["k1"], torch.zeros_like(scores))
    torch.testing.assert_close(as_loss["k2"], gradient(reverse))
    torch.testing.assert_close(as_loss["k3"], gradient(forward))
    assert not torch.allclose(gradient(reverse), gradient(forward), rtol=0.1)
    in_credit = gradient((fixed * kl(logp, other, "k1").detach() * logp).sum())
    torch.testing.assert_close(in_credit, gradient(reverse))


def test_the_kl_joins_the_loss_or_lowers_the_credit_at_trained_tokens_only():
    batch, logp = two_by_three(), [[-1.0, -2.0, 5.0], [-1.0, -1.0, -1.0]]
    reference = [[-1.5, -2.0, NAN], [-0.9, -1.0, -1.0]]
    plain, plain_gradient = joined(batch, logp)
    loss, gradient = joined(batch, logp, reference, kl="k2", kl_coefficient=0.4)
    estimates = 0.5**2 / 2 + 0.1**2 / 2
    assert loss.total.item() == pytest.approx(plain.policy + 0.4 * estimates / 2)
    np.testing.assert_allclose(
        gradient - plain_gradient, [[0.4 * 0.5 / 2, 0, 0], [-0.4 * 0.1 / 2, 0, 0]], atol=1e-12
    )
    lowered, same = joined(batch, logp, reference, kl="k1", kl_in="credit", kl_coefficient=0.4)
    np.testing.assert_allclose(same, gradient, atol=1e-7)  # k1 in the credit is k2 in the loss
    assert lowered.total.item() == lowered.policy


def test_entropy_leaves_the_loss():
    entropy = [[1.0, 2.0, NAN], [3.0, 4.0, 5.0]]
    loss, _ = joined(two_by_three(), [[0.0] * 3] * 2, entropy=entropy, entropy_coefficient=0.1)
    assert loss.total.item() == pytest.approx(loss.policy - 0.1 * 15 / 2)


def test_importance_weights_are_those_of_the_learner_over_the_engine_and_are_cut():
    batch, logp = two_by_three(), [[-1.0, -1.0, 0.0], [-1.0, -1.0, -1.0]]
    engine = [[-1.0 - np.log(2), -1.0 + np.log(2), NAN], [-1.0, -1.0, -1.0 - np.log(8)]]
    loss, gradient = joined(batch, logp, engine=engine, importance_cap=3.0)
    weights = np.array([[2, 0.5, 0], [1, 1, 3]])  # 8 is cut to 3
    advantage = np.array([[2, -1, 0], [3, 3, 3]])
    np.testing.assert_allclose(gradient, -weights * advantage / 2, rtol=1e-6)
    assert loss.capped == 1
    # they are those of the behaviour policy, whatever the weights have become since
    later = joined(batch, (np.array(logp) + 0.1).tolist(), engine=engine, behaviour=logp,
                   importance_cap=3.0)  # fmt: skip
    np.testing.assert_allclose(later[1], -weights * advantage * np.exp(0.1) / 2, rtol=1e-6)


@pytest.mark.parametrize("aggregation", ["token", "turn", "turn_mean", "constant"])
@pytest.mark.parametrize("ratio", ["token", "turn"])
def test_losses_of_micro_batches_add_up_to_the_whole(ratio, aggregation):
    rng = np.random.default_rng(3)
    episodes = [
        episode(*[([1] * rng.integers(3), [2] * (1 + rng.integers(6))) for _ in range(1 + row)],
                row=row)
        for row in range(5)
    ]  # fmt: skip
    values = [rng.normal(size=one.num_turns) for one in episodes]
    values[3][1] = NAN
    batch = make_batch([Credit(episodes=episodes, values=values)])
    config = LossConfig(
        ratio=ratio, aggregation=aggregation, kl_coefficient=0.3, entropy_coefficient=0.2
    )
    tables = torch.tensor(rng.normal(size=(4, *batch.ids_RL.shape)) / 5)

    def gradient(parts):
        current = tables[0].clone().requires_grad_(True)
        for begin, end in parts:
            part = batch.rows(begin, end)
            own = slice(begin, end), slice(0, part.ids_RL.shape[1])
            given = Logprobs(
                current=current[own],
                behaviour=tables[1][own],
                reference=tables[2][own],
                entropy=current[own] * tables[3][own],
            )
            policy_loss(given, part, config).total.backward()
        return current.grad

    whole = gradient([(0, 5)])
    for parts in ([(0, 2), (2, 5)], [(row, row + 1) for row in range(5)]):
        torch.testing.assert_close(gradient(parts), whole, rtol=1e-12, atol=1e-14)


# Batches


def test_only_sampled_tokens_of_turns_with_credit_are_trained():
    first = episode(([7, 8], [5, 6]), ([9], [4]), ([], [3, 3, 3]))
    second = episode(([7], [2, 2]), row=1)
    batch = make_batch([credit([first, second], [[1.0, NAN, -2.0], [0.5]])])
    assert batch.ids_RL.tolist() == [[7, 8, 5, 6, 9, 4, 3, 3, 3], [7, 2, 2, 0, 0, 0, 0, 0, 0]]
    assert batch.mask_RL.sum(1).tolist() == [9, 3]
    assert batch.trained_RL.int().tolist() == [[0, 0, 1, 1, 0, 0, 1, 1, 1], [0, 1, 1] + [0] * 6]
    assert batch.turn_RL.tolist() == [[-1, -1, 0, 0, -1, -1, 1, 1, 1], [-1, 2, 2] + [-1] * 6]
    assert batch.advantage_RL.tolist() == [[0, 0, 1, 1, 0, 0, -2, -2, -2], [0, 0.5, 0.5] + [0] * 6]
    assert (batch.num_turns, batch.num_tokens) == (3, 7)


def test_an_episode_without_credit_is_left_out_and_no_credit_at_all_is_refused():
    one, two = episode(([1], [2])), episode(([1], [3]), row=1)
    batch = make_batch([credit([one, two], [[NAN], [1.0]])])
    assert batch.ids_RL.tolist() == [[1, 3]]
    with pytest.raises(ValueError, match="at least one turn with credit"):
        make_batch([credit([one], [[NAN]])])


def test_share_and_weights_multiply_the_credit():
    played = episode(([1], [2, 3]), ([1], [4]))
    batch = make_batch(
        [
            credit(
                [played],
                [[2.0, 3.0]],
                share=[np.array([0.5, 1 / 3])],
                weights=[[np.array([1.5, 0.5]), np.array([1.0])]],
            )
        ]
    )
    np.testing.assert_allclose(batch.advantage_RL, [[0, 1.5, 0.5, 0, 1.0]], rtol=1e-6)


def test_forks_that_a_method_wants_trained_are_rows():
    parent = episode(([1], [2]), ([1], [3]))
    fork = Episode(
        Task("t"), 0, 0, [parent.turns[0], turn([1], [9])], 0.0, True, False, fork=Fork(parent, 1)
    )
    batch = make_batch([credit([parent, fork], [[1.0, 1.0], [NAN, -1.0]])])
    assert batch.ids_RL.tolist() == [[1, 2, 1, 3], [1, 2, 1, 9]]
    assert batch.trained_RL.int().tolist() == [[0, 1, 0, 1], [0, 0, 0, 1]]


def test_ids_and_spans_of_an_episode():
    played = episode(([7, 8], [5]), ([], [4, 4]))
    assert episode_ids(played) == [7, 8, 5, 4, 4]
    assert action_spans(played) == [(2, 3), (3, 5)]


# The update


def update(policy, config, given):
    return Learner.of(policy, make_optimizer(policy, config), config).update(given, 1)


def credits_of(policy, config, method="rloo"):
    rollout = make_rollout(policy, config)
    episodes = rollout.play(train_tasks(config, 1), config.rollout.group_size, 1)
    return episodes, assign(rollout, group_by_task(episodes, seed=5, step=1), make(method))


def test_the_engines_logprobs_are_the_learners(policy, config):
    _, credits = credits_of(policy, config)
    assert 0 < update(policy, config, credits)["engine/logprob_gap_nats"] < 1e-4
    other = changed(config, ["rollout.temperature=0.5"])
    _, credits = credits_of(policy, config)
    assert update(policy, other, credits)["engine/logprob_gap_nats"] > 1e-3


def test_the_engines_gap_is_that_of_the_worst_turn_and_leaves_out_what_it_did_not_tell(
    policy, config
):
    episodes, credits = credits_of(policy, config)

    def gap(change):
        """The gap where the engine said something else of the last token of every turn."""
        made = [
            dataclasses.replace(
                one,
                turns=[
                    dataclasses.replace(t, info=t.info | {"logprobs": change(t.info["logprobs"])})
                    for t in one.turns
                ],
            )
            for one in episodes
        ]
        values = [np.zeros(one.num_turns) for one in made]
        still = changed(config, ["optimizer.learning_rate=0"])
        given = [Credit(episodes=made, values=values)]
        return update(policy, still, given)["engine/logprob_gap_nats"]

    assert gap(lambda told: (*told[:-1], told[-1] + 0.25)) == pytest.approx(0.25, abs=1e-4)
    assert gap(lambda told: tuple(one + 0.1 for one in told)) == pytest.approx(0.5, abs=1e-4)
    assert np.isnan(gap(lambda told: None))
    odd = iter(range(99))
    assert gap(lambda told: None if next(odd) % 2 else (*told[:-1], 0.0)) > 1


def test_an_update_raises_what_has_positive_credit_and_lowers_the_rest(policy, config):
    episodes, _ = credits_of(policy, config)
    values = [np.full(one.num_turns, sign) for one, sign in zip(episodes, [1, -1] * 2, strict=True)]
    given = [Credit(episodes=episodes, values=values)]
    batch = make_batch(given)

    def logp():
        with torch.no_grad():
            found, _ = token_logprobs(
                policy.model, batch.ids_RL, batch.mask_RL, batch.trained_RL, temperature=1.0
            )
        return found.sum(1)

    before = logp()
    metrics = update(policy, config, given)
    change = logp() - before
    assert (change * torch.tensor([1, -1, 1, -1]) > 0).all()
    assert metrics["loss/trained_tokens"] == batch.num_tokens == sum(e.sampled for e in episodes)
    assert metrics["loss/gradient_norm"] > 0 and metrics["loss/clipped_share"] == 0
    assert 0 < metrics["loss/entropy_nats"] < np.log(600)


def test_without_credit_nothing_is_updated(policy, config):
    episodes, _ = credits_of(policy, config)
    nulls = [Credit(episodes=episodes, values=[np.full(e.num_turns, NAN) for e in episodes])]
    assert not has_credit(nulls[0])
    before = [weight.clone() for weight in policy.model.parameters()]
    metrics = update(policy, config, nulls)
    start = [weight.clone() for weight in policy.model.parameters()]
    trained = update(policy, config, credits_of(policy, config)[1])
    assert list(metrics) == list(trained)
    known = {name: value for name, value in metrics.items() if not np.isnan(value)}
    assert known.pop("loss/learning_rate") == config.optimizer.learning_rate
    counts = ("loss/trained_tokens", "loss/updates_count", "loss/dropped_groups_count",
              "loss/dropped_episodes_count", "loss/refused_updates_count")  # fmt: skip
    assert known == dict.fromkeys(counts, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, start, strict=True))


def test_a_gradient_that_is_not_finite_updates_nothing(policy, config):
    episodes, _ = credits_of(policy, config)
    huge = [Credit(episodes=episodes, values=[np.full(e.num_turns, 3e38) for e in episodes])]
    before = [weight.clone() for weight in policy.model.parameters()]
    metrics = update(policy, config, huge)
    assert (metrics["loss/refused_updates_count"], metrics["loss/updates_count"]) == (1, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_a_trained_twin_shares_its_factuals_part_of_the_gradient():
    """Two worlds of share 1/2 each weigh as much together as one factual does."""
    factual = episode(([1], [2, 3]))
    twin = Episode(Task("t"), 0, 0, [turn([1], [4, 5])], 0.0, True, False, fork=Fork(factual, 0))
    half = [np.array([0.5]), np.array([0.5])]
    both = make_batch([credit([factual, twin], [[1.0], [-1.0]], share=half)])
    alone = make_batch([credit([factual], [[1.0]])])
    assert (both.num_episodes, alone.num_episodes) == (1, 1)
    assert both.advantage_RL[:, 1].tolist() == [0.5, -0.5]
