# Every target but `help`, `page-libraries`, `images` and `clean` sets up .venv first, once.

.DEFAULT_GOAL := help
.PHONY: help setup build demo run same-model draft-comparison temperature-demo creative technical \
    test mutations chaos soak hostile fuzz http-examples llama-server-tests check protos page-libraries pair-card bench bench-overhead bench-sessions bench-memory bench-gateway \
    bench-grammar bench-rows bench-drafters compose-test containers-test wheel-test ray-test release images alerts demo-picture dashboard-picture clean

BIN := .venv/bin
READY := .venv/ready

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## prepare .venv: llama.cpp, Outrider, the test tools

# What is built with other CMAKE_ARGS is built anew; without any it stays as it is.
ifneq ($(origin CMAKE_ARGS),undefined)
ifneq ($(strip $(value CMAKE_ARGS)),$(strip $(shell cat .venv/cmake-args 2>/dev/null)))
.PHONY: $(READY)
endif
endif

$(READY): pyproject.toml constraints.txt scripts/setup scripts/check_llama.py
	@scripts/setup
	@touch $@

build: setup ## the same as setup

demo: setup ## see what drafts gain here, with a small real model (98 MB, downloaded once)
	@$(BIN)/outrider demo

# To play with: MODEL= DRAFT= PROMPT= N_DRAFT= N_PREDICT= name your own; without them the bundled pair is used.
# Drafts have a fixed length here, so that there is something to see even where none would pay.
N_DRAFT = 4
export PROMPT
PAIR = $(if $(MODEL),--model '$(MODEL)') $(if $(DRAFT),--draft-model '$(DRAFT)')
GENERATE = $(BIN)/outrider generate $(PAIR) $(if $(N_DRAFT),--n-draft $(N_DRAFT)) $(COUNT)
COUNT = $(if $(N_PREDICT),--n-predict $(N_PREDICT))
SAME = $(or $(MODEL),models/stdlib-target-q8_0.gguf)

run: N_DRAFT =
run: setup ## generate with the defaults; MODEL= DRAFT= PROMPT= N_DRAFT= N_PREDICT=
	@$(GENERATE) $(if $(PROMPT),--prompt "$${PROMPT}")

same-model: PAIR = --model '$(SAME)' --draft-model '$(SAME)'
same-model: setup ## let a model draft for itself: every guess is right, and nothing is gained
	@$(GENERATE) --temperature 0 --prompt "$${PROMPT:-def read_config(path):}"

draft-comparison: setup ## a table of draft lengths
	@$(BIN)/python -m benchmarks.draft_lengths $(PAIR) $(COUNT) --prompt "$${PROMPT:-def read_config(path):}"

temperature-demo: setup ## the same prompt from greedy to creative; watch the acceptance rate
	@for temperature in 0 0.3 0.7 1.0; do \
	    echo "--- temperature $$temperature"; \
	    $(GENERATE) --temperature $$temperature --seed 1 --prompt "$${PROMPT:-def read_config(path):}" || exit; \
	done

creative: N_PREDICT ?= 200
creative: setup ## something inventive, at temperature 0.9
	@$(GENERATE) --temperature 0.9 --prompt "$${PROMPT:-class Dragon:}"

technical: N_PREDICT ?= 200
technical: setup ## something dry, at temperature 0.2
	@$(GENERATE) --temperature 0.2 --prompt "$${PROMPT:-def parse_header(line):}"

# Four at a time on two cores: many tests wait for one process or another. In their order, in
# which the long files come first and the short ones fill up what is left.
test: setup ## run the tests; those of the page need Chromium, which is installed where that can be
	@scripts/browser && tests= || tests='-m "not browser"'; \
	    eval $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $$tests
	@! scripts/torch || .venv/torch/bin/python -m pytest -n 2 tests/tools/test_teach*.py tests/tools/unit/test_teach*.py

mutations: setup ## make one mistake after the other in a copy, and see the tests fail; ONLY=WORDS
	@$(BIN)/python -m tests.mutations.run $(if $(ONLY),--only '$(ONLY)')

chaos: setup ## lose everything, at every service, in the middle of everything; SEED= MINUTES= JOBS=2 FRESH=1 ONLY=WORDS
	@$(BIN)/python -m tests.chaos.run $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) \
	    $(if $(JOBS),--jobs $(JOBS)) $(if $(FRESH),--fresh) $(if $(ONLY),--only '$(ONLY)',--write)

hostile: setup ## attack real processes by a client, a draft, a target; MINUTES=10 WHO=client
	$(BIN)/python -m tests.hostile.run $(if $(MINUTES),--minutes '$(MINUTES)') $(WHO)

fuzz: setup ## change inputs at random and keep what matters in tests/fuzz/corpus; MINUTES=10 ONLY="gguf lookup bodies calls answers"
	@$(BIN)/python -m tests.fuzz.run $(if $(MINUTES),--minutes '$(MINUTES)') $(if $(SEED),--seed '$(SEED)') $(ONLY)

soak: setup ## an hour of mixed work, and whether memory, files, threads or sessions grow; MINUTES=
	@$(BIN)/python -m tests.chaos.soak $(if $(MINUTES),--minutes $(MINUTES))

http-examples: setup ## send the HTTP gateway 5,000 generated requests
	OUTRIDER_TEST_HTTP_EXAMPLES=5000 $(BIN)/python -m pytest -q --timeout 1800 tests/http/test_openapi.py

llama-server-tests: setup ## run llama.cpp's tests of its server; LLAMA_CPP_SOURCE= LLAMA_SERVER=
	$(BIN)/python -m tests.llama_server.run $(if $(LLAMA_SERVER),--server '$(LLAMA_SERVER)')

check: setup ## lint, format, types, stubs, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python scripts/protos.py --check
	$(BIN)/python -m pytest -q tests/unit/test_layers.py

protos: setup ## generate outrider/v1 from protos/
	$(BIN)/python scripts/protos.py

page-libraries: ## write the libraries of the page anew, as scripts/page_libraries/package-lock.json pins them; needs npm
	cd scripts/page_libraries && npm ci --ignore-scripts --no-audit --no-fund --loglevel error && npm run --silent build

bench: setup ## what drafts gain here, against the target alone; MODEL= DRAFT= BENCH="--users 1,4"
	@$(BIN)/outrider bench $(PAIR) $(BENCH)

bench-overhead: setup ## what a round costs beyond the two models
	$(BIN)/python -m benchmarks.overhead

bench-sessions: setup ## throughput over concurrent sessions
	$(BIN)/python -m benchmarks.sessions

bench-memory: setup ## what the processes hold with 32 open generations
	$(BIN)/python -m benchmarks.memory

bench-gateway: setup ## time to the first token over gRPC and over HTTP
	$(BIN)/python -m benchmarks.first_token

bench-grammar: setup ## tokens/s under a JSON schema, drafts on and off; ORCHESTRATOR=HOST:PORT
	$(BIN)/python -m benchmarks.grammar $(if $(ORCHESTRATOR),--orchestrator '$(ORCHESTRATOR)')

bench-rows: setup ## milliseconds to sample one row, by sampler and vocabulary
	$(BIN)/python -m benchmarks.rows

bench-drafters: setup ## what the drafters without a model cost, and what they predict
	$(BIN)/python -m benchmarks.local_drafters

compose-test: setup ## build the image and try deploy/compose*.yaml with a real Docker
	@scripts/compose-test

containers-test: setup ## kill one of 3 targets and 5 drafts every 10 s, 16 users; SEED= MINUTES= ALSO=orchestrator
	@scripts/compose-test --kill $(if $(SEED),--seed '$(SEED)') $(if $(MINUTES),--minutes '$(MINUTES)') \
	    $(if $(ALSO),--also '$(ALSO)')

wheel-test: setup ## install the release in dist/ into an empty environment, without a compiler, and let it write
	@scripts/wheel-test

ray-test: setup ## run the Serve application on a real Ray of this machine, in an environment of its own
	@scripts/ray-test $(TESTS)

release: setup ## make the files of a release in dist/: TAG=v0.1.0; SIGNING_KEY=FILE signs, REHEARSAL=1 tries
	@$(BIN)/python -m scripts.release $(or $(TAG),HEAD) $(if $(SIGNING_KEY),--signing-key '$(SIGNING_KEY)') \
	    $(if $(REHEARSAL),--rehearsal)

images: ## build the images for CPU and CUDA from a tag: TAG=v0.1.0; KINDS="cpu cuda ray ray-cuda" REGISTRY=
	@KINDS='$(KINDS)' REGISTRY='$(REGISTRY)' scripts/with-docker --online scripts/images $(or $(TAG),HEAD) $(DOCKER_BUILD)

alerts: setup ## fire every alert of deploy/prometheus by its fault, with a real Prometheus; ONLY=WORD
	@scripts/with-prometheus $(BIN)/python -m deploy.fire_alerts $(if $(ONLY),--only '$(ONLY)')

demo-picture: setup ## record the demo and draw docs/images/demo.svg; needs npx
	@$(BIN)/python scripts/demo_picture.py

dashboard-picture: setup ## draw the dashboard with a real run's data, all of its panels; needs the extra bench
	@scripts/with-prometheus $(BIN)/python -m deploy.draw_dashboard --page docs/images/prometheus.png

pair-card: setup ## measure the bundled pair; the figures of its card
	$(BIN)/python -m model_making.evaluate

clean: ## remove .venv, builds and caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
