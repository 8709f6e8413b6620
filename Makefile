# The usual ways in. Everything is installed and built as needed.
.DEFAULT_GOAL := help
.PHONY: help build configured-with-tests test test-whole storm storm-peers soak long cells demo bench cuda-build gpu fuzz sanitize peers peers-test clients wheel format check clean

# A compiler process on LibTorch's headers takes up to 2 GB.
JOBS := $(shell awk -v cores=$$(nproc) '/MemAvailable/ {jobs = int($$2 / 2000000); if (jobs < 1) jobs = 1; \
          print (jobs < cores ? jobs : cores)}' /proc/meminfo)

# One compiler cache serves all clones and work trees.
export CCACHE_BASEDIR := $(CURDIR)

help:  ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build:  ## Build the program, build/release/tessera, and the library next to it
	@scripts/setup
	@cmake --preset release -DTESSERA_BUILD_TESTS=OFF -DTESSERA_BUILD_PYTHON=ON > build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log
	@cmake --build --preset release -j $(JOBS) --target tessera_cli tessera_shared

demo:  ## Train a real BERT on real text for about two minutes (TEXT="files" to use your own)
	@$(MAKE) --no-print-directory build
	@scripts/demo $(TEXT)

configured-with-tests:
	@scripts/setup --test
	@cmake --preset release -DTESSERA_BUILD_TESTS=ON -DTESSERA_BUILD_PYTHON=ON > build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log

test: configured-with-tests  ## Build and run the tests, of those with many or long cases a sample
	@cmake --build --preset release -j $(JOBS)
	@scripts/run_tests

test-whole: configured-with-tests  ## The same with every case, about half an hour more
	@cmake --build --preset release -j $(JOBS)
	@scripts/run_tests --whole

storm: configured-with-tests  ## Faults by the thousand, into tests/storm/results.md, over an hour (ARGS="--only hosts": 20 minutes)
	@cmake --build --preset release -j $(JOBS) --target tessera_cli io_faults
	@tests/storm/run $(ARGS)

soak: configured-with-tests  ## Train, save, evaluate, die and resume for an hour: is all of it flat? Into tests/storm/soak.md (MINUTES=2)
	@cmake --build --preset release -j $(JOBS) --target tessera_cli
	@tests/storm/soak $(if $(MINUTES),--minutes $(MINUTES))

long: configured-with-tests  ## One sequence of 131,072 tokens over four ranks, with memory that one process cannot do it in, into tests/long/results.md, half an hour
	@cmake --build --preset release -j $(JOBS) --target tessera_cli
	@tests/long/run $(ARGS)

cells: configured-with-tests  ## Every way to share a model over up to 8 ranks, at every ZeRO stage, into tests/cells/results.md, an hour (ARGS="--ranks 4")
	@cmake --build --preset release -j $(JOBS) --target tessera_cli
	@tests/cells/run $(ARGS)

storm-peers: configured-with-tests  ## The same against DeepSpeed itself and against Tessera under its names, into tests/storm/peers.md
	@scripts/setup --peers
	@cmake --build --preset release -j $(JOBS) --target tessera_cli tessera_python
	@tests/storm/peers $(ARGS)

bench: configured-with-tests  ## Compare with the peers, into bench/results.md, about an hour (ARGS="--quick": 3)
	@cmake --build --preset release -j $(JOBS) --target tessera_cli tessera_python bench_programs
	@bench/run $(ARGS)

cuda-build:  ## Build against a LibTorch for CUDA and run what needs no GPU, into docs/cuda-build.md, about an hour and 6 GB (TORCH=2.11.0)
	@scripts/setup --test
	@scripts/cuda_build $(TORCH) --jobs $(JOBS)

gpu:  ## On CUDA GPUs: run the device tests, and measure what there is to know, into bench/gpu.md as it comes (TORCH=2.11.0)
	@bench/gpu --check
	@scripts/setup --test
	@scripts/cuda_build $(TORCH) --only-build --jobs $(JOBS)
	@TESSERA_BUILD=$(CURDIR)/build/cuda TESSERA_PYTHON=$(CURDIR)/.venv-cuda/bin/python bench/gpu $(ARGS)

# $(1) is a preset of CMake, $(2) what to build of it.
define build_with_sanitizer
	@cmake --preset $(1) > build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log
	@cmake --build --preset $(1) -j $(JOBS) --target $(2)

endef

fuzz:  ## Feed what reads files and messages with made-up bytes, SECONDS=60 for each reader, into tests/fuzz/results.md (TARGETS="yaml csv")
	@scripts/setup --test --fuzz
	$(call build_with_sanitizer,asan,fuzz_targets)
	@scripts/fuzz --seconds $(or $(SECONDS),60) $(TARGETS)

sanitize:  ## Run the C++ tests and some training under sanitizers, into tests/sanitize/results.md, hours (PRESETS="asan", "tsan")
	@scripts/setup --test --fuzz
	$(foreach preset,$(or $(PRESETS),asan tsan),$(call build_with_sanitizer,$(preset),sanitized_tests))
	@scripts/sanitize $(PRESETS)

peers-test: configured-with-tests  ## Install DeepSpeed, and compare losses and checkpoints with it (minutes)
	@scripts/setup --peers
	@cmake --build --preset release -j $(JOBS) --target tessera_cli tessera_python
	@scripts/run_tests --peers

clients: configured-with-tests  ## Run clients of DeepSpeed, as published, on Tessera and on DeepSpeed, into tests/clients/results.md, about an hour (ARGS="--only TRL")
	@scripts/setup --test --peers --clients
	@cmake --build --preset release -j $(JOBS) --target tessera_cli tessera_python
	@tests/clients/run $(ARGS)

wheel: configured-with-tests  ## Build the wheel for other machines, into dist/
	@cmake --build --preset release -j $(JOBS) --target tessera_cli tessera_python
	@scripts/wheel

peers:  ## Install what the benchmarks compare with (DeepSpeed) into .venv-peers; slow
	@scripts/setup --peers

format:  ## Format the sources in place
	@scripts/setup --test
	@scripts/check_format --fix

check:  ## Check the order of the rooms and the format
	@scripts/setup --test
	@scripts/check_layers
	@scripts/check_format

clean:  ## Remove the build (not .venv)
	@rm -rf build
