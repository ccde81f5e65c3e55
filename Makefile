# Everything runs from a fresh clone: each target first sets up .venv, once, and again when pyproject.toml changes.
# `make PYTHON=python3.12 demo` picks an interpreter; otherwise the first suitable one on the PATH is taken.

.DEFAULT_GOAL := help
.PHONY: help setup demo study test test-deep check bench clean

BIN   := .venv/bin
STAMP := .venv/.set-up

help:
	@echo "make demo    simulate the T-NLG FC-2 sublayer under six configurations; results in results/t3-tnlg-fc2"
	@echo "make study   run all experiments of the T3 study (about 35 minutes on two cores), compare with what was published"
	@echo "make test    run the tests"
	@echo "make test-deep  the same with all cases of fuzzers, mutants, determinism and data campaigns, and the deep self-check (hours)"
	@echo "make check   run ruff (rules and format), mypy, the import contracts, the rules of this repository and the glossary"
	@echo "make bench   measure the simulator's speed"
	@echo "make clean   remove .venv, caches and results"

setup: $(STAMP)

$(STAMP): pyproject.toml t3lab/pyproject.toml t3study/pyproject.toml tools/setup-venv
	@tools/setup-venv $(STAMP) $(PYTHON)

demo: $(STAMP)
	@$(BIN)/t3sim run experiments/t3-tnlg-fc2/experiment.yaml -o results/t3-tnlg-fc2

study: $(STAMP)
	@tools/study $(BIN)

test: $(STAMP)
	@$(BIN)/python -m tests.harness.compiled
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --benchmark-disable tests

test-deep: $(STAMP)
	@T3SIM_DEEP=1 $(BIN)/python -m pytest -n 2 --benchmark-disable --timeout 7200 tests
	@$(BIN)/t3sim selfcheck --deep

check: $(STAMP)
	@tools/check $(BIN)

bench: $(STAMP)
	@$(BIN)/python -m pytest -m bench -s tests/bench

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks build dist results
	find t3sim t3lab t3study tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
