# Every target sets up what it needs: Python 3.11 or newer and make are all it takes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
export TOKENIZERS_PARALLELISM = false

.PHONY: setup demo test test-slow check bench clean

setup: .venv/ready

.venv/ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/twice demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest

test-slow: check
	$(BIN)/python -m pytest -m slow

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
