# `make demo` shows what there is, `make test` checks it, `make test-all` checks everything, as CI does. All make .venv first, and
# install what they need into it. PIP_ARGS is passed to pip. Without an NVIDIA GPU, torch comes from PyTorch's index of CPU builds
# where that can be reached.
PYTHON ?= python3
PIP_ARGS ?=
# The Python of the machine with GPUs that wheels are carried to.
GPU_PYTHON ?= 3.12
GPU_PLATFORMS ?= manylinux_2_28_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64
BIN := .venv/bin
# Tests start thousands of processes, which read compiled modules also where the environment says not to write them.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: demo site docs-check test test-all lint nightly trust coverage mutants older-torch benchmarks measured screenshots gpu-check gpu-wheels clean

# pip installs into the environment from outside, so that Pythons that ship without ensurepip work too
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("scaleproof needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear --without-pip .venv
	$(PYTHON) -m pip --python $(BIN)/python install $(PIP_ARGS) $$($(PYTHON) .ci/torch_index.py) \
		--constraint constraints.txt --editable '.[all,dev]'
	touch $@

demo: .venv/installed
	$(BIN)/scaleproof calibrate --on local --out out/demo/cluster.yaml
	$(BIN)/scaleproof reconcile scenarios/demo/*.yaml --on local --set cluster=out/demo/cluster.yaml --out out/demo
	$(BIN)/scaleproof report out/demo

# The number of examples of properties that do not set their own, by the profiles of tests/conftest.py.
EXAMPLES := few
PARALLEL := --numprocesses auto --dist worksteal

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTHON) -m pip --python $(BIN)/python check

# Everything that matters once.
test: lint
	$(BIN)/pytest -m 'not full and not alone and not nightly' --hypothesis-profile $(EXAMPLES) $(PARALLEL)

# Whether README.md and docs show what their commands print.
docs-check: .venv/installed
	$(BIN)/python docs/scripts/console.py --check

# In addition real groups of ranks in bulk, faults, kills, fuzzing, products over all files that ship, and commands of docs.
test-all: lint docs-check
	$(BIN)/pytest -m 'not alone and not nightly' --hypothesis-profile $(EXAMPLES) $(PARALLEL)
	$(BIN)/pytest -m alone

# What takes longer, or depends on how quiet the machine is.
nightly: EXAMPLES := many
nightly: .venv/installed test-all benchmarks older-torch coverage mutants
	$(BIN)/pytest -m nightly
	$(BIN)/python docs/scripts/console.py --check --all
	$(BIN)/scaleproof prove --on netlab --out out/prove
	$(BIN)/scaleproof prove --on netlab --faults

.venv/trust: .venv/installed
	$(PYTHON) -m pip --python $(BIN)/python install $(PIP_ARGS) --constraint constraints.txt --editable '.[trust]'
	touch $@

# Which lines and branches tests reach, also in the processes that they start.
coverage: .venv/trust
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -m 'not nightly and not alone' --numprocesses auto --dist loadfile --no-loadscope-reorder
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include 'simulator/*' --fail-under 90
	$(BIN)/coverage report --include 'validator/*,proof/*' --fail-under 85

# How many of a sample of faults, put into the engines and the clusters, tests find.
mutants: .venv/trust
	$(BIN)/python -m tests.mutants

# Tries far more than tests do, and prints the figures that docs/measured/reliability.md shows. Hours on two cores.
trust: .venv/installed
	$(BIN)/python -m tests.trust.fuzz 10000
	$(BIN)/python -m tests.trust.kill 25
	$(BIN)/python -m tests.trust.soak 1000000

# The oldest torch that we say works. Where the registry has builds with CUDA alone, it takes several GB.
.venv-older/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear --without-pip .venv-older
	grep --invert-match '^\(torch\|setuptools\|sympy\|networkx\)==' constraints.txt > .venv-older/constraints.txt
	$(PYTHON) -m pip --python .venv-older/bin/python install $(PIP_ARGS) --constraint .venv-older/constraints.txt \
		--editable '.[all,dev]' 'torch==2.11.*'
	touch $@

older-torch: .venv-older/installed
	.venv-older/bin/pytest tests/validator tests/proof

benchmarks: .venv/installed
	for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

# Measures again what docs show as measured. Needs root.
measured: .venv/installed
	$(BIN)/python docs/scripts/measured.py

# The documentation as a static site, out/site/index.html, with search; nothing on it comes from another host.
site: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "out/site; to read it with search: $(PYTHON) -m http.server --directory out/site"

# Takes the pictures of pages that docs show again. Needs Chromium.
screenshots: .venv/installed
	$(BIN)/python docs/scripts/screenshots.py

# Uses $(PYTHON) as it is, with its own torch; prints first what it does and how long that takes. docs/tutorial/gpu-cluster.md says more.
gpu-check:
	$(PYTHON) -c 'import sys; sys.exit("scaleproof needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m scaleproof.proof.gpu_check --out out/gpu-check

# What such a machine may lack, to be carried there.
gpu-wheels:
	$(PYTHON) -m pip download $(PIP_ARGS) --only-binary=:all: --implementation cp --python-version $(GPU_PYTHON) \
		$(addprefix --platform ,$(GPU_PLATFORMS)) --constraint constraints.txt --dest wheels \
		pydantic simpy numpy scipy pyarrow matplotlib networkx jinja2 rich pyyaml pillow

clean:
	rm -rf .venv .venv-older out .mypy_cache .ruff_cache .pytest_cache
