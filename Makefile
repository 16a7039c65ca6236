# Every target but `help` and `clean` sets up .venv first, once.

.DEFAULT_GOAL := help
.PHONY: help setup demo test check protos bench-overhead bench-sessions bench-memory clean

BIN := .venv/bin
READY := .venv/ready

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## prepare .venv: llama.cpp, Outrider, the test tools

$(READY): pyproject.toml constraints.txt scripts/setup scripts/check_llama.py
	@scripts/setup
	@touch $@

demo: setup ## stream a completion with the bundled pair
	@$(BIN)/outrider generate \
	    --model models/stdlib-target-q8_0.gguf --draft-model models/stdlib-draft-2m-q8_0.gguf \
	    --prompt 'def read_config(path):' --temperature 0 --n-predict 128

test: setup ## run the tests
	$(BIN)/python -m pytest

check: setup ## lint, format, types, stubs, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python scripts/protos.py --check
	$(BIN)/python -m pytest -q tests/unit/test_layers.py

protos: setup ## generate outrider/v1 from protos/
	$(BIN)/python scripts/protos.py

bench-overhead: setup ## what a round costs beyond the two models
	$(BIN)/python -m bench.overhead

bench-sessions: setup ## throughput over concurrent sessions
	$(BIN)/python -m bench.sessions

bench-memory: setup ## what the processes hold with 32 open generations
	$(BIN)/python -m bench.memory

clean: ## remove .venv, builds and caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
