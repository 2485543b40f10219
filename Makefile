# Every target makes its own virtual environment; only Python >= 3.10, make and a network are needed.
PYTHON ?= python3
WORKERS ?= 2
FULL ?=
DEVICE ?=
EXTRAS ?= dev
INSTALL ?=
REVISION ?= HEAD
EVERY ?= 4
SECONDS ?= 120
SEED ?= 1
PROGRAMS ?= 0

VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed-$(EXTRAS)
export PULLBACK_TEST_DEVICE := $(DEVICE)
export PULLBACK_FULL := $(if $(filter-out 0,$(FULL)),1,)

.NOTPARALLEL:
.PHONY: help demo test lint bench gate docs mutants fuzz stubs clean

help:
	@echo "make demo     fit a small model, write report/demo.html (DEVICE=cuda or webgpu: there)"
	@echo "make test     all tests on a fixed sample (FULL=1: the whole generated matrix; DEVICE=cuda or webgpu: there)"
	@echo "make lint     ruff, types, layers, generated files"
	@echo "make bench    measure against the peers that are installed"
	@echo "make gate     whether this tree compiles what REVISION=HEAD does (EVERY=1: all operations)"
	@echo "make docs     build the pages into build/docs"
	@echo "make mutants  break derivative rules, handles and passes; the tests must notice"
	@echo "make fuzz     random programs for SECONDS=120 from SEED=1; findings in report/fuzz"
	@echo "make stubs    write the generated .pyi and reference pages anew"
	@echo "make clean    remove what was built (not $(VENV))"

$(STAMP): pyproject.toml tools/environment.py
	$(PYTHON) tools/environment.py $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check $(INSTALL) --editable '.[$(EXTRAS)]'
	$(RUN) -m compileall -q src
	@touch $@

demo: $(STAMP)
	$(RUN) -m pullback.cli demo --out report/demo.html $(if $(DEVICE),--device $(DEVICE))

test: $(STAMP)
	$(RUN) -m pytest -n $(WORKERS) $(if $(filter webgpu,$(DEVICE)),tests/webgpu,$(if $(DEVICE),tests/generated))

lint: $(STAMP)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m basedpyright
	$(VENV)/bin/lint-imports
	$(RUN) tools/stubs.py --check
	$(RUN) tools/reference.py --check

bench: $(STAMP)
	$(RUN) -m pullback.cli bench eager
	$(RUN) -m pullback.cli bench jit --html report/bench.html
	$(RUN) -m pullback.cli bench gather --html report/gather.html

gate: $(STAMP)
	$(RUN) tools/gate.py --against $(REVISION) --every $(EVERY)

docs: $(STAMP)
	$(RUN) -m mkdocs build --strict --site-dir build/docs

mutants: $(STAMP)
	$(RUN) tools/mutants.py
	$(RUN) tools/source_mutants.py

fuzz: $(STAMP)
	PYTHONPATH=tests $(RUN) -m fuzz --seconds $(SECONDS) --programs $(PROGRAMS) --seed $(SEED) \
		--workers $(WORKERS)

stubs: $(STAMP)
	$(RUN) tools/stubs.py
	$(RUN) tools/reference.py

clean:
	rm -rf build dist report .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src benchmarks tests tools -name __pycache__ -prune -exec rm -rf {} +
