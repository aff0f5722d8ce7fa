"""Keyed noise inside transformers' `generate`: the tokens that our own loop draws."""

import re

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList

from tests.samplers import OneTurn, perturbed, request
from trainer.engines.hf import HfEngine
from trainer.processors.generate import KeyedLogitsProcessor
from trainer.processors.request import KeyedRequest
from twinstats import noise
from twinstats.noise import LogitsError, NoiseKey

NEW = 8


@pytest.fixture
def model(policy):
    """A random model whose distributions are far from flat."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.ndim == 2:
                weight.mul_(8)
        policy.model.get_input_embeddings().weight.mul_(3)
    return policy.model


def prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(100, 600, 2 + 3 * row).tolist() for row in range(count)]


def generated(model, texts, requests, *, extra_padding=0, **options):
    """`generate` on a left-padded batch, with everything it can give back."""
    width = max(map(len, texts)) + extra_padding
    ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
    defaults = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0}
    with torch.random.fork_rng():
        return model.generate(
            input_ids=ids,
            attention_mask=mask,
            logits_processor=LogitsProcessorList([KeyedLogitsProcessor(requests, width)]),
            return_dict_in_generate=True,
            output_logits=True,
            output_scores=True,
            **(defaults | options),
        )


def tokens(model, texts, requests, **options):
    found = generated(model, texts, requests, **options)
    return found.sequences[:, -len(found.logits) :].tolist()


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "temperature": 0.3, "top_k": 2, "top_p": 0.5}]
)
def test_generate_takes_the_keyed_token_at_every_position(model, options):
    requests = [
        request(0),
        request(1, temperature=0.6),
        request(2, temperature=0.0),
        request(3, top_k=20, top_p=0.8),
        request(4, position=5),
    ]
    found = generated(model, prompts(5), requests, **options)
    new = found.sequences[:, -NEW:].tolist()
    for row, one in enumerate(requests):
        expected = [
            perturbed(logits[row], one, done).argmax() for done, logits in enumerate(found.logits)
        ]
        assert new[row] == expected


@torch.inference_mode()
def test_output_logits_are_the_models_own_and_output_scores_are_not(model):
    texts = prompts(3)
    found = generated(model, texts, [request(row) for row in range(3)])
    for row, text in enumerate(texts):
        ids = [*text, *found.sequences[row, -NEW:].tolist()]
        whole = model(torch.tensor([ids])).logits[0, len(text) - 1 : -1]
        own = torch.stack([logits[row] for logits in found.logits])
        torch.testing.assert_close(own, whole, atol=1e-4, rtol=1e-4)
    for scores in found.scores:
        assert torch.isfinite(scores).sum(1).tolist() == [1, 1, 1]


def test_the_scores_given_are_left_as_they_are():
    scores = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    before = scores.clone()
    processor = KeyedLogitsProcessor([request(row) for row in range(4)], 2)
    left = processor(torch.zeros(4, 5).long(), scores)
    assert torch.equal(scores, before)
    assert left.shape == scores.shape
    assert left.dtype == scores.dtype


def test_generate_draws_what_the_reference_engine_draws(model):
    sessions = [OneTurn(text, request(row).key) for row, text in enumerate(prompts(6))]
    HfEngine(model, stop=frozenset(), max_turn_tokens=NEW).run(sessions, temperature=1.0)
    found = tokens(model, prompts(6), [request(row) for row in range(6)])
    assert found == [list(session.turn.tokens) for session in sessions]


def test_batch_mates_order_and_left_padding_change_no_token(model):
    texts, requests = prompts(5), [request(row) for row in range(5)]
    together = tokens(model, texts, requests)
    alone = [tokens(model, [t], [r])[0] for t, r in zip(texts, requests, strict=True)]
    assert together == alone
    assert tokens(model, texts[::-1], requests[::-1]) == together[::-1]
    assert tokens(model, texts, requests, extra_padding=9) == together


def test_vocabulary_padding_changes_no_token(model):
    texts, requests = prompts(3), [request(row) for row in range(3)]
    expected = tokens(model, texts, requests)
    model.resize_token_embeddings(640, mean_resizing=False)
    padded = [*range(600, 640)]
    assert tokens(model, texts, requests, suppress_tokens=padded) == expected


def test_finished_rows_are_harmless(model):
    texts, requests = prompts(4), [request(row) for row in range(4)]
    whole = tokens(model, texts, requests)
    end = whole[1][4]
    found = tokens(model, texts, requests, eos_token_id=end)
    lengths = [(row.index(end) + 1 if end in row else NEW) for row in whole]
    assert min(lengths) < max(lengths)
    for row, length in enumerate(lengths):
        assert found[row] == whole[row][:length] + [0] * (max(lengths) - length)


def test_a_turn_may_be_sampled_in_pieces(model):
    text = prompts(3)[2]
    whole = tokens(model, [text], [request(0)])[0]
    first = tokens(model, [text], [request(0)], max_new_tokens=3)[0]
    rest = tokens(model, [text + first], [request(0, position=3)], max_new_tokens=NEW - 3)[0]
    assert first + rest == whole


def test_luck_follows_the_turn_and_not_the_absolute_position(policy):
    """A twin whose resampled turn is longer has the factual's noise in the turns after it."""
    with torch.no_grad():
        policy.model.base_model.norm.weight.zero_()  # logits of 0: a token is its luck alone
    factual, twin = prompts(1)[0], prompts(6)[5]
    assert len(factual) != len(twin)
    found = tokens(policy.model, [factual, twin], [request(7, turn=2)] * 2)
    assert found[0] == found[1]
    assert tokens(policy.model, [twin], [request(7, turn=2)]) == found[:1]
    luck = [noise.gumbel(NoiseKey(1, 2, 7, 2), done, np.arange(600)) for done in range(NEW)]
    assert found[0] == [int(one.argmax()) for one in luck]


def test_the_global_generator_and_the_threads_change_no_token(model):
    texts, requests = prompts(3), [request(row) for row in range(3)]
    torch.manual_seed(1)
    expected = tokens(model, texts, requests, do_sample=True)
    torch.manual_seed(2)
    try:
        torch.set_num_threads(2)
        assert tokens(model, texts, requests, do_sample=True) == expected
    finally:
        torch.set_num_threads(1)


def test_several_sequences_of_a_prompt_want_a_request_each(model):
    texts = prompts(2)
    with pytest.raises(ValueError, match=r"must be one a row, got 2 for 6 rows: beams are not"):
        generated(model, texts, [request(0), request(1)], num_return_sequences=3, do_sample=True)
    keys = [NoiseKey(1, 2, row, 0, luck) for row in range(2) for luck in range(3)]
    requests = [KeyedRequest(key=key) for key in keys]
    found = tokens(model, texts, requests, num_return_sequences=3, do_sample=True)
    for number, one in enumerate(requests):
        assert tokens(model, [texts[number // 3]], [one])[0] == found[number]
    assert len({str(row) for row in found}) == 6


def test_beams_are_refused(model):
    with pytest.raises(ValueError, match="got 2 for 6 rows: beams are not supported"):
        generated(model, prompts(2), [request(0), request(1)], num_beams=3)


def test_a_prompt_longer_than_the_ids_is_refused():
    with pytest.raises(ValueError, match="`prompt_length` must be .* got 9 and ids of width 5"):
        KeyedLogitsProcessor([request(0)], 9)(torch.zeros(1, 5).long(), torch.zeros(1, 3))


def test_scores_without_a_law_name_the_requests_key(model):
    def broken(module, given, result):
        result.logits[1] = torch.nan
        return result

    handle = model.register_forward_hook(broken)
    try:
        with pytest.raises(LogitsError, match=re.escape(f"in row 1 ({request(1).key})")):
            generated(model, prompts(2), [request(0), request(1)])
    finally:
        handle.remove()


def test_continuous_batching_is_declined():
    assert KeyedLogitsProcessor.supports_continuous_batching is False


def test_what_is_no_request_is_refused_before_anything_is_generated():
    for given in ([NoiseKey(1, 2, 0, 0)], [request(0), None], [request(0).extra_args()]):
        with pytest.raises(ValueError, match="`requests` must hold a `KeyedRequest` a row, got"):
            KeyedLogitsProcessor(given, 3)


@pytest.mark.parametrize("width", [-3, 2.0, "3", None, True])
def test_a_prompt_length_that_is_no_width_is_refused(width):
    with pytest.raises(ValueError, match="`prompt_length` must be at least 0 and whole, got"):
        KeyedLogitsProcessor([request(0)], width)
