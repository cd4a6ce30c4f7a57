# Two commands: `make demo` and `make test`. Each makes .venv and installs what it needs first.
# PIP_ARGS is passed to pip; README.md says how to get a torch build without CUDA.
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin

.DELETE_ON_ERROR:
.PHONY: demo test nightly benchmarks clean

# pip installs into the environment from outside, so that Pythons that ship without ensurepip work too
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("scaleproof needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear --without-pip .venv
	$(PYTHON) -m pip --python $(BIN)/python install $(PIP_ARGS) --constraint constraints.txt --editable '.[validator,dev]'
	touch $@

demo: .venv/installed
	$(BIN)/scaleproof calibrate --on local --out out/demo/cluster.yaml
	$(BIN)/scaleproof reconcile scenarios/demo/*.yaml --on local --set cluster=out/demo/cluster.yaml --out out/demo
	$(BIN)/scaleproof report out/demo

test: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

# What takes longer, or depends on how quiet the machine is.
nightly: .venv/installed test benchmarks
	$(BIN)/pytest -m nightly

benchmarks: .venv/installed
	for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

clean:
	rm -rf .venv out .mypy_cache .ruff_cache .pytest_cache
