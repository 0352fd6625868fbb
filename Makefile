# Everything a developer does here. A fresh clone needs Python 3.11, 3.12 or 3.13 and make; nothing else.
# Each target installs what it needs, once: the stamp files in .venv say what is there.

VENV := .venv
BIN := $(VENV)/bin
# More than a developer's two cores: what the tests do most is wait.
TEST_WORKERS ?= 3
PYTEST ?= $(BIN)/python -m pytest
# Python compiles what it imports; pip would compile everything, which takes as long again as installing it.
PIP_FLAGS := --quiet --quiet --disable-pip-version-check --require-virtualenv --no-compile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help dev demo test test-slow test-all-pythons test-sdk conformance lint format package bench docs docs-serve \
	release-check requirements clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# --- what is installed -------------------------------------------------------------------------------------------

$(VENV)/.created:
	@python=$$(PYTHON="$(PYTHON)" scripts/find-python) && "$$python" -m venv $(VENV) && touch $@

# The demo's part: runtime dependencies and the project itself, editable.
$(VENV)/.base: requirements/base.txt pyproject.toml | $(VENV)/.created
	@echo "installing what the demo needs (requirements/base.txt)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements/base.txt
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.%: requirements/%.txt | $(VENV)/.base
	@echo "installing requirements/$*.txt"
	@$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes -r $<
	@touch $@

$(VENV)/.docs $(VENV)/.bench $(VENV)/.release: | $(VENV)/.dev

dev: $(VENV)/.base $(VENV)/.dev $(VENV)/.docs $(VENV)/.bench $(VENV)/.release ## create .venv with everything, the project editable in it
	@echo "ready: . $(BIN)/activate, then mcpkeys --help; or make test"

# --- running it --------------------------------------------------------------------------------------------------

demo: $(VENV)/.base $(if $(KEK),$(VENV)/.dev) ## the whole story on this machine; KEK=aws, gcp or openbao against a local test server
	@$(if $(KEK),$(BIN)/python tests/kek_demo.py $(KEK),$(BIN)/mcpkeys demo)

# --- checking it -------------------------------------------------------------------------------------------------

test: $(VENV)/.base $(VENV)/.dev ## every quick test
	$(PYTEST) -n $(TEST_WORKERS) --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.base $(VENV)/.dev ## the long suites
	$(PYTEST) -n $(TEST_WORKERS) --dist loadgroup --no-loadscope-reorder -m slow $(PYTEST_ARGS)

test-all-pythons: ## the quick tests on Python 3.11, 3.12 and 3.13, as far as they are found
	@scripts/test-pythons 3.11 3.12 3.13

test-sdk: $(VENV)/.base $(VENV)/.dev ## the SDK's own tests with this codec in place of its own
	@$(BIN)/python tests/sdk/run.py

conformance: $(VENV)/.base $(VENV)/.dev ## the MCP conformance scenarios for requestState (needs npx)
	@$(BIN)/python tests/conformance/run.py

lint: $(VENV)/.base $(VENV)/.dev ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy --strict

format: $(VENV)/.base $(VENV)/.dev ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# --- making it ---------------------------------------------------------------------------------------------------

package: $(VENV)/.base $(VENV)/.dev ## sdist and wheel into dist/
	@rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

bench: $(VENV)/.base $(VENV)/.dev $(VENV)/.bench ## measure, side by side with the SDK's codec and others
	@$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

docs: $(VENV)/.base $(VENV)/.dev $(VENV)/.docs ## build docs/ into site/, strictly
	@$(BIN)/python -m zensical build --clean --strict

docs-serve: $(VENV)/.base $(VENV)/.dev $(VENV)/.docs ## docs/ on loopback, rebuilt as you write
	@$(BIN)/python -m zensical serve

release-check: $(VENV)/.base $(VENV)/.dev $(VENV)/.release ## build twice alike, check the metadata, install each extra, write the SBOM
	@$(BIN)/python scripts/release_check.py

requirements: .cache/lock/.installed ## write requirements/*.txt anew from the .in files (UPGRADE=1 for newer pins)
	@UPGRADE=$(UPGRADE) scripts/lock-requirements

.cache/lock/.installed: requirements/lock.txt
	@python=$$(PYTHON="$(PYTHON)" scripts/find-python) && "$$python" -m venv .cache/lock
	@.cache/lock/bin/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements/lock.txt
	@touch $@

clean: ## remove what was built and cached
	rm -rf dist build site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

distclean: clean ## and the virtual environments
	rm -rf .venv .venv-3.*
