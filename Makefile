# Two commands matter: `make demo` runs the main job, `make test` runs the tests.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
N ?= 100
SPARK ?= 4.0

.PHONY: help setup setup-dev demo test test-all test-unit test-spark containers lint types docs site coverage bench chaos release-check down clean

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Use
setup: ## Make .venv with .venv/bin/tidesink
	@scripts/make_venv.sh $(VENV)
	@scripts/install.sh $(VENV) demo

demo: setup ## Kafka to Delta on this machine, from nothing, and the proof that every value is right
	@$(BIN)/tidesink dev demo

down: ## Stop the local broker and registry
	@$(BIN)/tidesink dev down

##@ Develop
setup-dev:
	@scripts/make_venv.sh $(VENV)
	@scripts/install.sh $(VENV) dev

test: setup-dev ## Every promise at least once, on real servers (aim: 15 minutes on two cores)
	@scripts/test.sh $(VENV)

test-all: setup-dev ## Every test: all codecs, targets and captures, and N random kills (hours)
	@TIDESINK_TEST_ALL=1 TIDESINK_CHAOS=$(N) scripts/test.sh $(VENV)
	@scripts/containers.sh

containers: setup-dev ## Build the image, run the Compose stack, and check both (Debian, as root)
	@scripts/containers.sh

test-unit: setup-dev ## The fast tests: no Java, under a minute
	@$(BIN)/python -m pytest -m "not spark and not servers and not slow" --vectors tests/golden/data -p no:cacheprovider

test-spark: setup-dev ## The tests of Spark on one version: make test-spark SPARK=4.1 VENV=.venv-4.1
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pyspark==$(SPARK).*"
	@$(BIN)/python -m pytest tests/spark tests/contracts/test_targets.py -p no:cacheprovider

lint: setup-dev ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup-dev ## mypy, strict, of the package, the examples and the tests
	@$(BIN)/mypy

docs: setup-dev ## Generate the reference pages
	@$(BIN)/python scripts/generate_docs.py
	@$(BIN)/python scripts/generate_reference.py
	@$(BIN)/python scripts/generate_pictures.py

site: setup-dev ## The documentation as a site, in site/
	@scripts/install.sh $(VENV) site
	@$(BIN)/mkdocs build --strict --quiet

coverage: setup-dev ## What the fast tests run of the package, in percent
	@scripts/install.sh $(VENV) coverage
	@$(BIN)/python -m coverage run -m pytest -q -m "not spark and not servers and not slow" -p no:cacheprovider
	@$(BIN)/python -m coverage report

release-check: setup-dev ## Build sdist and wheel, check them, and run the wheel in an empty environment
	@scripts/install.sh $(VENV) release
	@scripts/release_check.sh $(VENV)

bench: setup-dev ## One table of rates, all measured in one run
	@scripts/install.sh $(VENV) bench
	@$(BIN)/python -m benchmarks

chaos: setup-dev ## N random kills (make chaos N=500)
	@TIDESINK_TEST_ALL=1 TIDESINK_CHAOS=$(N) $(BIN)/python -m pytest -m full -k chaos

clean: ## Remove what the demo and the tests made (not .venv)
	@[ ! -x $(BIN)/tidesink ] || $(BIN)/tidesink dev down >/dev/null 2>&1 || true
	@rm -rf .tidesink .pytest_cache .mypy_cache .ruff_cache spark-warehouse
