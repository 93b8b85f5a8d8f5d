# Two commands: `make figures` and `make test`. Each sets up .venv first.
PYTHON ?= python3
CORES ?= 2
SCALE ?= demo
WORKERS ?= 2
BIN := .venv/bin

# One thread per process: the workflow runs several processes, and small models gain nothing from more.
export OMP_NUM_THREADS ?= 1
export MPLBACKEND := Agg

.PHONY: figures test docs environment lint clean

figures: environment
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake figures claims gallery report_pages --cores $(CORES) --config scale=$(SCALE)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/effstate report --scale $(SCALE)

test: environment lint
	.ci/packages
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow

# The documentation site, in site/; a warning is an error.
docs: environment
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

environment: .venv/.installed

.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "effstate needs Python 3.11 or newer; run: make PYTHON=python3.11 figures")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps -e .
	touch $@

clean:
	rm -rf .venv .snakemake .pytest_cache .hypothesis .ruff_cache
