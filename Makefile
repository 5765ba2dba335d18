# Every target sets itself up: a virtual environment in .venv with the versions of requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLASSES := $(VENV)/spark.jsa

# Keep compiled modules, even if the environment disables that: tests start hundreds of Python processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo dist docs transcripts test test-all mutations check fuzz parity sync-parity poll-parity clone-parity sql-differential sql-parity sql-regress soak torture format lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Mirror a private PostgreSQL under load, and prove it equal
	@$(BIN)/python -m demo

test: $(READY) $(CLASSES) ## Run the quick tests, at most 12 minutes on two cores (ARGS= for pytest, WORKERS= (3))
	$(BIN)/python -m pytest --quick --numprocesses $(or $(WORKERS),3) --dist loadscope $(ARGS)

test-all: $(READY) $(CLASSES) ## Run all tests in full, on every installed PostgreSQL version (ARGS=, WORKERS= (3))
	$(BIN)/python -m pytest --numprocesses $(or $(WORKERS),3) --dist loadscope $(ARGS)

mutations: $(READY) $(CLASSES) ## Check that the quick tests detect a list of deliberate defects (ARGS= for some by name)
	$(BIN)/python -m tests.mutations $(ARGS)

check: $(READY) ## Lint, format, types, the direction of imports, and the wording of messages and documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.wording

fuzz: $(READY) ## Fuzz the decoder with mutated and generated input, for MINUTES= (1), from SEED= (random)
	$(BIN)/python -m tests.pgoutput.fuzz --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED))

parity: $(READY) ## Compare reads with what sessions saw under load, SNAPSHOTS= (3000) on two versions
	$(BIN)/python -m tests.mirror.parity.run --snapshots $(or $(SNAPSHOTS),3000)

sync-parity: $(READY) ## Compare every table at exact positions under load, COMPARISONS= (2000) over all versions
	COMPARISONS=$(or $(COMPARISONS),2000) $(BIN)/python -m pytest tests/pipeline/sync/test_parity.py $(ARGS)

poll-parity: $(READY) ## Compare every table in the snapshots of polls under load, CYCLES= (200) over all versions
	CYCLES=$(or $(CYCLES),200) $(BIN)/python -m pytest tests/pipeline/poll/test_random.py $(ARGS)

clone-parity: $(READY) ## Compare every table of clones under load at exact positions, SNAPSHOTS= (2000)
	$(BIN)/python -m tests.target.parity --snapshots $(or $(SNAPSHOTS),2000)

sql-differential: $(READY) ## Compare generated SQL on PostgreSQL and the mirror, STATEMENTS= (20000), SEED= (random), ARGS=
	$(BIN)/python -m tests.differential.run --statements $(or $(STATEMENTS),20000) $(if $(SEED),--seed $(SEED)) $(ARGS)

sql-parity: $(READY) ## Compare PostgreSQL's statements at the source and by the mirror: TPC-H, TPC-DS, random ones (ARGS=)
	$(BIN)/python -m tests.sql_parity.run $(ARGS)

sql-regress: $(READY) ## Compare what psql prints for PostgreSQL's regression files, directly and through the server (ARGS=)
	$(BIN)/python -m tests.sql_parity.regress $(ARGS)

bench-%: $(READY) ## Run one benchmark against its rivals, such as bench-copy: see docs/internals/benchmarks.md
	$(BIN)/python -m bench.$*

soak: $(READY) ## Run a mirror under load with a retention of 5 minutes, for MINUTES= (60), and report what grows
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),60)

torture: $(READY) ## Kill processes, fail the network and restart the source of a mirror under load, for MINUTES= (30), SEED= (random)
	$(BIN)/python -m bench.torture --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

docs: $(READY) ## Regenerate the reference pages in docs/reference from the code
	$(BIN)/python -m tests.documentation.reference

transcripts: $(READY) ## Run the commands of README.md and the quickstart, and write their output into them
	$(BIN)/python -m tests.documentation.transcripts

dist: ## Build the wheel and the source distribution in dist/, and try the wheel in a new environment
	rm -rf dist
	$(PYTHON) -m venv --clear .cache/build
	.cache/build/bin/python -m pip install --quiet build==1.6.1
	.cache/build/bin/python -m build --quiet
	$(PYTHON) -m venv --clear .cache/tried
	.cache/tried/bin/python -m pip install --quiet "$$(echo dist/tidemark-*.whl)[java]"
	cd /tmp && $(CURDIR)/.cache/tried/bin/tidemark --version
	@ls dist

format: $(READY) ## Format the code and apply the linter's fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(READY) ## Resolve the dependencies into requirements.lock
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes --no-header \
		--extra java --extra connect --extra duckdb --group dev pyproject.toml --output-file requirements.lock

clean: ## Remove the virtual environment, the build output and all caches
	rm -rf $(VENV) dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is required: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

$(CLASSES): $(READY)
	$(BIN)/python -m harness.class_archive
