# Two commands do everything on a fresh machine: `make train` and `make test`.

export HONE_VENV ?= .venv
BIN := $(HONE_VENV)/bin
RECIPE ?= recipes/grpo/arithmetic_cpu.yaml

.PHONY: help setup train test lint docs

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup:  ## Make the virtual environment.
	@bash launch/setup.sh

train: setup  ## Train the small model with GRPO; ARGS="stop.steps=5" changes settings.
	@$(BIN)/hone train $(RECIPE) $(ARGS)

test: setup  ## Run the tests; ARGS="-k packing" chooses.
	@$(BIN)/python -m pytest $(ARGS)

lint: setup  ## Check style and types.
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: setup  ## Build the documentation into site/.
	@$(BIN)/python -m pip install -q -e ".[docs]" && $(BIN)/mkdocs build --strict
