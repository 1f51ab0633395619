# `make help` lists the targets. Everything happens inside .venv; nothing is installed elsewhere.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The newest interpreter that fits (3.11 or later); `make PYTHON=/path/to/python3 …` chooses another.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := server,worker,postgres,nsa,cpu,dev
# One thread a process on CPU: the tests start several ranks on few cores. And bytecode is kept, also
# where the environment forbids it (as images do): they start thousands of processes.
TEST_ENV := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
# Many tests wait for processes they start, so more of them at once than there are cores.
FORKS ?= 5
ARGS ?=
FAULTS := tests/e2e/test_faults.py

.NOTPARALLEL:
.PHONY: help install demo up test unit e2e long lint bench outcomes mutants simulate fuzz chaos format made docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv and install everything (done once; again when pyproject.toml changes)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "gonogo needs Python 3.11 or later (apt-get install python3.11 python3-venv)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[$(EXTRAS)]' -c constraints.txt
	@touch $(STAMP)

demo: install ## One real experiment through every phase, on this machine (ARGS="--fault hang" breaks it)
	$(BIN)/gonogo demo $(ARGS)

up: install ## Start everything here: service, worker, embedded queue and database (Ctrl-C ends it)
	$(BIN)/gonogo up $(ARGS)

test: install ## What every commit must pass: the unit, then the end-to-end tests; lint in their pauses
	@said=$$(mktemp); nice -n 19 $(MAKE) lint > $$said 2>&1 & lint=$$!; failed=0; \
	$(MAKE) unit && $(MAKE) e2e || failed=1; \
	wait $$lint || { echo "make lint failed:"; failed=1; }; cat $$said; rm $$said; exit $$failed

unit: install ## All tests but the end-to-end and the long ones (ARGS="-k stall" chooses)
	$(TEST_ENV) $(BIN)/python -m pytest tests --ignore=tests/e2e -m "not long" --forks $(FORKS) $(ARGS)

e2e: install ## The end-to-end tests but the long ones: real processes, faults, kills
	$(TEST_ENV) $(BIN)/python -m pytest tests/e2e -m "not long" --timeout 900 --forks 3 $(ARGS)

# Faults first, one at a time: a neighbour on the same cores is what their detectors wait for.
long: install ## What takes too long for every commit: every fault and kill, interpreted kernels (over an hour)
	$(TEST_ENV) $(BIN)/python -m pytest $(FAULTS) -m long --timeout 1600 $(ARGS)
	$(TEST_ENV) $(BIN)/python -m pytest tests $(FAULTS:%=--ignore=%) -m long --timeout 1600 --forks 2 $(ARGS)

lint: install ## ruff, mypy, the import law, spelling, plain English
	$(BIN)/mypy & types=$$!; $(BIN)/ruff check .; $(BIN)/ruff format --check .; \
	PYTHONPATH=. $(BIN)/lint-imports; $(BIN)/codespell; $(BIN)/python docs/prose.py; wait $$types

bench: install ## Measure what docs/explanation/benchmarks.md claims (a quarter of an hour; ARGS="--list" says what)
	$(TEST_ENV) $(BIN)/python -m bench $(ARGS)

outcomes: install ## Verdict, first halt and warnings of every scenario, as recorded? (ARGS="--all", "--write")
	$(TEST_ENV) $(BIN)/python -m tests.scenarios $(ARGS)

SIMULATE_SEED ?= 1
simulate: install ## 20 000 healthy run-hours and every fault, simulated: no halt, no miss (an hour)
	$(TEST_ENV) $(BIN)/python -m lab --pool --seed $(SIMULATE_SEED) $(ARGS)

mutants: install ## Would a test notice? Mutants of the judge, resumable; 55 minutes a call
	$(TEST_ENV) $(BIN)/python -m bench.mutants $(ARGS)

fuzz: install ## Generated requests to every route, other ones each time (an hour; FUZZ_EXAMPLES=…)
	$(TEST_ENV) FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-750} $(BIN)/python -m pytest tests/service/test_fuzz.py --timeout 7200 $(ARGS)

SEED ?= 1
KILLS ?= 200
chaos: install ## Kill -9 every part at seeded moments while runs go on: nothing is lost (an hour; SEED=… KILLS=…)
	$(TEST_ENV) $(BIN)/python -m tests.e2e.chaos --seed $(SEED) --kills $(KILLS) $(ARGS)

format: install ## Let ruff format the code and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

made: install ## Write anew what is made from the code: schemas, references, dashboards
	$(BIN)/python -m gonogo.contract.schemas gonogo/contract/schemas
	$(BIN)/python -m bench.references
	$(BIN)/python -m nsa.describe --schema > gonogo/planning/workloads/nsa.train.json
	cp nsa/configs/*.yaml gonogo/planning/configs/
	$(BIN)/python docker/grafana/dashboards.py
	{ sed '/^spec:/q' deploy/kubernetes/rules.yaml; sed 's/^./  &/' docker/prometheus/rules.yml; } > deploy/kubernetes/rules.new
	mv deploy/kubernetes/rules.new deploy/kubernetes/rules.yaml

docs: install ## Build the pages as a site in build/site; every link is checked, without a network
	$(BIN)/sphinx-build -q -n -W --keep-going docs build/site

clean: ## Remove .venv and every cache
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
