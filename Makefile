PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
.PHONY: setup demo test lab bench lint clean

setup: $(VENV)/stamp  # the environment, made again where its two files have changed

$(VENV)/stamp: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: setup  # GRPO and GRPO+LLDS from one start, side by side
	$(VENV)/bin/python -m lldlib demo --seeds 0 --out runs/demo

test: setup
	$(VENV)/bin/python -m pytest

lab: setup  # JupyterLab on the notebooks
	$(VENV)/bin/python -m jupyterlab notebooks

bench: setup  # speed, as ratios
	$(VENV)/bin/python -m tests.bench

lint: setup
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis
