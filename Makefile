# make            lists the recipes
# make demo       the whole platform on this machine, with a simulated carrier; ARGS="--leads 200 --exit"
# make test       the whole test suite; ARGS="-k name" passes arguments on to pytest
# make stutter    the same, while its processes stop at random: finds tests that depend on speed; STUTTER_SEED=2
# make lowest     the seams to other libraries on the lowest versions that pyproject.toml declares
# make check      formatting, lint, types, direction of imports, unused names
# make docs       the documents as a site, site/index.html; a page or a link that leads nowhere fails it
# make bench      every benchmark as a table; ONLY=name runs one
# make beside     what a dial costs beside another commit, in turns: REV=4d99879 TURNS=10; BENCH=jobs or mailboxes: what gets done, another: its ratio to its peer
# make proof-agents runs the faults of bench/agents in full and writes docs/proof/agents.md; takes over an hour
# make proof-neighbours runs every fault of handlers and applications at once for two minutes and writes docs/proof/neighbours.md
# make alarm-drill checks that alarms are raised in time, and none by everyday work; twenty minutes, ARGS=--quick for less, ARGS=--keep writes docs/proof/alarms.md
# make proof-refusals runs the faults of bench/refusals in full and writes docs/proof/refusals.md; takes half an hour
# make proof-overdial runs bench/overdial in full and writes docs/proof/overdial.md; takes three quarters of an hour
# make chaos      breaks an installation of 12 processes by seed and checks the promises: ARGS="--seed 7", --seeds 1-200, --minutes 30
# make mutations  takes guards out of a copy of the code, one at a time, and checks that tests notice; ARGS="id …" for some, ARGS=--keep writes docs/proof/mutations.md
# make kube       a kube-apiserver and etcd for the tests of the cluster, built once into ~/.cache/trunkline/kube
# make generators the generators of clients that a test runs on the OpenAPI document: openapi-python-client, and openapi-ts if npm is here
# make screenshots takes the images of the README from the console; needs Chromium
# make release    wheel and sdist into dist/, and the demo run from the wheel in an environment of its own
# make fmt        formats the code
# make lock       pins dependencies anew (needs the network)
# make clean      removes the environment, never a data folder

# Compiled modules are kept whatever the shell says: without them every start compiles the world anew.
export PYTHONDONTWRITEBYTECODE :=
# As pip does: a company's own certificate counts.
export UV_SYSTEM_CERTS ?= true
VENV := .venv
BIN := $(VENV)/bin
# Asked only when the environment is made.
PYTHON ?= $(shell sh tools/pick-python)
ARGS ?=
ONLY ?=
REV ?= 4d99879
TURNS ?= 10
BENCH ?= dispatch
UV_COMPILE := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
UV_SYNC := $(BIN)/uv pip install -q --python $(BIN)/python --require-hashes
# The project itself is linked, not copied; its build tools are pinned too, so nothing is fetched unhashed.
LINK := $(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .

.DEFAULT_GOAL := help
.PHONY: help demo test stutter lowest docs check bench beside proof-agents proof-refusals proof-overdial proof-neighbours alarm-drill chaos mutations kube generators screenshots release fmt lock clean

help:
	@sed -n 's/^# //p' Makefile

$(BIN)/uv: requirements/uv.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(VENV)/.runtime: $(BIN)/uv requirements/runtime.txt pyproject.toml
	@$(UV_SYNC) -r requirements/runtime.txt
	@$(LINK)
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	@$(UV_SYNC) -r requirements/dev.txt
	@touch $@

demo: $(VENV)/.runtime
	@$(BIN)/trunkline demo $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

stutter: $(VENV)/.dev
	@$(BIN)/python -m tests.support.faults.stutter $(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

# One file or two for each library that the platform stands on.
SEAMS := tests/unit/carrier_http tests/unit/test_windows.py tests/unit/test_windows_zones.py tests/unit/test_ingest_phones.py \
  tests/unit/test_telemetry_logs.py tests/unit/test_telemetry_metrics.py tests/conformance/test_carrier_conformance.py \
  tests/integration/test_bus_server.py tests/integration/test_warm_pool.py tests/integration/test_reading.py \
  tests/integration/test_router_fast_path.py tests/integration/test_flags_provider.py tests/integration/test_console.py \
  tests/integration/test_leads_cli.py tests/integration/test_embedded_engines.py tests/unit/test_client_operations.py \
  tests/integration/test_api_resources.py
LOWEST := .lowest-venv

$(LOWEST)/.done: $(BIN)/uv requirements/lowest.txt pyproject.toml
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(LOWEST)
	@$(BIN)/uv pip install -q --python $(LOWEST)/bin/python --require-hashes -r requirements/lowest.txt
	@$(BIN)/uv pip install -q --python $(LOWEST)/bin/python --no-deps --no-build-isolation -e .
	@touch $@

lowest: $(LOWEST)/.done
	@$(LOWEST)/bin/python -m pytest -n auto --dist worksteal -p no:cacheprovider $(SEAMS) $(ARGS)

DOCS := .docs-venv

$(DOCS)/.done: $(BIN)/uv requirements/docs.txt
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(DOCS)
	@$(BIN)/uv pip install -q --python $(DOCS)/bin/python --require-hashes -r requirements/docs.txt
	@touch $@

# Not with -q: it hides the warnings from --strict too.
docs: $(DOCS)/.done
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

check: $(VENV)/.dev
	@$(BIN)/ruff format --check src tests bench examples
	@$(BIN)/ruff check src tests bench examples
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/dead-code

bench: $(VENV)/.dev
	@$(BIN)/python -m bench $(ONLY)

beside: $(VENV)/.dev
	@$(BIN)/python -m bench.beside $(REV) $(TURNS) $(BENCH)

proof-agents: $(VENV)/.dev
	@BENCH_AGENTS_AT_ONCE=3 $(BIN)/python -m bench.agents --keep

proof-neighbours: $(VENV)/.dev
	@$(BIN)/python -m bench.neighbours --keep

chaos: $(VENV)/.dev
	@$(BIN)/python -m tests.support.chaos $(ARGS)

alarm-drill: $(VENV)/.dev
	@$(BIN)/python -m bench.alarm_drill $(ARGS)

proof-overdial: $(VENV)/.dev
	@$(BIN)/python -m bench.overdial --keep

proof-refusals: $(VENV)/.dev
	@$(BIN)/python -m bench.refusals --keep

mutations: $(VENV)/.dev
	@$(BIN)/python tools/mutations $(ARGS)

kube:
	@tools/build-kube

GENERATORS := .generators-venv
NODE_TOOLS := tools/client-generators

$(GENERATORS)/.done: $(BIN)/uv requirements/clients.txt
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(GENERATORS)
	@$(BIN)/uv pip install -q --python $(GENERATORS)/bin/python --require-hashes -r requirements/clients.txt
	@touch $@

$(NODE_TOOLS)/node_modules/.done: $(NODE_TOOLS)/package-lock.json
	@cd $(NODE_TOOLS) && npm ci --silent --no-fund --no-audit
	@touch $@

generators: $(GENERATORS)/.done
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(NODE_TOOLS)/node_modules/.done; \
	  else echo "no npm: openapi-ts is not installed" >&2; fi

screenshots: $(VENV)/.dev
	@$(BIN)/python -m tests.browser.screenshots

release: $(VENV)/.dev
	@tools/release

fmt: $(VENV)/.dev
	@$(BIN)/ruff format src tests bench examples
	@$(BIN)/ruff check --fix-only src tests bench examples

lock: $(BIN)/uv
	@$(UV_COMPILE) --extra demo --group build pyproject.toml -o requirements/runtime.txt
	@$(UV_COMPILE) --all-extras --group build --group dev pyproject.toml -o requirements/dev.txt
	@$(UV_COMPILE) --group docs -o requirements/docs.txt
	@$(UV_COMPILE) --group clients -o requirements/clients.txt
	@cd $(NODE_TOOLS) && npm install --package-lock-only --omit-lockfile-registry-resolved --no-fund --no-audit
	@$(UV_COMPILE) --resolution lowest-direct --extra demo --group build --group seams pyproject.toml -o requirements/lowest.txt

clean:
	rm -rf $(VENV) $(LOWEST) $(DOCS) $(GENERATORS) $(NODE_TOOLS)/node_modules site .bench-venv .mypy_cache .ruff_cache .pytest_cache
