# Everything a developer or CI runs. Needs Python 3.11+; the e2e tier also root, apt and Go (see CONTRIBUTING.md).
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: help setup check format crds test test-unit test-api test-e2e demo cluster-down
help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## Make the virtual environment with every extra
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check --progress-bar off --quiet --upgrade pip
	@echo "installing rtj and its dependencies (torch is a large download; a few minutes on a fresh machine)"
	$(PY) -m pip install --disable-pip-version-check --progress-bar off --quiet --editable '.[operator,runtime,s3,dev,cluster]'
	@touch $@

check: $(STAMP) ## Static checks: format, lint, types, import directions, generated files
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m rtj_operator.api.crd --check

format: $(STAMP) ## Format the code and sort imports
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

crds: $(STAMP) ## Regenerate crds/ and the chart's copy from the models
	$(PY) -m rtj_operator.api.crd --write

test: $(STAMP) ## All tiers: unit, api, e2e (the README's test command)
	$(PY) -m e2e.testrun unit api e2e

test-unit: $(STAMP) ## Pure code, engine on real files, gloo processes
	$(PY) -m e2e.testrun unit

test-api: $(STAMP) ## Operator against a real kube-apiserver and etcd
	$(PY) -m e2e.testrun api

test-e2e: $(STAMP) ## The whole product on real nodes with real faults
	$(PY) -m e2e.testrun e2e

demo: $(STAMP) ## The main job: two faults, then weights equal to a run without any (STORE=s3: on S3)
	$(PY) -m e2e.demo

cluster-down: $(STAMP) ## Remove the test cluster and everything it set up
	$(PY) -m e2e.cluster down
