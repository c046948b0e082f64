# Every target sets up what it needs: a virtual environment in .venv with the pinned packages, which
# is updated only if a pyproject.toml or constraints.txt has changed.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help serve browser proxy test test-unit test-faults test-hostile check format docs docs-serve docs-tables demo wheel fuzz bench study-posthoc study-smart study-adafocal study-losses study-epochs study-posthoc-images study-recipes study-verdicts study-coverage screenshots figures clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv/run: pyproject.toml constraints.txt $(addprefix distributions/server/,pyproject.toml setup.py)
	$(PYTHON) -m venv .venv
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e '.[train,charts,onnx,service]' -e distributions/server
	@touch $@

.venv/base: .venv/run
	$(PIP) --no-build-isolation -e '.[test,docs]'
	@touch $@

.venv/bench: .venv/base
	$(PIP) --no-build-isolation -e '.[bench]'
	@touch $@

serve: .venv/run  ## run the service on http://127.0.0.1:8000; FLAGS="--port 9000" for settings (docs/reference/settings.md)
	@exec $(BIN)/python -m service serve $(FLAGS)

browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	echo "no browser found: tests that need one are skipped (on Debian: apt-get install chromium)"

proxy:
	@command -v nginx >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nginx-light >/dev/null; } || \
	echo "nginx not found: tests that need it are skipped (on Debian: apt-get install nginx-light)"

test: .venv/base browser proxy  ## run all tests except fault injection, in four processes; the dashboard tests use Chromium (screenshots in out/pictures)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --ignore=tests/service/hostile
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest tests/service/hostile

test-unit: .venv/base  ## run the fast tests, which need no service
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "unit and not slow"

test-hostile: .venv/base  ## measure how hostile bodies, floods and slow readers affect other callers (about 8 minutes)
	CALIBRD_TEST_HOSTILE=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/service/hostile

test-faults: .venv/base  ## kill processes, fill disks and race promotions; measure what survives and how fast it recovers (about 20 minutes)
	CALIBRD_TEST_FAULTS=yes $(BIN)/python -m pytest tests/faults

check: .venv/base  ## check format, lint, types, import contracts, spelling, and the tables and links of the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/tables.py --check
	$(BIN)/codespell
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: .venv/base  ## format the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/base  ## build the documentation site in site/, which the service serves at /help
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: .venv/base  ## serve the documentation on http://127.0.0.1:8001 while you edit it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

docs-tables: .venv/base  ## generate the tables in README.md and docs/ from the code
	$(BIN)/python docs/tables.py

demo: .venv/run  ## fit the bundled sample with every method; print a table and write out/demo.html
	$(BIN)/python -m calibrd demo --out out/demo.html

wheel: .venv/run  ## build the wheels calibrd (SDK, command line, maths) and calibrd_server (service) in dist/
	rm -rf build distributions/*/build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check . ./distributions/server --no-deps --no-build-isolation -w dist

fuzz: .venv/base  ## send 5,000 generated requests to the running service and fail on any 5xx
	CALIBRD_TEST_CALLS=5000 $(BIN)/python -m pytest tests/service/http/test_generated_calls.py

bench: .venv/bench  ## compare time and memory with scikit-learn, netcal, probmetrics, torchmetrics, relplot and LitServe
	$(BIN)/python -m benchmarks

study-posthoc: .venv/run  ## generate the tables in docs/studies/posthoc.md, for every method (LOGITS=folder with the study sets)
	@test -n "$(LOGITS)" || { echo "set the folder of the study sets: make study-posthoc LOGITS=folder"; exit 2; }
	OMP_NUM_THREADS=1 $(BIN)/python studies/posthoc.py $(LOGITS)

study-smart: .venv/run  ## generate the table in docs/studies/smart.md, which compares SMART with the fit that it replaced (LOGITS=folder)
	@test -n "$(LOGITS)" || { echo "set the folder of the study sets: make study-smart LOGITS=folder"; exit 2; }
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python studies/smart_change.py $(LOGITS)

study-coverage: .venv/run  ## generate the table in docs/studies/auto.md: how often the credible band of additive covers 200 synthetic truths
	OMP_NUM_THREADS=1 $(BIN)/python studies/band_coverage.py

study-adafocal: .venv/run  ## generate the table in docs/studies/adafocal.md (15 training runs; FASHION=path of Fashion-MNIST)
	$(BIN)/python studies/adafocal.py $(if $(FASHION),--data $(FASHION))

study-losses: .venv/base  ## generate the tables in docs/studies/losses.md (69 training runs; FASHION=path of Fashion-MNIST)
	$(BIN)/python studies/losses.py $(if $(FASHION),--data $(FASHION))

study-epochs: .venv/base  ## generate the tables in docs/studies/epochs.md (28 training runs; FASHION=path of Fashion-MNIST)
	$(BIN)/python studies/epochs.py $(if $(FASHION),--data $(FASHION))
	$(BIN)/python studies/batches.py $(if $(FASHION),--data $(FASHION))

study-posthoc-images: .venv/base  ## generate the tables in docs/studies/posthoc.md on features and corrupted images (2 training runs; FASHION=path of Fashion-MNIST)
	$(BIN)/python studies/posthoc_images.py $(if $(FASHION),--data $(FASHION))

study-recipes: .venv/base  ## generate the tables in docs/studies/recipes.md (84 training runs; TEXT=archive of embeddings, IMAGES=archive of CIFAR-10)
	@test -n "$(TEXT)$(IMAGES)" || { echo "set the paths of the data: make study-recipes TEXT=file IMAGES=file"; exit 2; }
	$(if $(TEXT),$(BIN)/python studies/recipes.py text --data $(TEXT))
	$(if $(IMAGES),$(BIN)/python studies/recipes.py images --data $(IMAGES))

study-verdicts: .venv/run  ## generate the tables in docs/studies/verdicts.md: how often verdicts mislead and intervals miss (about half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python studies/verdicts.py
	OMP_NUM_THREADS=1 $(BIN)/python studies/chance.py
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python studies/interval_coverage.py

screenshots: .venv/base browser  ## take the README screenshots in a real browser against a real service
	$(BIN)/python docs/screenshots.py

figures: .venv/run  ## draw the figures for docs/concepts from the bundled sample and simulated rows
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python docs/figures.py

clean:  ## remove the virtual environment and all generated files
	rm -rf .venv build dist out site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info distributions/*/build distributions/*/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
