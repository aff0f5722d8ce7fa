"""The ways to sample with keyed noise, which must take the same tokens, and what they are given.

`blocks` is what a device without Triton runs; here it runs on the CPU, through `sample_words`.
"""

import numpy as np
import pytest
import torch

from trainer.noise import key_words, sample, sample_words, truncate
from trainer.processors.generate import KeyedLogitsProcessor
from trainer.processors.request import KeyedRequest
from twinstats import noise
from twinstats.noise import KeyColumns, NoiseKey

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def by_numpy(logits, keys, positions, temperature=1.0):
    return noise.sample(logits.double().numpy(), keys, positions, temperature)


def by_torch(logits, keys, positions, temperature=1.0):
    return sample(logits, keys, positions, temperature).numpy()


def by_blocks(logits, keys, positions, temperature=1.0):
    columns = keys if isinstance(keys, KeyColumns) else KeyColumns.of(keys)
    scale = torch.from_numpy(np.broadcast_to(np.float64(temperature), len(logits)).copy())
    where = torch.from_numpy(np.array(positions, np.int64))
    return sample_words(logits, key_words(columns), where, scale, keys).numpy()


def by_processor(logits, keys, positions, temperature=1.0):
    scales = np.broadcast_to(temperature, len(logits)).tolist()
    rows = zip(keys, positions, scales, strict=True)
    requests = [KeyedRequest(key=k, position=int(at), temperature=t) for k, at, t in rows]
    left = KeyedLogitsProcessor(requests, 3)(torch.zeros(len(logits), 3).long(), logits)
    assert bool((torch.isfinite(left).sum(1) == 1).all())
    return left.argmax(1).numpy()


SAMPLERS = {f.__name__: f for f in (by_numpy, by_torch, by_blocks, by_processor)}
every_sampler = pytest.mark.parametrize("draw", SAMPLERS.values(), ids=SAMPLERS)
every_tensor_sampler = pytest.mark.parametrize("draw", [by_torch, by_blocks, by_processor])


def batch(num_rows, size, *, seed=0, kind="normal"):
    """Logits, keys, positions and temperatures (some 0) of a random batch."""
    rng = np.random.default_rng([seed, num_rows, size, len(kind)])
    logits = rng.normal(size=(num_rows, size)) * 3
    if kind == "flat":
        logits[:] = rng.normal(size=(num_rows, 1))
    elif kind == "peaked":
        logits[np.arange(num_rows), rng.integers(0, size, num_rows)] += 15
    elif kind == "masked":
        logits[rng.random((num_rows, size)) < 0.9] = -np.inf
        logits[np.arange(num_rows), rng.integers(0, size, num_rows)] = 0.0
    elif kind == "ties":
        logits = rng.integers(1, 3, (num_rows, size)) * 1.0
    keys = [NoiseKey(seed, int(rng.integers(99)), row, row % 7, row % 3) for row in range(num_rows)]
    # so cold that the noise is lost in rounding: exact ties
    degrees = [0.0, 1e-30] if kind == "ties" else [0.0, 0.05, 0.7, 1.0, 1.5, 9.0]
    temperature = rng.choice(degrees, num_rows)
    return torch.from_numpy(logits), keys, rng.integers(0, 2**32, num_rows), temperature


def truncated(logits, *, top_k=0, top_p=1.0, temperature=1.0):
    """The logits with the same truncation in every row."""
    rows = len(logits)
    return truncate(
        logits,
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p, dtype=torch.double),
        temperature=torch.full((rows,), temperature, dtype=torch.double),
    )


def request(row, turn=0, **fields):
    """A keyed request of a row."""
    return KeyedRequest(key=NoiseKey(1, 2, row, turn), **fields)


def perturbed(logits, request, num_sampled):
    """The score of every id by the definition, for one row: its noise on the truncated logits."""
    temperature = request.temperature or 1.0
    rule = {"top_k": request.top_k, "top_p": request.top_p, "temperature": temperature}
    law = noise.truncate(logits.double().numpy(), **rule) / temperature
    if request.temperature == 0:
        return law
    return law + noise.gumbel(request.key, request.position + num_sampled, np.arange(len(law)))


class OneTurn:
    """A session of one turn, which `turn` is once it was sampled."""

    def __init__(self, prompt, key):
        self._prompt, self._key, self.turn = prompt, key, None

    def start(self):
        return list(self._prompt)

    def key(self):
        return self._key

    def advance(self, turn):
        self.turn = turn
