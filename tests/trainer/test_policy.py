"""The policy: text to ids and back, saving, and log-probabilities of given tokens."""

import numpy as np
import pytest
import torch

from trainer.policy import PAD, build_model, build_tokenizer, load_policy, padded, token_logprobs
from trainer.tasks.demonstrations import demonstrations, text_of
from trainer.tasks.facts import SPECIAL_TOKENS
from twinstats.noise import generator

ROWS = [[5, 9, 30, 7, 2], [1, 2, 3], [4, 4, 4, 4, 4, 4, 4, 4]]
WANTED = [[2, 3], [1], [1, 4, 7]]


def wanted_mask(width):
    mask = torch.zeros((len(ROWS), width), dtype=torch.bool)
    for row, positions in enumerate(WANTED):
        mask[row, positions] = True
    return mask


def test_text_survives_its_ids(policy):
    rng = generator(1, "tests/policy")
    texts = [text_of(one.segments) for one in demonstrations(20, num_parts=1, rng=rng)]
    for text in [*texts, "", "São Tomé <answer> N'Djamena  é\n", "<pad>"]:
        assert policy.decode(policy.encode(text)) == text


def test_a_tag_is_one_token_wherever_it_stands(policy):
    ids = [policy.encode(tag) for tag in SPECIAL_TOKENS]
    assert all(len(one) == 1 for one in ids)
    (end,) = policy.encode("</search>")
    assert policy.encode("a b</search>c").count(end) == 1
    assert policy.tokenizer.convert_tokens_to_ids(PAD) == 0


def test_the_same_texts_and_seed_build_the_same_policy(policy, config, tokenizer):
    rng = generator(0, "tests/demonstrations")
    texts = [text_of(one.segments) for one in demonstrations(60, num_parts=2, rng=rng)]
    again = build_tokenizer(texts, vocabulary=600, special=SPECIAL_TOKENS)
    assert again.get_vocab() == tokenizer.get_vocab()
    torch.manual_seed(99)
    state = torch.get_rng_state()
    model = build_model(config.model, seed=0)
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is left alone
    pairs = zip(policy.model.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    other = build_model(config.model, seed=1)
    assert not torch.equal(next(model.parameters()), next(other.parameters()))


def test_a_saved_policy_loads_as_it_was(policy, tmp_path):
    policy.save(tmp_path)
    loaded = load_policy(tmp_path)
    for (name, one), (other_name, other) in zip(
        policy.model.named_parameters(), loaded.model.named_parameters(), strict=True
    ):
        assert name == other_name and torch.equal(one, other)
    text = "<question>What is the capital of Chad?</question><search>"
    assert loaded.encode(text) == policy.encode(text)
    assert loaded.decode(policy.encode(text)) == text
    assert (tmp_path / "model.safetensors").is_file()
    assert not list(tmp_path.glob("*.bin"))


def test_padding_is_by_length():
    ids, mask = padded([[3, 0, 0], [1]], value=0)
    assert ids.tolist() == [[3, 0, 0], [1, 0, 0]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_equal_those_of_each_row_alone(policy, temperature):
    ids, mask = padded(ROWS)
    wanted = wanted_mask(ids.shape[1])
    logp, entropy = token_logprobs(policy.model, ids, mask, wanted, temperature=temperature)
    assert torch.equal(logp != 0, wanted) and torch.equal(entropy != 0, wanted)
    for row, tokens in enumerate(ROWS):
        logits = policy.model(torch.tensor([tokens])).logits[0].double() / temperature
        law = torch.log_softmax(logits, -1)
        for position in WANTED[row]:
            before = law[position - 1]  # what stands before a token tells of it
            np.testing.assert_allclose(
                float(logp[row, position].detach()),
                float(before[tokens[position]].detach()),
                atol=2e-6,
            )
            expected = -(before.exp() * before).sum()
            np.testing.assert_allclose(
                float(entropy[row, position].detach()), float(expected.detach()), atol=1e-5
            )


def test_logprobs_and_entropy_carry_the_gradient(policy):
    ids, mask = padded(ROWS)
    wanted = wanted_mask(ids.shape[1])
    logp, entropy = token_logprobs(policy.model, ids, mask, wanted, temperature=1.0)
    weight = policy.model.get_input_embeddings().weight
    for one in (logp, entropy):
        (gradient,) = torch.autograd.grad(one[0, 2], weight, retain_graph=True)
        assert float(gradient.abs().sum()) > 0
