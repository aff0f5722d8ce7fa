"""The policy: text to ids and back, saving, and log-probabilities of given tokens."""

import json

import numpy as np
import pytest
import torch
from transformers import Qwen2Tokenizer

from trainer.learning.learner import ready
from trainer.policy import (
    PAD,
    build_model,
    build_tokenizer,
    entropies,
    load_policy,
    padded,
    passes,
    token_logprobs,
)
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
        assert name == other_name and torch.equal(one, other.cpu())
    text = "<question>What is the capital of Chad?</question><search>"
    assert loaded.encode(text) == policy.encode(text)
    assert loaded.decode(policy.encode(text)) == text
    assert (tmp_path / "model.safetensors").is_file()
    assert not list(tmp_path.glob("*.bin"))


@pytest.mark.parametrize("old_name", [False, True])
def test_a_saved_tokenizer_loads_as_it_was_beside_any_model(policy, tmp_path, old_name):
    policy.save(tmp_path)
    if old_name:  # as folders of transformers 4 say
        told = json.loads((tmp_path / "tokenizer_config.json").read_text())
        told["tokenizer_class"] = "PreTrainedTokenizerFast"
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    loaded = load_policy(tmp_path)
    own, again = policy.tokenizer.backend_tokenizer, loaded.tokenizer.backend_tokenizer
    assert again.to_str() == own.to_str()
    assert len(loaded.tokenizer) == len(policy.tokenizer) <= loaded.vocabulary
    for text in ("x<|endoftext|>y", "e\u0301", "in 2024\r\n\n's"):  # what Qwen2's reads otherwise
        assert loaded.encode(text) == policy.encode(text)
        assert loaded.decode(loaded.encode(text)) == text


def test_a_tokenizer_of_a_class_of_its_own_loads_as_that(policy, tmp_path):
    policy.model.save_pretrained(tmp_path)
    Qwen2Tokenizer(vocab={"a": 0, "b": 1, "<|endoftext|>": 2}, merges=[]).save_pretrained(tmp_path)
    assert type(load_policy(tmp_path).tokenizer) is Qwen2Tokenizer


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


# Memory


def gradients(model, **options):
    """Gradients of a loss of log-probabilities and entropies, and its value."""
    ids, mask = padded(ROWS)
    wanted = wanted_mask(ids.shape[1])
    model.zero_grad()
    logp, entropy = token_logprobs(model, ids, mask, wanted, temperature=0.7, **options)
    loss = (logp * torch.arange(ids.numel()).reshape(ids.shape)).sum() + entropy.square().sum()
    loss.backward()
    return [one.grad.clone() for one in model.parameters()], float(loss.detach())


@pytest.mark.parametrize("size", [1, 4, 6, 99])
def test_chunks_change_neither_values_nor_gradients_and_bound_the_logits(policy, size):
    policy.model.eval()
    expected, whole = gradients(policy.model)
    assert max(float(one.abs().max()) for one in expected) > 1
    rows = []
    head = policy.model.get_output_embeddings()
    handle = head.register_forward_hook(lambda _, given, made: rows.append(len(made)))
    found, value = gradients(policy.model, chunk_tokens=size)
    handle.remove()
    assert value == pytest.approx(whole, rel=1e-6)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert max(rows) == min(size, 6)
    assert sum(rows) == 2 * 6  # once forward, once more on the way back


def test_nothing_wanted_has_no_chunks_to_fail(policy):
    ids, mask = padded(ROWS)
    nothing = torch.zeros_like(mask)
    for size in (None, 2):
        logp, entropy = token_logprobs(
            policy.model, ids, mask, nothing, temperature=1.0, chunk_tokens=size
        )
        assert not logp.any() and not entropy.any()


def test_layers_that_are_computed_again_have_the_same_gradients(policy):
    policy.model.eval()
    expected, whole = gradients(policy.model)
    calls = []
    layer = policy.model.base_model.layers[0].mlp
    handle = layer.register_forward_pre_hook(lambda *_: calls.append(1))
    with ready(policy.model, checkpoints=True):
        assert not layer.training  # dropout stays off
        found, value = gradients(policy.model)
    handle.remove()
    assert len(calls) == 2 and value == whole
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert not any(module.training for module in policy.model.modules())


def test_an_entropy_without_gradient_is_the_same_number(policy):
    ids, mask = padded(ROWS)
    wanted = wanted_mask(ids.shape[1])
    both = [
        token_logprobs(policy.model, ids, mask, wanted, temperature=1.0, entropy_gradient=one)
        for one in (True, False)
    ]
    assert torch.equal(both[0][1], both[1][1]) and torch.equal(both[0][0], both[1][0])
    assert both[0][1].requires_grad and both[1][0].requires_grad and not both[1][1].requires_grad


def test_an_entropy_knows_tokens_that_cannot_be_drawn():
    scores = torch.tensor([[1.0, 2.0, -torch.inf, 0.5]], requires_grad=True)
    (value,) = entropies(torch.log_softmax(scores, -1))
    value.backward()
    few = torch.tensor([1.0, 2.0, 0.5], requires_grad=True)
    law = torch.softmax(few, -1)
    expected = -(law * law.log()).sum()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(scores.grad[0, [0, 1, 3]], few.grad)
    assert scores.grad[0, 2] == 0
    assert entropies(torch.tensor([[torch.nan, 0.0]])).isnan().all()  # a broken law is not hidden


def test_passes_read_long_passages_in_parts(policy, monkeypatch):
    passages = [passes.Passage(row, range(1, len(row))) for row in ROWS]
    expected = passes.logprobs(policy, passages, temperature=0.7)
    spread = passes.entropies(policy, passages, temperature=0.7)
    monkeypatch.setattr(passes, "_LAWS", 3)
    found = passes.logprobs(policy, passages, temperature=0.7)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    for one, other in zip(passes.entropies(policy, passages, temperature=0.7), spread, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert [len(one) for one in found] == [len(row) - 1 for row in ROWS]
