"""The Triton kernel: in Triton's interpreter, compiled for an H200, and on a GPU if there is one.

Run as a program under TRITON_INTERPRET=1, this file samples the cases named and prints what
came out; the variable has to be set before the kernel is imported: never in the tests' process.
"""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer import noise as torch_noise
from trainer.noise import blocks, key_words, sample_words
from twinstats import noise
from twinstats.noise import KeyColumns, LogitsError, NoiseKey

ROOT = Path(__file__).parents[2]
REAL = 151_936
KINDS = ("normal", "flat", "peaked", "masked", "ties", "bfloat16", "strided", "cold", "warm")
QUICK = [f"{kind} {size}" for kind in KINDS for size in (257, 4097)] + [
    *("normal 1", "normal 255", "normal 256", "normal 4096", "masked 8300", f"peaked {REAL}")
]
SIZES = (1, 3, 255, 256, 257, 700, 3072, 4095, 4096, 4097, 8300)
ALL = [f"{kind} {size}" for kind in KINDS for size in SIZES] + [f"flat {REAL}"]
LAWLESS = ("nan", "nan where no block is looked into", "inf", "all masked")


@dataclass(frozen=True)
class Case:
    logits: torch.Tensor
    keys: list[NoiseKey]
    positions: np.ndarray
    temperature: np.ndarray

    def expected(self):
        return noise.sample(
            self.logits.double().numpy(), self.keys, self.positions, self.temperature
        ).tolist()

    def tensors(self, device="cpu"):
        columns = key_words(KeyColumns.of(self.keys), device)
        where = torch.tensor(self.positions, device=device)
        return self.logits.to(device), columns, where, torch.tensor(self.temperature, device=device)


def case(kind, size, rows=4):
    rng = np.random.default_rng([size, len(kind), rows])
    values = rng.normal(size=(rows, size)) * 3
    if kind == "flat":
        values[:] = 0.25
    elif kind == "peaked":
        values[np.arange(rows), rng.integers(0, size, rows)] += 30
    elif kind == "masked":
        values[rng.random((rows, size)) < 0.95] = -np.inf
        values[:, rng.integers(size)] = 0.0
    elif kind == "ties":  # so large that the noise is lost in rounding: exact ties
        values = rng.integers(1, 3, (rows, size)) * 1e30
    logits = torch.tensor(values).to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
    if kind == "strided":
        logits = torch.cat((logits, torch.full((rows, 77), 1e9)), dim=1)[:, :size]
    elif kind == "cold":  # ids in a column each, so that the kernel has to copy them
        logits = logits.T.contiguous().T
    keys = [NoiseKey(-3, 2, 2**32 - 1 - row, size % 7, row % 3) for row in range(rows)]
    positions = rng.integers(0, 2**32, rows)
    temperature = {"cold": [0.0], "warm": [1.0]}.get(kind, [0.7, 0.0, 20.0, 1e-3, 1.0])
    return Case(logits, keys, positions, np.resize(np.array(temperature), rows))


def lawless(fault):
    """Rows 1 and 3 have the fault, in a block that is looked into or in one that is not."""
    one = case("normal", 5000, rows=4)
    for row in (1, 3):
        if fault == "all masked":
            one.logits[row] = -math.inf
        elif fault == "inf":
            one.logits[row, 4990] = math.inf
        else:
            one.logits[row, 300] = math.nan
            one.logits[row, 700] = 100.0 if fault != "nan" else 0.0
    return one


def named(name):
    """A case by its name: a fault, or a kind and a size; one row at a real vocabulary."""
    kind, _, size = name.rpartition(" ")
    if name in LAWLESS:
        return lawless(name)
    return case(kind, int(size), rows=1 if int(size) == REAL else 4)


def main(names):
    from trainer.noise import kernel

    found = {}
    for name in names:
        ids, scores = kernel.sample(*named(name).tensors())
        found[name] = ids.tolist(), torch.isfinite(scores).tolist()
    print(json.dumps(found))


COMPILE = """
import json, math, subprocess, sys, tempfile
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from trainer.noise import kernel

constants = {
    "blocks_a_program": kernel._BLOCKS_A_PROGRAM, "block_size": kernel.BLOCK,
    "log_block": math.log(kernel.BLOCK), "nobody": kernel._NOBODY,
}
built = {}
for logits in sys.argv[1:]:
    signature = {
        "logits": logits, "stride": "i64", "vocabulary": "i32", "keys": "*i64",
        "temperatures": "*fp64", "scores": "*fp64", "winners": "*i64",
    } | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel._sample_kernel, signature=signature, constexprs=constants)
    code = compile(source, target=GPUTarget("cuda", 90, 32)).asm
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code["cubin"])
        file.flush()
        tool = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    built[logits] = {"usage": usage, "ptx": code["ptx"]}
print(json.dumps(built))
"""


def printed(arguments, folder, **variables):
    """What a program of its own prints, as JSON."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder)}
    environment.pop("TRITON_INTERPRET", None)
    ran = subprocess.run(
        [sys.executable, *arguments],
        env=environment | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def interpret(names, folder):
    """Tokens, and which scores are finite, of each case in Triton's interpreter."""
    variables = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return printed([__file__, json.dumps(names)], folder, **variables)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    pytest.importorskip("triton")
    return interpret([*QUICK, *LAWLESS], tmp_path_factory.mktemp("triton"))


@pytest.mark.parametrize("name", QUICK)
def test_the_interpreted_kernel_takes_numpys_tokens(interpreted, name):
    tokens, is_finite = interpreted[name]
    assert tokens == named(name).expected()
    assert all(is_finite)


@pytest.mark.slow
def test_the_interpreted_kernel_takes_numpys_tokens_at_every_size(tmp_path):
    pytest.importorskip("triton")
    for name, (tokens, is_finite) in interpret(ALL, tmp_path).items():
        assert tokens == named(name).expected(), name
        assert all(is_finite), name


@pytest.mark.parametrize("fault", LAWLESS)
def test_the_kernels_score_tells_of_a_row_without_a_law(interpreted, fault):
    tokens, is_finite = interpreted[fault]
    assert is_finite == [True, False, True, False]
    one = lawless(fault)
    lawful = noise.sample(
        one.logits.numpy()[::2], one.keys[::2], one.positions[::2], one.temperature[::2]
    )
    assert tokens[::2] == lawful.tolist()


def test_the_kernel_compiles_for_an_h200_and_spills_nothing(tmp_path):
    pytest.importorskip("triton")
    for logits, built in printed(["-c", COMPILE, "*fp32", "*bf16"], tmp_path).items():
        assert ".target sm_90" in built["ptx"], logits
        registers, stack, local = (
            int(re.search(rf"{name}:(\d+)", built["usage"])[1])
            for name in ("REG", "STACK", "LOCAL")
        )
        assert (stack, local) == (0, 0), logits
        assert registers <= 128, logits  # at least four programs of four warps on a processor


@pytest.fixture
def fresh_choice():
    torch_noise.device_sampler.cache_clear()
    yield
    torch_noise.device_sampler.cache_clear()


def test_cuda_takes_the_kernel_where_triton_is_and_plain_torch_elsewhere(monkeypatch, fresh_choice):
    kernel = pytest.importorskip("trainer.noise.kernel")
    assert torch_noise.device_sampler("cuda") is kernel.sample
    for kind in ("cpu", "mps", "xpu"):
        assert torch_noise.device_sampler(kind) is blocks.sample
    torch_noise.device_sampler.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert torch_noise.device_sampler("cuda") is blocks.sample


# --- on a GPU -------------------------------------------------------------------------------

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("form", ["kernel", "blocks"])
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_takes_numpys_tokens(form, kind):
    form = pytest.importorskip("trainer.noise.kernel").sample if form == "kernel" else blocks.sample
    for size in (*SIZES, REAL):
        one = case(kind, size, rows=60)
        ids, scores = form(*one.tensors("cuda"))
        assert ids.tolist() == one.expected(), size
        assert bool(torch.isfinite(scores).all()), size


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("fault", LAWLESS)
def test_cuda_names_a_row_without_a_law(fault):
    one = lawless(fault)
    logits, *rest = one.tensors("cuda")
    with pytest.raises(LogitsError, match=re.escape(f"in row 1 ({one.keys[1]})")):
        torch_noise.sample(logits, one.keys, one.positions, one.temperature)
    with pytest.raises(LogitsError, match="in row 1"):
        sample_words(logits, *rest)
    assert not bool(torch.isfinite(blocks.sample(logits, *rest)[1][1]))


@pytest.mark.gpu
@needs_cuda
def test_cuda_leaves_the_tokens_on_the_device():
    one = case("normal", REAL, rows=30)
    ids = torch_noise.sample(one.logits.cuda(), one.keys, one.positions, one.temperature)
    assert ids.device.type == "cuda"
    assert ids.tolist() == one.expected()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
