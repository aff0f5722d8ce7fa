"""Real vLLM on this machine's CPU: its settings, models and engines.

Everything here is skipped where vLLM is not installed; `make test-vllm` installs and runs it. With
VLLM_USE_V2_MODEL_RUNNER=1 the same tests run on Model Runner V2, its kernels interpreted.
"""

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.vllm.lab import IS_V2, make_cases
from trainer.config import ModelConfig
from trainer.policy import build_model

HAS_VLLM = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if HAS_VLLM else ["*.py"]

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


@pytest.fixture(scope="session")
def cases(model):
    """Sixty requests of all kinds."""
    return make_cases(model, 60, limit=50)
