# Everything runs in .venv, which `make` makes: with uv if there is one, else with Python (3.11 or later) and pip.
# ARGS goes to the command: make test ARGS="-k halts", make demo ARGS="--seed 7".

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.installed
ARGS  :=
# Two at a time: one works on what needs Apache Kafka, the other one on the rest. TOGETHER= runs one after the other.
TOGETHER := -n 2 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types bench docs grafana release lock clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## make or renew the environment in .venv

# Renewed when what it was made from has changed, or when its Python has gone.
$(STAMP): pyproject.toml uv.lock .ci/setup .ci/constraints.py $(if $(wildcard $(PY)),,FORCE)
	@.ci/setup

FORCE:

demo: $(STAMP) ## a broker, a fleet with planted faults, and the sidecar on it
	@$(PY) -m sidecar demo $(ARGS)

test: $(STAMP) ## all tests; what this machine cannot run is skipped by name
	@if [ -x .ci/install-deps ]; then .ci/install-deps --optional || echo "make test: going on without"; fi
	@$(PY) -m pytest $(TOGETHER) $(ARGS)

lint: $(STAMP) ## style, formatting, direction of imports
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports --no-cache --no-logo

types: $(STAMP) ## mypy, strict
	@$(VENV)/bin/mypy

bench: $(STAMP) ## the quick benchmark; the whole one: python -m tests.bench
	@$(PY) -m tests.bench --quick $(ARGS)

docs: $(STAMP) ## write the documents that are made from the code
	@$(PY) .ci/docs.py
	@$(PY) deploy/helm/values.py

grafana: $(STAMP) ## write dashboards and alert rules; DOCS=URL says where the runbooks are to be found
	@$(PY) -m grafana.source $(if $(DOCS),--docs $(DOCS)) $(ARGS)

release: $(STAMP) ## build wheel, sdist, SBOM and licences into dist/; see docs/releasing.md
	@$(PY) deploy/release/build.py $(ARGS)

lock: ## renew uv.lock after a change of pyproject.toml (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv (python3 -m pip install uv)" >&2; exit 1; }
	@uv lock

clean: ## remove the environment, caches and what was built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache build dist
	find sidecar tests -name __pycache__ -type d -prune -exec rm -rf {} +
