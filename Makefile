# Every target first brings .venv up to date with constraints.txt.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.ready
BIN := $(VENV)/bin

# Debian packages that tests need; tests/system_parts.py lists which test needs which.
SYSTEM_PACKAGES := prometheus chromium
# Further packages for tests/cluster. Debian 12 does not have the Go that builds its programs.
CLUSTER_PACKAGES := buildah conntrack containerd containernetworking-plugins debootstrap iproute2 iptables runc

.PHONY: setup system-deps serve test test-fast lint demo bench soak reference-model dashboards clean \
	images cluster-programs cluster test-cluster

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv -c constraints.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[engine,operator,dev]' -c constraints.txt
	@touch $(STAMP)

# Installs missing packages. Without them the tests that need them are skipped, and fail in CI.
system-deps:
	@.ci/system-deps $(SYSTEM_PACKAGES) $(CLUSTER_PACKAGES)

serve: setup
	$(BIN)/kvreg serve $(ARGS)

demo: setup
	$(BIN)/kvreg demo $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# One worker for each core. With WORKERS=0 the tests run in one process, which a debugger needs.
WORKERS ?= auto
# The tests of a file share a worker, and so what the file sets up once.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test: lint
	$(PYTEST) $(ARGS)

# Folders without servers, real models and system parts. What takes seconds in them is marked slow.
FAST_TESTS := tests/contract tests/kernels tests/operator tests/property tests/unit

# What to run before a commit. Paths in ARGS replace the folders.
test-fast: lint
	$(PYTEST) -m "not slow" $(if $(filter tests/%,$(ARGS)),,$(FAST_TESTS)) $(ARGS)

# The two images, with buildah, podman or docker.
IMAGE_BUILDER ?= $(firstword $(foreach tool,buildah podman docker,$(if $(shell command -v $(tool)),$(tool))))
# The version that the chart uses.
IMAGE_TAG ?= $(shell sed -n 's/^appVersion: *"*\([^"]*\)"*/\1/p' charts/kvreg/Chart.yaml)

images:
	@test -n "$(IMAGE_BUILDER)" || { echo "images: install buildah, podman or docker" >&2; exit 1; }
	$(IMAGE_BUILDER) build --file service/Dockerfile --tag kvreg/engine:$(IMAGE_TAG) $(IMAGE_ARGS) .
	$(IMAGE_BUILDER) build --file operator/Dockerfile --tag kvreg/operator:$(IMAGE_TAG) $(IMAGE_ARGS) .

# Builds Kubernetes and helm from tests/cluster/go.mod into a cache of the user; needs Go.
cluster-programs: setup
	$(BIN)/python -m tests.cluster programs

# A shell beside a real cluster of one node with the chart installed; needs root and Go.
cluster: setup
	$(BIN)/python -m tests.cluster shell

test-cluster: setup
	$(BIN)/python -m tests.cluster test $(ARGS)

bench: setup
	$(BIN)/python tests/bench $(if $(PEER),--peer $(PEER)) $(ARGS)

# 2,000 mixed operations of concurrent clients, with faults; exits with 1 when anything is found.
soak: setup
	$(BIN)/python -m tests.soak $(ARGS)

# Trains the bundled checkpoint again; about an hour on two cores. Not part of the tests.
reference-model: setup
	$(BIN)/python -m kvreg_training all $(ARGS)

# Regenerates dashboards/generated; a test compares.
dashboards: setup
	$(BIN)/python -m dashboards $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
