# Every target does its own set-up: a virtual environment in .venv with the pinned packages,
# made again only when pyproject.toml or constraints.txt change.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help test check format demo bench study-auto clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e '.[train,charts,onnx,test]'
	@touch $@

.venv/bench: .venv/base
	$(PIP) --no-build-isolation -e '.[bench]'
	@touch $@

test: .venv/base  ## run every test
	$(BIN)/python -m pytest

check: .venv/base  ## format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/base  ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: .venv/base  ## fit the bundled sample with every method; print the table, write out/demo.html
	$(BIN)/python examples/demo.py

bench: .venv/bench  ## time and memory against other libraries, side by side
	$(BIN)/python -m benchmarks

study-auto: .venv/base  ## the tables of docs/studies/auto.md (LOGITS=folder with the study sets)
	@test -n "$(LOGITS)" || { echo "say where the sets are: make study-auto LOGITS=folder"; exit 2; }
	$(BIN)/python studies/auto.py $(LOGITS)
	$(BIN)/python studies/gates.py $(LOGITS)

clean:  ## remove the virtual environment and what the tools left
	rm -rf .venv out .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info
