.DEFAULT_GOAL := help
SHELL := /bin/bash
# The first Python >= 3.11 on this machine; `make PYTHON=/path/to/python3.12 test` chooses another.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && exit; done; echo python3)
READY := .venv/ready
BIN := .venv/bin

.PHONY: help demo dev test torture unit lint style types docs format bench lock new-verb clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): bootstrap.py pyproject.toml requirements/runtime.in requirements/dev.txt requirements/uv.txt compaction_platform/embedded_lake/jars.txt
	@$(PYTHON) bootstrap.py

demo: $(READY) ## Show the platform at work on a real lake on this machine (starts it, uses it, stops it)
	@$(BIN)/compaction demo

dev: $(READY) ## Start the embedded lake, Spark and Dagster; Ctrl-C stops everything
	@$(BIN)/compaction dev || [ $$? -eq 130 ] # Ctrl-C is the way to end it

test: style ## Run lint and all tests (in three processes, each with a lake of its own and all with one Spark)
	@$(MAKE) --no-print-directory types > .venv/types.log 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory docs > .venv/docs.log 2>&1 & docs=$$!; \
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0; tests=$$?; \
	wait $$types || { cat .venv/types.log; echo "types or imports are not right: see above"; tests=1; }; \
	wait $$docs || { cat .venv/docs.log; echo "the documentation is not right: see above"; tests=1; }; exit $$tests

unit: $(READY) ## Run only the tests that need no server (a minute or two)
	@$(BIN)/python -m pytest -m unit -n 2

torture: $(READY) ## Hold compacted files against foreign readers, with damaged inputs (10 min; needs Go, Cargo, Node)
	@$(BIN)/python -m compaction_platform_tests.torture --minutes $(or $(TORTURE_MINUTES),10) \
		$(if $(TORTURE_SEEDS),--seeds $(TORTURE_SEEDS)) $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case '$(CASE)')

lint: style types ## Check style, types and who imports whom

style: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }

types: $(READY)
	@$(BIN)/lint-imports --no-logo & imports=$$!; $(BIN)/mypy && wait $$imports

docs: $(READY) ## Build the documentation into build/site; a broken link fails (no network is needed)
	@$(BIN)/python -m zensical build --strict --clean
	@$(BIN)/python docs_site.py && echo "build/site/index.html"

format: $(READY) ## Format the code
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

bench: $(READY) ## Measure speed and memory against peers on this machine
	@$(BIN)/compaction bench

lock: $(READY) ## Compile requirements/*.in to hash-pinned *.txt
	@cd requirements && for name in uv runtime docs dev torture; do \
		../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $$name.in --output-file $$name.txt || exit 1; done

new-verb: $(READY) ## Make a new verb that works: make new-verb NAME=dedupe
	@PYTHONPATH=. $(BIN)/python examples/new_verb.py $(NAME)

clean: ## Stop what this checkout started and delete its environment, state and data
	@if [ -x $(BIN)/compaction ]; then $(BIN)/compaction down --all; fi
	@rm -rf .venv .compaction .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .cache build *.egg-info
