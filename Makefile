# Mini GPT, Number by Number. `make help` lists what can be made.

SHELL := /bin/bash
.SHELLFLAGS := -eo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= python3
PORT ?= 8000
CHAPTER ?=
FORCE ?=
FRESH ?=
export VENV PYTHON

PY := "$(VENV)/bin/python"
export PYTHONPATH := $(CURDIR)
export PYTHONHASHSEED := 0
unexport MPLBACKEND

.PHONY: help env libraries record text exercises gate values prose site book lint pytest test serve bench bench-peers wheel \
	wheel-check colab-check clean distclean

help: ## list the targets
	@echo 'make book and make test are all that is needed. Everything:'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1@\2/p' Makefile | while IFS=@ read -r name text; do \
		printf '%-20s %s\n' "$$name" "$$text"; done
	@echo 'VENV=path places or reuses the environment elsewhere (now: $(VENV)).'

env: ## set up the environment, exactly as requirements.txt says
	@bash tools/environment.sh

libraries: env ## fetch the browser libraries of the site
	@$(PY) -m tools.browser_libraries

record: env ## execute and record all chapters, or one: CHAPTER=book/03_layernorm.md (FRESH=1: uncompared outputs too)
	@$(PY) -m tools.record $(if $(FRESH),--fresh) $(CHAPTER)

text: env ## bring the Markdown of the recorded runs up to date
	@$(PY) -m tools.twin

exercises: env ## write the exercise notebooks from the solutions
	@$(PY) -m tools.exercises

gate: env ## check that every recorded run is complete
	@$(PY) -m tools.gate

values: gate ## run the chapters that may have changed, and compare every value
	@$(PY) -m tools.values

prose: env ## check that every number of the prose is backed by its chapter
	@$(PY) -m tools.prose_numbers

site: libraries ## build the site from the recorded runs
	@$(PY) -m tools.site

book: env ## libraries, text, gate, values, prose and site in one go
	@$(PY) -m tools.book

lint: env ## ruff and mypy, on the code cells of the pages as well
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m tools.format_cells --check
	@$(PY) -m mypy --no-error-summary

pytest: libraries
	@$(PY) -m pytest -n 2

test: env ## run lint and all tests, unless nothing has changed since they passed (FORCE=1: in any case)
	@$(PY) -m tools.stamp test $(if $(FORCE)$(CI),--force) -- "$(MAKE)" lint pytest

serve: ## serve the built site on 127.0.0.1, PORT=8000
	@test -f _build/html/index.html || { echo 'make serve: there is no site yet; run make book first' >&2; exit 1; }
	@echo 'http://127.0.0.1:$(PORT)/ (end with Ctrl-C)'
	@$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

bench: libraries ## measure the seconds of each step of make book
	@$(PY) benchmarks/pipeline.py

bench-peers: env ## train and sample beside transformers and LLMs-from-scratch, as ratios; ARGS=... (20 minutes)
	@$(PY) benchmarks/peers.py --compile --threads 1 $(ARGS)

wheel: env ## build the wheel of the package minigpt into dist/
	@rm -rf build dist
	@$(PY) -m build --quiet --wheel --no-isolation --outdir dist
	@rm -rf build minigpt_course.egg-info

wheel-check: wheel ## install the wheel beside numpy 2.1.3 and torch, and see that it changes neither (1 GB)
	@bash tools/wheel_check.sh

colab-check: wheel ## run all exercises and solutions with Colab's versions, from the wheel (1 GB)
	@$(PY) -m tools.colab_check

clean: ## remove what was built, not the environment
	rm -rf _build vendor build dist minigpt_course.egg-info

distclean: clean ## remove the environment as well
	@if [ -e "$(VENV)" ] && [ ! -f "$(VENV)/pyvenv.cfg" ]; then \
		echo 'make distclean: VENV=$(VENV) is not an environment, so it stays' >&2; exit 1; fi
	rm -rf "$(VENV)"
