"""Training: the rows A12 to A31 of the case list that rollout, batch and loss can answer."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.trainer.conftest import scripted
from trainer.config import LossConfig, ModelConfig, changed
from trainer.engines.hf import HfEngine
from trainer.learning.credited import has_credit
from trainer.learning.learner import Learner
from trainer.learning.loss import Batch, Logprobs, kl, make_batch, policy_loss
from trainer.policy import build_model, padded, token_logprobs
from trainer.policy.tokens import action_spans, episode_ids
from trainer.recipes import recipe
from twinstats.episodes import Credit, Episode, Fork, Task, Turn
from twinstats.errors import UsageError
from twinstats.noise import NoiseKey
from twinstats.rows import episode_rows

NAN = float("nan")


def episode(*turns, row=0, reward=0.0):
    """An episode of (shown ids, sampled ids) pairs."""
    made = [
        Turn(tuple(action), -1.0, None, len(action), "s", info={"shown": tuple(shown)})
        for shown, action in turns
    ]
    sampled = sum(len(action) for _, action in turns)
    return Episode(Task("t"), 0, row, made, reward, True, False, sampled=sampled)


def credit(episodes, values, **options):
    return Credit(episodes=episodes, values=[np.array(v, float) for v in values], **options)


def token_losses(losses, mask):
    """The loss and its gradient where each token's loss is given: on policy it is -advantage."""
    mask_RL = torch.tensor(mask, dtype=torch.bool)
    turn_RL = torch.where(mask_RL, mask_RL.flatten().cumsum(0).reshape(mask_RL.shape) - 1, -1)
    batch = Batch(
        ids_RL=torch.zeros(mask_RL.shape, dtype=torch.long),
        mask_RL=torch.ones_like(mask_RL),
        trained_RL=mask_RL,
        advantage_RL=-torch.tensor(losses, dtype=torch.float32),
        turn_RL=turn_RL,
        lengths=torch.ones(int(mask_RL.sum()), dtype=torch.long),
        num_tokens=int(mask_RL.sum()),
        num_turns=int(mask_RL.sum()),
        num_episodes=len(mask_RL),
    )
    logp = torch.zeros(mask_RL.shape, requires_grad=True)
    loss = policy_loss(on_policy(logp), batch, LossConfig(aggregation="token"))
    loss.total.backward()
    return loss.policy, logp.grad


def on_policy(logp, **others):
    return Logprobs(current=logp, behaviour=logp.detach(), **others)


class Fixed:
    """A model whose logits at a position are given: its hidden state is what they are."""

    def __init__(self, logits):
        self.logits = torch.tensor(logits)

    def base_model(self, input_ids, attention_mask, use_cache):
        return SimpleNamespace(last_hidden_state=self.logits.expand(len(input_ids), -1, -1))

    def get_output_embeddings(self):
        return lambda hidden: hidden


def test_a12_sum_and_count_use_the_same_mask():
    loss, gradient = token_losses([[1, 100], [1, -50]], [[1, 0], [1, 0]])
    assert loss == 1.0
    assert gradient.tolist() == [[0.5, 0], [0.5, 0]]


@pytest.mark.parametrize("padding", [1e10, float("inf"), NAN])
def test_a13_what_is_masked_is_not_multiplied_by_zero(padding):
    loss, gradient = token_losses([[0.005170918, padding]], [[1, 0]])
    assert loss == pytest.approx(0.005170918)
    assert gradient[0, 1] == 0 and torch.isfinite(gradient).all()


@pytest.mark.parametrize("padding", [1e10, float("inf"), NAN])
def test_a13_a_kl_is_not_multiplied_by_zero_either(padding):
    batch = make_batch([credit([episode(([1], [2]))], [[0.0]])])  # the shown token is masked
    logp = torch.zeros(batch.ids_RL.shape, requires_grad=True)
    reference = torch.tensor([[padding, -0.1]])
    config = LossConfig(aggregation="token", kl="k3", kl_coefficient=1.0)
    loss = policy_loss(on_policy(logp, reference=reference), batch, config)
    loss.total.backward()
    assert float(loss.total.detach()) == pytest.approx(np.expm1(-0.1) + 0.1, rel=1e-5)
    assert logp.grad[0, 0] == 0 and torch.isfinite(logp.grad).all()


def test_a13_a_batch_without_a_trained_token_updates_nothing():
    nothing = credit([episode(([1], [2]))], [[NAN]])
    assert not has_credit(nothing)
    metrics = Learner(None, None, recipe("demo")).update([nothing], 1)
    assert np.isnan(metrics["loss/policy_nats"])  # logged as null


def test_a14_a_token_mean_is_over_all_tokens_of_the_step():
    losses = np.zeros((2, 10))
    losses[0], losses[1, :2] = 1, 4
    loss, gradient = token_losses(losses, losses > 0)
    assert loss == pytest.approx(1.5)
    flat, flat_gradient = token_losses([[1] * 10 + [4] * 2], [[1] * 12])
    assert loss == pytest.approx(flat)
    assert torch.equal(gradient[torch.tensor(losses > 0)], flat_gradient[0])


def test_a15_an_episode_without_credit_leaves_sum_and_count():
    episodes = [episode(([1], [2] * 3)), episode(([1], [2] * 5), row=1)]
    batch = make_batch([credit(episodes, [[-1.0], [NAN]])])
    logp = torch.zeros(batch.ids_RL.shape)
    assert policy_loss(on_policy(logp), batch, LossConfig(aggregation="token")).policy == 1.0
    # sums over turns are divided by the step's number of episodes, whatever became of them
    assert policy_loss(on_policy(logp), batch, LossConfig(aggregation="turn")).policy == 0.5
    assert batch.num_tokens == 3
    assert sum(one.sampled for one in episodes) == 8
    assert not has_credit(credit(episodes, [[NAN], [NAN]]))


def test_a17_ids_are_kept_as_they_were_sampled():
    # `~` decodes to "ab", and "ab" encodes to two ids
    rollout, engine, _ = scripted(lambda session, key, index: "~." if index == 0 else "b.")
    (parent,) = rollout.play([Task("t", {"right": "ab.", "turns": 3})], 1, 0)
    assert parent.turns[0].action == (126, 46)
    assert parent.turns[0].reward > 0  # the environment read "ab."
    twins = rollout.fork([Fork(parent, 1), Fork(parent, 2, luck=5), Fork(parent, 0, (126, 46))])
    ids = episode_ids(parent)
    for turn, start in zip((1, 2, 1), engine.starts[1:], strict=True):
        begin, _ = action_spans(parent)[turn]
        assert start == ids[:begin]
    assert all(twin.turns[0].action == (126, 46) for twin in twins)
    batch = make_batch([credit([parent], [[1.0, 1.0, 1.0]])])
    assert batch.ids_RL[0].tolist() == ids and 126 in ids


def test_a18_lengths_that_differ_raise_and_name_the_place():
    played = episode(([1], [2, 3]), ([1], [4, 5, 6, 7, 8]))
    for length in (1, 4, 7):
        weights = [[np.ones(2), np.ones(length)]]
        with pytest.raises(ValueError, match=f"0/0, turn 1: {length} weights for 5 tokens"):
            make_batch([credit([played], [[1.0, 1.0]], weights=weights)])
    with pytest.raises(ValueError, match="`values` must have one entry a turn"):
        credit([played], [[1.0]])


@pytest.mark.parametrize(
    ("temperature", "expected"), [(0.5, -0.142931628), (0.7, -0.260118402), (1.0, -0.407605964)]
)
def test_a19_logprobs_are_those_of_the_sampling_temperature(temperature, expected):
    ids, mask = padded([[1, 0]])
    wanted = torch.tensor([[False, True]])
    model = Fixed([[[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
    logp, _ = token_logprobs(model, ids, mask, wanted, temperature=temperature)
    assert float(logp[0, 1]) == pytest.approx(expected, abs=1e-7)


def test_a21_a_tokens_logprob_comes_from_the_position_before_it():
    ids, mask = padded([[5, 6, 7, 8]])
    logits = np.zeros((1, 4, 10), np.float32)
    logits[0, [0, 1, 2], [6, 7, 8]] = 10
    wanted = torch.tensor([[False, False, True, True]])
    logp, _ = token_logprobs(Fixed(logits), ids, mask, wanted, temperature=1.0)
    np.testing.assert_allclose(logp[0, 2:], [-0.000408516] * 2, atol=1e-7)


def test_a22_padding_is_known_by_length_and_a_real_end_is_trained():
    ids, mask = padded([[5, 6, 2], [5, 6, 7, 8, 9]], value=2)
    assert ids[0].tolist() == [5, 6, 2, 2, 2]
    assert mask[0].tolist() == [True, True, True, False, False]
    ended = [episode(([5], [6, 0])), episode(([5], [6, 7, 8, 0]), row=1)]  # 0 is the padding
    batch = make_batch([credit(ended, [[1.0], [1.0]])])
    assert batch.trained_RL.int().tolist() == [[0, 1, 1, 0, 0], [0, 1, 1, 1, 1]]


def test_a23_an_end_in_the_prompt_is_no_end():
    class Once:
        """A session of one turn after a prompt that holds the stop token."""

        turn = None

        def start(self):
            return [3, 7, 3]

        def key(self):
            return NoiseKey(0, 0, 0, 0)

        def advance(self, turn):
            self.turn = turn

    tiny = ModelConfig(layers=1, hidden=8, intermediate=8, heads=2, kv_heads=1, vocabulary=50)
    session = Once()
    HfEngine(build_model(tiny, seed=0), stop=frozenset([3]), max_turn_tokens=3).run(
        [session], temperature=1.0
    )
    assert len(session.turn.tokens) == 3 and 3 not in session.turn.tokens
    assert not session.turn.is_stopped
    rollout, _, _ = scripted(lambda *_: "a", max_turns=1)
    (cut,) = rollout.play([Task("t", {"right": "a", "turns": 2})], 1, 0)
    assert (cut.terminated, cut.truncated) == (False, True)


def test_a24_only_sampled_tokens_are_trained():
    played = episode(([], [1, 2]), ([3, 4], [5]))  # A A O O A
    batch = make_batch([credit([played], [[1.0, 1.0]])])
    assert batch.trained_RL.int().tolist() == [[1, 1, 0, 0, 1]]
    assert batch.num_tokens == played.sampled == 3
    logp = torch.tensor([[-1.0, -1.0, -7.0, -7.0, -1.0]])
    reference = logp - torch.tensor([[0.1, 0.1, -5.0, -5.0, 0.1]])
    config = LossConfig(kl="k1", kl_coefficient=1.0, aggregation="token")
    loss = policy_loss(on_policy(logp, reference=reference), batch, config)
    assert float(loss.total) - loss.policy == pytest.approx(0.1, abs=1e-6)


def test_a28_the_estimates_of_the_kl_are_three():
    logp, reference = torch.tensor([[-1.0], [-1.2]], dtype=torch.float64)
    found = {kind: float(kl(logp, reference, kind)) for kind in ("k1", "k2", "k3")}
    assert found == pytest.approx({"k1": 0.2, "k2": 0.02, "k3": 0.018730753}, abs=1e-9)
    with pytest.raises(UsageError, match="k1, k2, k3"):
        changed(recipe("demo"), ["loss.kl=k4"])


def test_a26_cut_and_ended_are_two_flags_and_both_are_logged():
    task = Task("t", {"right": "a.", "turns": 2})
    (ended,) = scripted(lambda *_: "a.")[0].play([task], 1, 0)
    (cut,) = scripted(lambda *_: "a.", max_turns=1)[0].play([task], 1, 0)
    flags = [(row["terminated"], row["truncated"]) for row in episode_rows([ended, cut])]
    assert flags == [(True, False), (False, True)]


def test_a30_a_turns_reward_is_that_turns():
    task = Task("t", {"right": "abcd", "turns": 4})
    rollout, _, _ = scripted(lambda session, key, index: "abcd" if index % 2 else "zzzz")
    (played,) = rollout.play([task], 1, 0)
    assert [turn.reward for turn in played.turns] == [0, 0.25, 0, 0.25]
    assert played.outcome == sum(played.column("reward")) == 0.5
    ends = [end - 1 for _, end in action_spans(episode(([], [1] * 4), ([], [1] * 4)))]
    assert ends == [3, 7]


def test_a31_what_only_looks_like_a_turn_is_not_trained():
    past = [1, 2, 3, 4]  # a turn of the assistant that stands in the prompt
    played = episode(([9, *past, 9], [1, 2, 3, 4, 5]))
    batch = make_batch([credit([played], [[1.0]])])
    assert batch.num_tokens == 5
    assert batch.trained_RL[0].tolist() == [False] * 6 + [True] * 5
