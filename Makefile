# One verb per chore. Set-up happens by itself, and again whenever pyproject.toml or constraints.txt changes.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DOCS   ?= docs
Q      ?=
override Q := $(value Q)
ARGS   ?=

.PHONY: help setup ask test lint package format schema record docs reference examples bench clean

help:                    ## list the chores
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' Makefile | while IFS='|' read -r verb what; do printf '  make %-9s %s\n' "$$verb" "$$what"; done

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "caveat needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another one: make PYTHON=python3.12 …" >&2; exit 2; }
	@echo "setting up $(VENV) (only when pyproject.toml or constraints.txt has changed)" >&2
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' >&2
	@touch $@

setup: $(VENV)/.ready     ## create .venv with everything in it

ask: $(VENV)/.ready       ## make ask Q="…": research a question over docs/ (DOCS=folder, ARGS="--json -")
	@[ -n "$$Q" ] || { echo 'Say what to ask: make ask Q="Why is an empty search result not a failure?"' >&2; exit 2; }
	@printf '%s' "$$Q" | $(BIN)/caveat ask - --docs '$(DOCS)' --sources local,wikipedia $(ARGS)
export Q

test: $(VENV)/.ready      ## run the tests: no network, no key
	@$(BIN)/python -m pytest -n auto $(ARGS)

lint: $(VENV)/.ready      ## ruff, mypy strict, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

package: $(VENV)/.ready   ## build wheel and sdist, install them in each way, use them in another folder
	@$(BIN)/python tests/package.py

format: $(VENV)/.ready    ## let ruff put the code in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

schema: $(VENV)/.ready    ## write docs/outcome.schema.json and docs/report.schema.json anew
	@$(BIN)/python -m caveat.schema docs

record: $(VENV)/.ready    ## overwrite cassettes/ with the model of ANTHROPIC_API_KEY (costs money) or ANTHROPIC_BASE_URL
	@[ -n "$$ANTHROPIC_API_KEY$$ANTHROPIC_BASE_URL" ] || \
	  { echo "Recording needs a model: set ANTHROPIC_API_KEY (it costs money), or ANTHROPIC_BASE_URL." >&2; exit 2; }
	@$(BIN)/python -m pytest tests/test_sessions.py --record-mode=rewrite $(ARGS)

docs: schema reference examples  ## write the parts of docs/ anew that code can write

reference: $(VENV)/.ready ## overwrite docs/commands.md with what --help says
	@$(BIN)/python tests/reference.py

examples: $(VENV)/.ready  ## overwrite docs/examples, from cassettes and live runs
	@$(BIN)/python tests/examples.py

bench: $(VENV)/.ready     ## print speed and memory
	@$(BIN)/python tests/bench.py

clean:                   ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist
