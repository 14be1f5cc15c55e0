# `make demo` and `make test` need Python 3.11 to 3.13 and make, nothing else: the virtual environment is made here.

VENV     := .venv
BIN      := $(VENV)/bin
PYTHON   ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
              $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
QUESTION ?=
MODEL    ?=
EXTRAS   := server,postgres,credentials,otel,anthropic,openai
PARALLEL ?= -n 2 --dist loadgroup
EXAMPLES := $(wildcard examples/*/agents.yaml)

.PHONY: help demo test check format bench mutants clean
.DEFAULT_GOAL := help

help:
	@echo "make demo                    the knowledge assistant answers, with hooks around everything it does"
	@echo "                             QUESTION='...' asks your own, MODEL=provider:name takes another model"
	@echo "make test                    every test"
	@echo "make check                   format, lint, types, and the examples validated"
	@echo "make format                  apply the formatter and the safe lint fixes"
	@echo "make bench                   the benchmarks, a table each"
	@echo "make mutants                 break the hook kernel on purpose, and see that a test notices"
	@echo "make clean                   remove what these made"

# The stamps say what is installed; they are older than the two files as soon as a dependency changes.
INPUTS := pyproject.toml constraints.txt

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Agent Engine needs Python 3.11, 3.12 or 3.13, and found none on PATH."; exit 1; }
	@if command -v uv >/dev/null 2>&1; then uv venv --quiet --allow-existing --python "$(PYTHON)" $(VENV); \
	else "$(PYTHON)" -m venv $(VENV) || { echo "Python's venv module is missing (on Debian: apt-get install python3-venv)."; exit 1; }; fi

# $(call install,WHAT): with uv where it is there; a fresh venv's pip may be too old to know dependency groups.
define install
	@if command -v uv >/dev/null 2>&1; then \
	  uv pip install --quiet --python $(BIN)/python --constraint constraints.txt $(1); \
	else \
	  { $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade >/dev/null; } && \
	  { $(BIN)/python -m pip install --help | grep -q -e '--group' || $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'; } && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(1); \
	fi
	@touch $@
endef

$(VENV)/.installed: $(INPUTS) | $(BIN)/python
	@echo "Installing into $(VENV) ..."
	$(call install,--editable .)

$(VENV)/.installed-dev: $(INPUTS) $(VENV)/.installed
	@echo "Installing what the tests and checks need ..."
	$(call install,--editable '.[$(EXTRAS)]' --group test --group check)

demo: $(VENV)/.installed
	@$(BIN)/python examples/enterprise-knowledge-assistant/demo.py $(if $(QUESTION),--question "$$QUESTION") $(if $(MODEL),--model "$$MODEL")
demo: export QUESTION := $(QUESTION)
demo: export MODEL := $(MODEL)

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

check: $(VENV)/.installed-dev
	@$(BIN)/ruff format --check --quiet --output-format concise . || { echo "Not formatted: run 'make format'."; exit 1; }
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/mypy
	@for file in $(EXAMPLES); do $(BIN)/agentctl validate $$file || exit 1; done

format: $(VENV)/.installed-dev
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

# The other frameworks that the benchmarks compare with live apart: their pins do not go with this project's.
$(VENV)-bench/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing what the benchmarks compare with into $(VENV)-bench ..."
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-bench && \
	  uv pip install --quiet --python $(VENV)-bench/bin/python --editable . --group bench; \
	else \
	  $(BIN)/python -m venv $(VENV)-bench && \
	  $(VENV)-bench/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' && \
	  $(VENV)-bench/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group bench; \
	fi
	@touch $@

bench: $(VENV)/.installed-dev $(VENV)-bench/.installed
	@$(BIN)/python benchmarks/run_all.py $(ARGS)

mutants: $(VENV)/.installed-dev
	@$(BIN)/python benchmarks/mutants.py $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-bench dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
