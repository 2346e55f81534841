# Every target sets up .venv in this folder, and again when the pinned versions change.
#   make demo      run the six documented cases as real processes; writes out/demo.html
#   make test      what CI runs: ruff, mypy, and pytest, which runs the notebooks too
#   make quick     the tests that tell most, in a minute
#   make test-newest  some of the tests on the newest PyTorch that pip finds, in an environment of its own (3 to 6 GB)
#   make gpu       check what works on this machine's NVIDIA GPUs, in five minutes; writes joinlab-gpu.json, to be sent
#   make lab       open the notebooks in JupyterLab
#   make site      the story of the thread, the symptoms and the notebooks, as web pages, in out/site
#   make bench     measure launch time, the recorder's cost and the time to a verdict
#   make wheelhouse  all packages as files, in out/wheelhouse: make setup WHEELS=FOLDER then needs no network
#   make setup, make lint, make format, make clean
# With another Python than the first python3 on the path: make PYTHON=python3.12 demo
# With PyTorch's build for CPUs, a tenth of the size of that for GPUs: make demo CPU=1

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TEST_STAMP := $(VENV)/.ready-for-tests
DEMO := out/demo.html
NEWEST := .venv-newest
SCRIPTS := joinlab/picture/static joinlab/course/site.css joinlab/course/site.js
# Where pip takes packages from: PyPI, a folder (WHEELS=FOLDER), and PyTorch's own index for its CPU build (CPU=1).
PIP := -m pip --disable-pip-version-check
FROM := $(if $(WHEELS),--no-index --find-links $(WHEELS))
TORCH := $(shell sed -n '/^torch==/p' .ci/pinned.txt)
CPU_INDEX := https://download.pytorch.org/whl/cpu
PRETTIER := npx --yes prettier@3.10.1 --log-level warn

# Prefer the kernel in .venv to one of the same name in the user's home.
export JUPYTER_PREFER_ENV_PATH := 1
# Keep compiled files: the tests and notebooks start about a hundred processes that import joinlab.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup wheelhouse demo gpu test quick test-newest lab site bench lint format scripts clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

# What only tests and linters need. Where nothing is set up yet, pip gets both lists at once: 6 s less.
test quick lint format bench $(TEST_STAMP): ALSO := $(if $(WHEELS),,-r .ci/pinned-test.txt)
$(TEST_STAMP): .ci/pinned-test.txt $(STAMP)
	@if [ -e $@ ] && ! [ $(STAMP) -nt $@ ] && ! [ .ci/pinned-test.txt -nt $@ ]; then exit; fi; \
	  set -x; $(BIN)/python $(PIP) install --progress-bar off -r .ci/pinned.txt -r .ci/pinned-test.txt
	@touch $@

# pip would compile all of PyTorch, 25 s; what emulations import is compiled by importing it.
$(STAMP): .ci/pinned.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "joinlab needs Python 3.11 or newer, and there is no $(PYTHON) here. Install one, or name yours: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "joinlab needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name a newer one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV) (once; it downloads PyTorch if you do not have it yet)"
	$(PYTHON) -m venv $(VENV)
	$(if $(CPU),$(BIN)/python $(PIP) install --progress-bar off $(TORCH) --index-url $(CPU_INDEX))
	$(BIN)/python $(PIP) install --no-compile --progress-bar off $(FROM) -r .ci/pinned.txt $(ALSO)
	$(BIN)/python $(PIP) install --no-deps --no-build-isolation -e .
	$(BIN)/python -c 'from joinlab.emulator.warm_up import warm_up; warm_up()'
	@touch $@ $(if $(ALSO),$(TEST_STAMP))

# For laptops without a network, of the same system and Python as this one.
wheelhouse: $(STAMP)
	mkdir -p out/wheelhouse
	$(if $(CPU),$(BIN)/python $(PIP) download --progress-bar off --dest out/wheelhouse $(TORCH) --index-url $(CPU_INDEX))
	$(BIN)/python $(PIP) download --progress-bar off --dest out/wheelhouse --find-links out/wheelhouse -r .ci/pinned.txt
	@du -sh out/wheelhouse

demo: $(STAMP)
	$(BIN)/python -m joinlab cases --n 1 2 5 --html $(DEMO)

gpu: $(STAMP)
	$(BIN)/python -m joinlab doctor --gpu

lint: $(TEST_STAMP) scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# npm gets the formatter of scripts and style sheets; without it they are not checked.
scripts:
	@if $(PRETTIER) --version >/dev/null 2>&1; then $(PRETTIER) --check $(SCRIPTS); \
	else echo "No npm, or it cannot get prettier: the format of scripts was not checked"; fi

format: $(TEST_STAMP)
	$(BIN)/ruff format .
	$(PRETTIER) --write $(SCRIPTS)

# Three files of tests run at a time, since some wait for processes more than they compute. Beside them run prettier, mypy
# and the browser tests, whose output is printed last. Tests marked `nightly` are left out: python -m tests.nightly runs
# them. Only tests of notebooks load nbmake, whose import takes 2 s.
test: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p out
	{ $(MAKE) --no-print-directory scripts && $(BIN)/mypy && \
	  $(BIN)/python -m pytest -p no:nbmake -m "browser and not nightly" $$(grep -l browser tests/*/test_*.py); } \
	  > out/beside.txt 2>&1 & beside=$$!; \
	$(BIN)/python -m pytest -p no:nbmake --numprocesses=3 --dist=loadfile --no-loadscope-reorder \
	  -m "not browser and not nightly" --doctest-modules tests joinlab; suite=$$?; \
	wait $$beside; beside=$$?; cat out/beside.txt; exit $$((suite || beside))

# One file or two of each floor: facts, seam, backends' models and rules, log, matching, story, picture, rooms.
QUICK := ops process_group log_events events cases emulator play gloo_rule nccl_rule matching folding waiting judge \
  story first_screen details timeline archive

quick: $(TEST_STAMP)
	$(BIN)/python -m pytest -p no:nbmake --numprocesses=2 --dist=loadfile -m "not slow and not browser and not nightly" \
	  $(wildcard $(QUICK:%=tests/*/test_%.py))

# Runs what a new PyTorch breaks first: the methods of ProcessGroup, the six cases, the emulator, launched ranks, and a
# job recorded under torchrun. -rs lists the skipped tests.
test-newest:
	$(PYTHON) -m venv $(NEWEST)
	cat .ci/pinned.txt .ci/pinned-test.txt | grep -v '^torch==' > $(NEWEST)/others.txt
	$(NEWEST)/bin/python -m pip install --disable-pip-version-check --progress-bar off -r $(NEWEST)/others.txt
	$(NEWEST)/bin/python -m pip install --disable-pip-version-check --progress-bar off --upgrade torch
	$(NEWEST)/bin/python -c 'import torch; print("PyTorch", torch.__version__)'
	$(NEWEST)/bin/python -m pytest -rs --continue-on-collection-errors tests/program/test_process_group.py tests/backend/test_cases.py \
	  tests/emulator/test_emulator_groups.py tests/emulator/test_emulator_ddp.py tests/emulator/test_emulator_traces.py \
	  tests/gloo/test_gloo_agreement.py tests/launcher/test_standin.py
	$(NEWEST)/bin/python -m tests.unseen --jobs 02_early_stop
	@echo "The other tests of \`make test\` were not run, nor were the notebooks."

lab: $(STAMP)
	mkdir -p notebooks
	$(BIN)/python -m jupyterlab notebooks

site: $(STAMP)
	JOINLAB_PROGRESS=off $(BIN)/python -m joinlab.course.site out/site notebooks

bench: $(TEST_STAMP)
	$(BIN)/python -m tests.bench

clean:
	rm -rf out build .mypy_cache .pytest_cache .ruff_cache .hypothesis joinlab.egg-info
	find joinlab tests -name __pycache__ -type d -prune -exec rm -rf {} +
