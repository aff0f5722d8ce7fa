"""Truncation on tensors: the rule of `twinstats.noise.truncate`, row by row."""

import numpy as np
import pytest
import torch

from tests.samplers import DTYPES, batch, truncated
from trainer.noise import truncate
from twinstats import noise


def settings(num_rows, rng):
    choices = {
        "top_k": [0, 1, 2, 7, 40, 10_000],
        "top_p": [1.0, 1e-9, 0.3, 0.5, 0.9, 0.999],
        "temperature": [0.3, 1.0, 2.5],
    }
    return {name: rng.choice(values, num_rows).tolist() for name, values in choices.items()}


@pytest.mark.parametrize("kind", ["normal", "flat", "masked", "rounded"])
@pytest.mark.parametrize("size", [1, 3, 300, 3000])
def test_truncation_is_numpys_row_by_row(kind, size):
    rng = np.random.default_rng(size)
    for dtype in DTYPES:
        logits = batch(30, size, kind=kind)[0]
        logits = (logits.round() if kind == "rounded" else logits).to(dtype)
        columns = settings(30, rng)
        found = truncate(logits, **{n: torch.tensor(np.array(c)) for n, c in columns.items()})
        assert found.dtype == dtype
        for row, values in enumerate(found.double().numpy()):
            options = {name: column[row] for name, column in columns.items()}
            expected = noise.truncate(logits[row].double().numpy(), **options)
            assert np.array_equal(values, expected), (dtype, options)


def test_top_p_forgives_the_rounding_of_sums():
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.double).log()
    for top_p, expected in ((0.39, [3]), (0.4, [3]), (0.41, [2, 3]), (0.7, [2, 3]), (1e-9, [3])):
        assert torch.isfinite(truncated(logits, top_p=top_p)).nonzero()[:, 1].tolist() == expected
    for low, high, kept in ((2, 3, 1), (2, 5, 3), (2, 6, 3)):  # where the sum falls short of it
        many = torch.tensor([[low] * 5 + [high] * 12], dtype=torch.double)
        found = truncated(many.log(), top_p=kept * high / float(many.sum()))
        assert torch.isfinite(found).nonzero()[:, 1].tolist() == list(range(5, 5 + kept))


def test_truncation_off_gives_the_logits_themselves():
    logits = torch.zeros(2, 9)
    assert truncated(logits) is logits


def test_truncation_leaves_the_given_logits_as_they_are():
    logits = batch(5, 90)[0]
    before = logits.clone()
    assert torch.isinf(truncated(logits, top_k=4)).sum() == 5 * 86
    assert torch.equal(logits, before)


def test_truncation_at_temperature_zero_keeps_the_largest():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    kept = truncated(logits, top_p=0.2, temperature=0.0)
    assert torch.isfinite(kept).nonzero()[:, 1].tolist() == [1]
