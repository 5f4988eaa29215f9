# Two commands do everything on a fresh machine with Python 3.11+, git and make:
#   make demo    the main job, with a report
#   make test    the tests
# Each makes its own .venv and installs what it needs; the second time nothing is installed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python install.py
STATED := pyproject.toml setup.py install.py constraints.txt

# Whoever forbids this would have each of the tests' many processes compile torch's sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo serve test test-browser test-slow test-security test-wheel lint bench docs vendor clean

help:
	@echo "make demo           run the main job and write runs/demo/report.html"
	@echo "make serve          run the service on this machine, filled with people of ML-100K (PORT=8001)"
	@echo "make test           run the tests"
	@echo "make test-browser   run the pages in Chromium (from your system; minutes)"
	@echo "make test-slow      run the tests that take minutes"
	@echo "make test-security  run all attackers: strangers, cheats, bombs, broken files (minutes)"
	@echo "make test-wheel     install the wheel with the newest versions it allows, and use it (minutes)"
	@echo "make lint           check style and types"
	@echo "make bench          time the hot paths beside their yardsticks"
	@echo "make docs           build the documentation into site/"
	@echo "make vendor         fetch the libraries of the service's pages, with licences and digests"
	@echo "make install        make .venv with everything for development"

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; '$(PYTHON)' is older. Try: make PYTHON=python3.11"; exit 2; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/made $(STATED)
	@echo "installing rescind (a few minutes the first time)"
	@$(INSTALL) --editable .
	@touch $@

# In one go, not after the plain install: each go builds the package and looks all versions up.
$(VENV)/installed-dev: $(VENV)/made $(STATED)
	@echo "installing rescind with the tools for tests and checks (a few minutes the first time)"
	@$(INSTALL) --editable '.[dev,flower,service,postgres]'
	@touch $(VENV)/installed $(VENV)/installed-service $@

$(VENV)/installed-docs: $(VENV)/installed-dev
	@echo "installing the tools for the documentation"
	@$(INSTALL) --editable '.[docs]'
	@touch $@

install: $(VENV)/installed-dev
	@echo "ready. Next: $(BIN)/rescind --help"

demo: $(VENV)/installed
	@$(BIN)/rescind demo

$(VENV)/installed-service: $(VENV)/installed
	@echo "installing what the service needs"
	@$(INSTALL) --editable '.[service]'
	@touch $@

serve: $(VENV)/installed-service
	@$(BIN)/rescind serve --demo ml-100k --state runs/service-demo $(if $(PORT),--port $(PORT))

# The ground floor first, in one process: whoever waits sees a test within seconds, and nothing else
# is worth running while it is broken. Then everything above it, side by side.
GROUND := tests/core/test_labels.py tests/core/test_jagged.py tests/core/test_params.py

test: $(VENV)/installed-dev
	@$(BIN)/python -m pytest $(GROUND)
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(GROUND)) tests

$(VENV)/installed-browser: $(VENV)/installed-dev
	@echo "installing what drives a browser"
	@$(INSTALL) --editable '.[browser]'
	@touch $@

test-browser: $(VENV)/installed-browser
	@$(BIN)/python -m pytest -m browser tests/browser

test-slow: $(VENV)/installed-dev
	@$(BIN)/python -m pytest -m slow

test-security: $(VENV)/installed-dev
	@$(BIN)/python -m pytest -n 2 --dist load tests/security -m "slow or not slow" -k "not in_every_way"

test-wheel: $(VENV)/made
	@$(BIN)/python tests/slow/newest_versions.py

lint: $(VENV)/installed-dev
	@$(BIN)/ruff check src tests bench papers setup.py install.py
	@$(BIN)/ruff format --check --quiet src tests bench papers setup.py install.py || \
		{ echo "run: $(BIN)/ruff format src tests bench papers setup.py install.py"; exit 1; }
	@$(BIN)/mypy

bench: $(VENV)/installed
	@$(BIN)/rescind bench

docs: $(VENV)/installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "written: site/index.html"

vendor: $(VENV)/installed-dev
	@$(BIN)/python -m rescind_papers.vendor

clean:
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
