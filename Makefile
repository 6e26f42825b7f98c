# Every target first makes sure that .venv holds what constraints.txt names.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.ready
BIN := $(VENV)/bin

# What tests drive beside Python, as Debian names it; tests/system_parts.py says which needs what.
SYSTEM_PACKAGES := prometheus chromium

.PHONY: setup system-deps serve test lint demo bench soak reference-model dashboards clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv -c constraints.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[engine,dev]' -c constraints.txt
	@touch $(STAMP)

# Installs what is missing of SYSTEM_PACKAGES. Without them their tests are skipped, and fail in CI.
system-deps:
	@.ci/system-deps $(SYSTEM_PACKAGES)

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

# Writes dashboards/generated anew; a test compares.
dashboards: setup
	$(BIN)/python -m dashboards $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
