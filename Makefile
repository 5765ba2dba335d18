# Every target does its own set-up: a virtual environment in .venv with the versions of requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Compiled modules are kept, also where the environment asks for the opposite: tests start hundreds of Python processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-all mutations check fuzz parity sync-parity poll-parity sql-differential format lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Show on a private PostgreSQL under load what works today
	@$(BIN)/python -m demo

test: $(READY) ## Run the quick tests, at most 12 minutes on two cores (ARGS= for pytest, WORKERS= (3))
	$(BIN)/python -m pytest --quick --numprocesses $(or $(WORKERS),3) --dist loadscope --no-loadscope-reorder $(ARGS)

test-all: $(READY) ## Run all tests in their long form, on every PostgreSQL version at hand (ARGS=, WORKERS= (3))
	$(BIN)/python -m pytest --numprocesses $(or $(WORKERS),3) --dist loadscope --no-loadscope-reorder $(ARGS)

mutations: $(READY) ## Check that the quick tests notice each of a list of deliberate defects (ARGS= for some by name)
	$(BIN)/python -m tests.mutations $(ARGS)

check: $(READY) ## Lint, format, types, and the contract that imports point one way
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fuzz: $(READY) ## Mutated and invented input for the decoder, for MINUTES= (1), from SEED= (a new one)
	$(BIN)/python -m tests.decode.fuzz --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED))

parity: $(READY) ## What sessions saw under load beside the mirror's answers, SNAPSHOTS= (3000) times on two versions
	$(BIN)/python -m tests.query.parity.run --snapshots $(or $(SNAPSHOTS),3000)

sync-parity: $(READY) ## Every table at exact positions under load, COMPARISONS= (2000) times over all versions
	COMPARISONS=$(or $(COMPARISONS),2000) $(BIN)/python -m pytest tests/sync/test_parity.py $(ARGS)

poll-parity: $(READY) ## Every table in the snapshots of polls under load, CYCLES= (200) polls over all versions
	CYCLES=$(or $(CYCLES),200) $(BIN)/python -m pytest tests/poll/test_random.py $(ARGS)

sql-differential: $(READY) ## Invented SQL on PostgreSQL and on the mirror, STATEMENTS= (20000), from SEED= (a new one), ARGS=
	$(BIN)/python -m tests.differential.run --statements $(or $(STATEMENTS),20000) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench-%: $(READY) ## Measure one thing beside its rivals: bench-decode
	$(BIN)/python -m bench.$*

format: $(READY) ## Format the code and mend what the linter can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(READY) ## Resolve the dependencies anew into requirements.lock
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes --no-header \
		--extra java --extra connect --group dev pyproject.toml --output-file requirements.lock

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; say which: make PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@
