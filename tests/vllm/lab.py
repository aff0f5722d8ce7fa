"""Requests of all kinds, the tokens that they should sample, and those that vLLM samples."""

import os
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tests.samplers import perturbed
from trainer.processors.request import KeyedRequest, sample
from twinstats.noise import NoiseKey

IS_V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
STOP = tuple(range(20))  # one token in thirty ends a turn


@dataclass(frozen=True)
class Case:
    """A request, and the tokens that it should sample one by one from the whole sequence."""

    prompt: list
    request: KeyedRequest
    limit: int
    stop: tuple = STOP
    tokens: list = field(default_factory=list)
    margins: list = field(default_factory=list)

    @torch.inference_mode()
    def play(self, model):
        """Fills in tokens and margins: how far ahead each winner was, in perturbed score."""
        while len(self.tokens) < self.limit and not (self.tokens and self.tokens[-1] in self.stop):
            logits = model(torch.tensor([self.prompt + self.tokens])).logits[:, -1].float()
            self.margins.append(margin(logits[0], self.request, len(self.tokens)))
            self.tokens.append(int(sample(logits, [self.request], [len(self.tokens)])[0]))
        return self


def margin(logits, request, num_sampled):
    """Distance of the two best perturbed scores."""
    best = np.sort(perturbed(logits, request, num_sampled))[-2:]
    return float(best[1] - best[0])


def make_cases(model, count, *, seed=0, limit=30, longest=60, **settings):
    """Cases of many prompts, limits and laws; `settings` replaces parts of every request."""
    rng = np.random.default_rng(seed)
    laws = [(0, 1.0), (0, 1.0), (5, 1.0), (0, 0.8), (20, 0.9)]
    cases = []
    for row in range(count):
        top_k, top_p = laws[row % len(laws)]
        request = KeyedRequest(
            key=NoiseKey(seed, 2, row, row % 3),
            temperature=(1.0, 0.7, 1.3, 0.0)[row % 4],
            top_k=top_k,
            top_p=top_p,
            position=int(rng.integers(100)) * (row % 2),
        )
        prompt = rng.integers(0, 600, 1 + rng.integers(longest)).tolist()
        request = replace(request, **settings)
        cases.append(Case(prompt, request, int(rng.integers(5, limit + 1))).play(model))
    return cases


def altered(case, model, *, limit=None, stop=None, **law):
    """The case with another law, limit or stop ids."""
    request = replace(case.request, **law)
    limit = case.limit if limit is None else limit
    stop = case.stop if stop is None else stop
    return Case(case.prompt, request, limit, stop).play(model)


def params(case, **changes):
    """What vLLM is asked for in a case."""
    from vllm import SamplingParams

    settings = {
        "temperature": 0,
        "extra_args": case.request.extra_args(),
        "max_tokens": case.limit,
        "stop_token_ids": list(case.stop),
        "detokenize": False,
    }
    return SamplingParams(**settings | changes)


def generate(llm, cases, **changes):
    """The outputs of vLLM for cases, all submitted together."""
    prompts = [{"prompt_token_ids": case.prompt} for case in cases]
    outputs = llm.generate(prompts, [params(case, **changes) for case in cases], use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def sampled(llm, cases, **changes):
    """The token ids of vLLM for cases."""
    return [list(output.token_ids) for output in generate(llm, cases, **changes)]


def metric(llm, name):
    """A counter of an engine."""
    return sum(m.value for m in llm.get_metrics() if m.name == f"vllm:{name}")


def assert_same(found, cases):
    """Every token is as it should be; a near-tie may fall either way, and ends its comparison."""
    ties, others = [], []
    for number, (tokens, case) in enumerate(zip(found, cases, strict=True)):
        pairs = zip(tokens, case.tokens, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is not None:
            margin = case.margins[first]
            (ties if margin < 1e-3 else others).append((number, first, f"margin {margin:.2e}"))
        elif len(tokens) != len(case.tokens):
            others.append((number, f"{len(tokens)} tokens instead of {len(case.tokens)}"))
    print(f"{sum(len(case.tokens) for case in cases)} tokens, near-ties {ties}")
    assert not others, f"differences {others}, near-ties {ties}"
    assert len(ties) <= 1, f"near-ties {ties}"
