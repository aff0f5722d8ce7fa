"""Noise that explains logged tokens: alone, beside ordinary keys, and through the engine."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from trainer import noise
from trainer.engines.hf import HfEngine
from trainer.noise import logged
from trainer.noise.logged import LoggedNoise
from trainer.noise.sources import sample
from twinstats.coupling import joint, posterior_gumbel
from twinstats.noise import LogitsError, NoiseKey

RARE = 1e-6  # a right answer misses a bound of these tests so often


def explains(tokens, logits, *, row=0, temperature=1.0):
    key = NoiseKey(7, 3, row, 2)
    return LoggedNoise(
        key=key, tokens=tuple(tokens), logits=np.asarray(logits), temperature=temperature
    )


def softmax(logits):
    weight = np.exp(logits - logits.max())
    return weight / weight.sum()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_every_logged_token_is_drawn_again(temperature):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (40, 5, 300)).astype(np.float32)
    logits[:, :, 100:200] = -np.inf  # truncated away
    tokens = rng.integers(0, 100, (40, 5))  # likely ones and unlikely ones
    noises = [
        explains(*one, row=row, temperature=temperature)
        for row, one in enumerate(zip(tokens, logits, strict=True))
    ]
    for position in range(5):
        found = sample(
            torch.tensor(logits[:, position]), noises, [[0] * position] * 40, temperature
        )
        assert found.tolist() == tokens[:, position].tolist()


def test_rows_with_a_key_are_drawn_as_if_they_were_alone():
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 1, (6, 300)).astype(np.float32)
    keys = [NoiseKey(7, 3, row, 2) for row in range(6)]
    mixed = list(keys)
    mixed[1], mixed[4] = (explains([9], logits[[row]], row=row) for row in (1, 4))
    positions = [0, 0, 5, 1, 0, 2]
    plain = noise.sample(torch.tensor(logits), keys, positions).tolist()
    before = [[0] * position for position in positions]
    assert sample(torch.tensor(logits), keys, before).tolist() == plain
    expected = [9 if row in (1, 4) else token for row, token in enumerate(plain)]
    assert expected != plain
    assert sample(torch.tensor(logits), mixed, before).tolist() == expected


def test_past_the_logged_tokens_the_noise_is_the_keys_own():
    logits = np.random.default_rng(3).normal(0, 1, (3, 300)).astype(np.float32)
    one = explains([5, 6], logits[:2])
    for position in (2, 3, 900):
        found = sample(torch.tensor(logits[2:]), [one], [[0] * position])
        assert found.equal(noise.sample(torch.tensor(logits[2:]), [one.key], [position]))


def test_the_noise_is_the_posterior_at_the_logged_temperature():
    logits = np.random.default_rng(4).normal(0, 1, (2, 7)).astype(np.float32)
    one = explains([3, 4], logits, temperature=0.6)
    expected = posterior_gumbel(logits[1], 4, one.key, 1, 0.6)
    np.testing.assert_array_equal(one.at(1), expected)
    other = np.random.default_rng(5).normal(0, 1, 7)
    drawn = sample(torch.tensor(other)[None], [one], [[0]], 1.3)
    assert drawn.tolist() == [np.argmax(other / 1.3 + expected)]


def test_greedy_draws_the_largest_logit_and_ties_go_to_the_lowest_id(monkeypatch):
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
    one = explains([3], logits.numpy())
    assert sample(logits, [one], [[]], 0.0).tolist() == [1]
    monkeypatch.setattr(logged, "posterior_gumbel", lambda *_: np.zeros(4))
    assert sample(logits, [one], [[]]).tolist() == [1]


def test_logits_without_a_law_are_refused_by_row():
    logits = torch.zeros(3, 5)
    noises = [NoiseKey(7, 3, row, 2) for row in range(2)] + [explains([0], logits[:1].numpy())]
    logits[2, 1] = torch.nan
    with pytest.raises(LogitsError, match="row 2") as found:
        sample(logits, noises, [[], [], []])
    assert found.value.row == 2


def counts(p_logits, q_logits, runs, *, wrong=False):
    """How often token i was logged, of `p_logits`, and j drawn with its noise, of `q_logits`."""
    generator = torch.Generator().manual_seed(11)
    law = torch.softmax(torch.tensor(p_logits), -1)
    tokens = torch.multinomial(law, runs, replacement=True, generator=generator).tolist()
    told = [(token + 1) % len(p_logits) if wrong else token for token in tokens]
    noises = [explains([token], p_logits[None], row=row) for row, token in enumerate(told)]
    drawn = sample(torch.tensor(q_logits).expand(runs, -1), noises, [[]] * runs)
    found = np.zeros((len(p_logits), len(q_logits)))
    np.add.at(found, (tokens, drawn.numpy()), 1)
    return found


def test_over_factuals_from_the_policy_a_twin_has_exactly_the_policys_law():
    p, q = np.array([0.5, 1.0, -1.0, 0.0, -np.inf]), np.array([1.0, -0.5, 0.5, -1.0, 0.0])
    found = counts(p, q, 2000)
    assert chisquare(found.sum(0), 2000 * softmax(q)).pvalue > RARE
    expected = 2000 * joint(softmax(p), softmax(q))
    possible = expected > 0
    assert found[~possible].sum() == 0
    assert chisquare(found[possible], expected[possible]).pvalue > RARE
    assert np.trace(counts(p, p, 200)) == 200


def test_noise_that_explains_another_token_has_another_law():
    p, q = np.array([0.5, 1.0, -1.0, 0.0]), np.array([1.0, -0.5, 0.5, -1.0])
    assert chisquare(counts(p, q, 1000, wrong=True).sum(0), 1000 * softmax(q)).pvalue < RARE


# Through the engine

STOP, LONGEST = frozenset(range(100)), 7


class Logged:
    """A session of turns that were logged: it shows `texts`, and its noise explains `turns`."""

    def __init__(self, row, texts, turns, logits):
        self.row, self.texts, self.turns, self.logits = row, texts, turns, logits
        self.found = []

    def start(self):
        return list(self.texts[0])

    def key(self):
        turn = len(self.found)
        return explains(self.turns[turn], self.logits[turn], row=self.row, temperature=0.8)

    def advance(self, turn):
        self.found.append(turn.tokens)
        return list(self.texts[len(self.found)]) if len(self.found) < len(self.texts) else None


@torch.inference_mode()
def elsewhere(model, row, generator):
    """A session whose turns were sampled by torch, one whole sequence at a time."""
    rng = np.random.default_rng(row)
    texts = [rng.integers(100, 600, 1 + rng.integers(9)).tolist() for _ in range(3)]
    ids, turns, logits = [], [], []
    for text in texts:
        ids += text
        tokens, seen = [], []
        while len(tokens) < LONGEST and not (tokens and tokens[-1] in STOP):
            seen.append(model(torch.tensor([ids])).logits[0, -1].numpy())
            law = torch.softmax(torch.tensor(seen[-1]) / 0.8, -1)
            tokens.append(int(torch.multinomial(law, 1, generator=generator)))
            ids.append(tokens[-1])
        turns.append(tuple(tokens))
        logits.append(np.stack(seen))
    return Logged(row, texts, turns, logits)


@pytest.mark.parametrize("max_batch", [1, 4, 64])
def test_the_engine_reproduces_every_logged_turn(policy, max_batch):
    model = policy.model.eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8 if weight.ndim == 2 else 1)
    generator = torch.Generator().manual_seed(3)
    sessions = [elsewhere(model, row, generator) for row in range(12)]
    engine = HfEngine(model, stop=STOP, max_turn_tokens=LONGEST, max_batch=max_batch)
    engine.run(sessions, temperature=0.8)
    assert [session.found for session in sessions] == [session.turns for session in sessions]
    assert len({token for one in sessions for turn in one.turns for token in turn}) > 50


def test_a_turn_is_over_with_a_stop_token_or_all_the_tokens_it_may_have(policy):
    engine = HfEngine(policy.model, stop=frozenset({5}), max_turn_tokens=3)
    assert engine.ends([5]) and engine.ends([1, 5]) and engine.ends([1, 2, 3])
    assert not engine.ends([5, 1]) and not engine.ends([1, 2])


def test_logits_that_need_a_gradient_are_drawn_from_like_any():
    logits = torch.zeros(1, 5)
    one = explains([3], logits.numpy())
    assert sample(logits.clone().requires_grad_(), [one], [[]]).tolist() == [3]
