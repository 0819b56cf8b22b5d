# Bare `make` prints this manual. Every target creates the environment that it needs.
PYTHON ?= python3
# One environment for each interpreter, so that two lines of JAX can stand side by side.
VENV ?= $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
TARGETS ?= cpu
IMAGE ?= shardserve:cpu

.DEFAULT_GOAL := help
.PHONY: help env versions demo test long check format lint types layers bench bench-full vectors lock clean image try-image

help: ## Print this manual
	@echo "shardserve: a mesh of accelerators behind one HTTP endpoint"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.13 chooses another interpreter (its environment is .venv-python3.13)."
	@echo "  PYTEST_ARGS='-k frames' is handed to pytest."

# The lock's hashes hold for what is downloaded; `-e .` has none, so it comes second and brings nothing with it.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "shardserve needs Python 3.11 or newer; try PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) cannot make environments; on Debian and Ubuntu install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

env: $(STAMP) ## Create or refresh the environment

versions: $(STAMP) ## Print the versions of what everything runs on
	@$(BIN)/python -c 'import sys; print("python ", sys.version.split()[0])'
	@$(BIN)/python -m pip list --disable-pip-version-check --format=freeze | grep -E '^(jax|jaxlib|numpy|ml_dtypes|fastapi|uvicorn|pydantic|msgpack|httpx|pytest|mypy|ruff)=='

demo: $(STAMP) ## Start a server with 8 virtual devices and run the guided tour
	$(BIN)/shardserve demo

test: $(STAMP) ## Run the whole test suite
	$(BIN)/python -m pytest $(PYTEST_ARGS)

long: $(STAMP) ## The long tests (20 minutes, 10 GiB of memory), with what they measured
	$(BIN)/python -m pytest -m long -s $(PYTEST_ARGS)

check: lint types layers test ## Everything that CI runs: format, lint, types, layers, tests

format: $(STAMP) ## Rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP) ## Format and lint, without changing a file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) ## mypy --strict
	$(BIN)/mypy

layers: $(STAMP) ## The layers point one way (import-linter)
	$(BIN)/lint-imports

bench: $(STAMP) ## Measure beside seven peers, each in an environment of its own (six minutes once those are made)
	$(BIN)/python -m benchmarks

bench-full: $(STAMP) ## The same with more rounds, and arrays up to 1 GiB
	$(BIN)/python -m benchmarks --size full

vectors: $(STAMP) ## Write the golden frames again (a change of the protocol)
	$(BIN)/python proto_schemas/vectors/generate.py

LOCK = $(PYTHON) -m uv pip compile --universal --generate-hashes --no-header --quiet
# An image has the Python of its base, no tools, and for the rest the versions that the tests ran with.
IMAGE_LOCK = $(LOCK) --no-annotate --python-version 3.13 --constraint requirements.lock

lock: ## Resolve the pins again (needs uv)
	$(LOCK) --python-version 3.11 --extra dev pyproject.toml -o requirements.lock
	$(IMAGE_LOCK) --extra server pyproject.toml -o deploy/cpu.lock
	$(IMAGE_LOCK) --extra gpu pyproject.toml -o deploy/gpu.lock
	$(IMAGE_LOCK) --extra tpu pyproject.toml -o deploy/tpu.lock
	echo hatchling | $(IMAGE_LOCK) - -o deploy/wheel.lock

image: ## Build the container images (TARGETS='cpu gpu tpu') with docker, podman or buildah
	deploy/build-image $(TARGETS)

try-image: ## Start an image (IMAGE=shardserve:cpu) with least rights and try it; needs docker or podman
	deploy/try-image $(IMAGE)
	deploy/try-image --two $(IMAGE)

clean: ## Remove environments and caches
	rm -rf .venv .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
