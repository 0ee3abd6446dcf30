# `make serve` and `make test` create the environment first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# The file to which bench-gpu writes its rows, and from which it resumes.
OUT    ?= benchmarks/results
SECONDS_TO_SPEND ?= 3000

# The proofs that `make prove` runs: all, or some of those in tests/support/proved.py.
PROOFS ?=

# The build arguments of `make image`.
DOCKER ?= docker
EXTRA  ?=

# Passed to `convoy serve` as flags; empty means the default.
MODEL  ?=
HOST   ?=
PORT   ?=
DEVICE ?= $(CONVOY_DEVICE)
SERVE_FLAGS = $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) $(if $(DEVICE),--device $(DEVICE))

.DEFAULT_GOAL := help
.PHONY: help serve test prove test-all test-newest test-gpu lint check format bench bench-peers bench-mlperf bench-gpu soak soak-swapped soak-attacked attacks \
	docs papers protocol train clean lock wheel image release-dry

help:  ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 18

# Rebuilt when the pinned versions change.
$(VENV)/serve.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Convoy needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing Convoy into $(VENV), once; pip shows its progress:"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/serve.stamp
	@echo "Installing the packages for tests into $(VENV), once; this takes minutes"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/long.stamp: $(VENV)/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,long]'
	@touch $@

serve: export CALLED_BY_MAKE = yes
serve: $(VENV)/serve.stamp  ## serve the built-in model, or MODEL=path.onnx or MODEL=name (HOST, PORT, DEVICE)
	$(BIN)/convoy serve $(SERVE_FLAGS) $(if $(MODEL),"$(MODEL)")

test: $(VENV)/dev.stamp  ## run the test suite
	$(BIN)/pytest -m "not slow" --spare-proved -n auto --dist worksteal

prove: $(VENV)/dev.stamp  ## run all tests whose results depend only on sources; `make test` then skips most of them until sources change (PROOFS)
	$(BIN)/pytest -m "not slow" -n auto --dist worksteal $$($(BIN)/python -m tests.support.proved --tests $(PROOFS))
	$(BIN)/python -m tests.support.proved $(PROOFS)

test-all: $(VENV)/long.stamp  ## run the suite with its longer tests, and once with the newest release of every package
	HYPOTHESIS_PROFILE=search $(BIN)/pytest -n auto --dist worksteal
	$(BIN)/python -m tests.support.newest

test-newest: $(VENV)/dev.stamp  ## run the suite with the newest release of every package, and report failures
	$(BIN)/python -m tests.support.newest

CUDA_SOURCES = $(shell find docs kernels cusim tests -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h')

lint: $(VENV)/dev.stamp  ## run ruff, ruff format, clang-format and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CUDA_SOURCES)
	$(BIN)/mypy

check: lint test  ## run lint and test

format: $(VENV)/dev.stamp  ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CUDA_SOURCES)

bench: $(VENV)/dev.stamp  ## measure the server with an engine that does nothing, compared with uvicorn
	$(BIN)/python -m benchmarks.serving.overhead

bench-peers: $(VENV)/dev.stamp  ## measure the same work on Triton, mosec, LitServe, BentoML and Ray Serve (each in a separate environment)
	$(BIN)/python -m benchmarks.peers

bench-mlperf: $(VENV)/dev.stamp  ## measure Convoy, in process and over HTTP, and ONNX Runtime with MLPerf's load generator
	$(BIN)/python -m benchmarks.peers.mlperf

soak: $(VENV)/dev.stamp  ## check that ten minutes of load with aborting clients and noise lose, mix up and leak nothing
	$(BIN)/python -m benchmarks.serving.soak

soak-swapped: $(VENV)/dev.stamp  ## run the soak over HTTP and gRPC while the model changes every ten seconds
	$(BIN)/python -m benchmarks.serving.soak --swaps 10 --most-growth 0.1 -- --threads 1

soak-attacked: $(VENV)/dev.stamp  ## run the soak while a hostile client sends the requests that cost most
	$(BIN)/python -m benchmarks.serving.soak --attackers --most-growth 0.5

attacks: $(VENV)/dev.stamp  ## measure an honest client's latency during each of the worst attacks, on 1, 4 and 16 connections
	$(BIN)/python -m benchmarks.serving.attacks

test-gpu: $(VENV)/dev.stamp  ## run the tests that need a GPU, from each kernel to the server
	$(BIN)/python -m benchmarks.gpu proof

bench-gpu: $(VENV)/dev.stamp  ## measure kernels, networks and requests on a GPU, compared with cuDNN and PyTorch, into OUT
	$(BIN)/python -m benchmarks.gpu run --out $(OUT) --seconds $(SECONDS_TO_SPEND)
	$(BIN)/python -m benchmarks.gpu report --out $(OUT)

protocol: $(VENV)/dev.stamp  ## write the descriptors of the gRPC messages from the .proto files
	cd service/grpc && $(abspath $(BIN))/python -m grpc_tools.protoc -I. --descriptor_set_out=descriptors.binpb inference.proto health.proto

docs: $(VENV)/dev.stamp  ## write docs/settings.md, and the tables of measurements
	PYTHONPATH=. $(BIN)/python docs/settings.py
	$(BIN)/python -m benchmarks.peers --docs
	$(BIN)/python -m benchmarks.peers.mlperf --docs

papers: $(VENV)/dev.stamp  ## write docs/papers.md, the papers' results compared with Convoy's, and docs/ladder.md
	$(BIN)/python -m benchmarks.papers --docs

train: $(VENV)/dev.stamp  ## train the built-in digits model again (installs torch)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train]'
	$(BIN)/python -m models.digits.train

# Packages of the extras cuda12, cuda13, ray and bench are not installed here, so their lines do not change.
# The metapackage cuda-toolkit is 12 in one extra and 13 in another, so only locks pin it.
# A lock serves x86-64 and ARM, so it must be the same for both.
LOCK = $(BIN)/uv pip compile --quiet --upgrade --python-version 3.12 --generate-hashes --annotation-style line \
	--custom-compile-command "make lock" -c constraints.txt

lock: $(VENV)/dev.stamp  ## write constraints.txt from the installed versions, and the image's locks
	{ $(BIN)/pip freeze --exclude-editable | grep -v '^cuda-toolkit='; \
	  grep -iE '^(cupy|nvidia|ray|torch)' constraints.txt; } | sort -fsu -t= -k1,1 | sort -f > constraints.new
	mv constraints.new constraints.txt
	$(BIN)/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb")); \
	  extras = project["project"]["optional-dependencies"]; \
	  print(*project["build-system"]["requires"], *extras["sbom"], sep="\n")' \
	  | $(LOCK) - -o deploy/locks/build.txt
	set -e; for name in cpu cuda12 cuda13; do \
	  extra=$${name#cpu}; set -- pyproject.toml --extra grpc --extra otel $${extra:+--extra $$extra}; \
	  $(LOCK) --python-platform x86_64-manylinux_2_28 "$$@" -o deploy/locks/$$name.txt; \
	  $(LOCK) --python-platform aarch64-manylinux_2_28 "$$@" | cmp - deploy/locks/$$name.txt; \
	done

# uv is enough for a wheel, so that nobody waits for the packages of the tests.
$(VENV)/uv.stamp: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@touch $@

wheel: $(VENV)/uv.stamp  ## write dist/: the wheel and the source distribution
	$(BIN)/uv build --quiet --out-dir dist

# With Buildah: make image DOCKER=buildah IMAGE_FLAGS='--format docker'
image:  ## build the image convoy:cpu, or with EXTRA=cuda13 or cuda12 (DOCKER, IMAGE_FLAGS)
	$(DOCKER) build $(IMAGE_FLAGS) --build-arg EXTRA=$(EXTRA) --build-arg REVISION=$(shell git rev-parse HEAD) \
	  --build-arg CREATED=$(shell date -u +%FT%TZ) --tag convoy:$(or $(EXTRA),cpu) .

release-dry: $(VENV)/dev.stamp  ## run all steps of a release except its uploads, which are printed
	UV=$(abspath $(BIN))/uv deploy/release.sh dry-run

clean:  ## remove the environment and every cache
	rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
