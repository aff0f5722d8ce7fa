"""Real vLLM on this machine's CPU: models, engines, and the tokens that they should sample.

Everything here is skipped where vLLM is not installed; `make test-vllm` installs and runs it. With
VLLM_USE_V2_MODEL_RUNNER=1 the same tests run on Model Runner V2, its kernels interpreted.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trainer.config import ModelConfig
from trainer.policy import build_model
from trainer.processors.request import KeyedRequest, sample
from twinstats.noise import NoiseKey, gumbel, truncate

HAS_VLLM = importlib.util.find_spec("vllm") is not None
IS_V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
collect_ignore_glob = [] if HAS_VLLM else ["test_*.py"]

STOP = tuple(range(20))  # one token in thirty ends a turn
MODEL = ModelConfig(
    layers=2, hidden=64, intermediate=128, heads=2, kv_heads=1, vocabulary=600, max_length=256
)


def interpret_triton():
    """Lets vLLM believe in a Triton driver for CPUs: the interpreter runs every kernel in NumPy."""
    sys.path.append(str(Path(sys.prefix) / "triton"))
    from triton.backends import backends

    driver = SimpleNamespace(is_active=lambda: True)
    backends["cpu"] = SimpleNamespace(driver=driver)


if HAS_VLLM:
    for name, value in {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }.items():
        os.environ.setdefault(name, value)
    if IS_V2:
        os.environ["TRITON_INTERPRET"] = "1"
        interpret_triton()
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False  # it keeps packed copies of the weights


@pytest.fixture(scope="session")
def model():
    """A random model whose distributions are far from flat, so that a wrong cache shows."""
    torch.set_num_threads(1)
    model = build_model(MODEL, seed=0).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6)
        model.get_input_embeddings().weight.mul_(2)
    return model


@pytest.fixture(scope="session")
def flat():
    """A model to which all of 1,024 tokens are alike: what it samples is the noise alone."""
    model = build_model(replace(MODEL, vocabulary=1024), seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    return model


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    """Makes engines of a model, with keyed noise, once for each set of arguments."""
    from vllm import LLM

    from trainer.processors.vllm import processor

    folders, engines = {}, {}

    def make(model, **changes):
        name = (id(model), repr(sorted(changes.items())))
        if id(model) not in folders:
            folders[id(model)] = str(tmp_path_factory.mktemp("model"))
            model.save_pretrained(folders[id(model)])
        if name not in engines:
            arguments = {
                "model": folders[id(model)],
                "skip_tokenizer_init": True,
                "dtype": "float32",
                "enforce_eager": True,
                "max_model_len": 192,
                "max_num_seqs": 12,
                "kv_cache_memory_bytes": 2**24,
                "enable_prefix_caching": False,
                "disable_log_stats": False,
                **changes,
            }
            engines[name] = LLM(**arguments, logits_processors=[processor(**arguments)])
            fail_once(engines[name])
        return engines[name]

    return make


def fail_once(llm):
    """Lets later tests of an engine fail at once after an error in it; vLLM would never return."""
    from vllm.exceptions import VLLMValidationError

    generate, errors = llm.generate, []

    def guarded(*arguments, **settings):
        assert not errors, f"the engine failed before: {errors[0]!r}"
        try:
            return generate(*arguments, **settings)
        except VLLMValidationError:
            raise
        except Exception as error:
            errors.append(error)
            raise

    llm.generate = guarded


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
            self.margins.append(margin(logits[0].numpy(), self.request, len(self.tokens)))
            self.tokens.append(int(sample(logits, [self.request], [len(self.tokens)])[0]))
        return self


def margin(logits, request, num_sampled):
    """Distance of the two best perturbed scores."""
    noise, temperature = 0.0, request.temperature or 1.0
    law = truncate(logits, top_k=request.top_k, top_p=request.top_p, temperature=temperature)
    if request.temperature:
        noise = gumbel(request.key, request.position + num_sampled, np.arange(len(logits)))
    best = np.sort(law / temperature + noise)[-2:]
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


@pytest.fixture(scope="session")
def lab():
    """The helpers above, for tests in other files."""
    return SimpleNamespace(
        Case=Case,
        IS_V2=IS_V2,
        altered=altered,
        assert_same=assert_same,
        generate=generate,
        make_cases=make_cases,
        metric=metric,
        params=params,
        sampled=sampled,
    )


@pytest.fixture(scope="session")
def cases(model):
    """Sixty requests of all kinds."""
    return make_cases(model, 60, limit=50)
