# Every target first makes sure that .venv holds what constraints.txt names.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.ready
BIN := $(VENV)/bin

.PHONY: setup serve test lint demo bench soak reference-model clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv -c constraints.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[engine,dev]' -c constraints.txt
	@touch $(STAMP)

serve: setup
	$(BIN)/kvreg serve $(ARGS)

demo: setup
	$(BIN)/kvreg demo $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest $(ARGS)

bench: setup
	$(BIN)/python tests/bench $(if $(PEER),--peer $(PEER)) $(ARGS)

# 2,000 mixed operations of concurrent clients, with faults; exits with 1 when anything is found.
soak: setup
	$(BIN)/python -m tests.soak $(ARGS)

# Trains the bundled checkpoint anew; about an hour on two cores. No part of the tests.
reference-model: setup
	$(BIN)/python -m kvreg_service.reference_model.training all $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
