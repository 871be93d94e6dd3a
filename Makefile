.DEFAULT_GOAL := help
.PHONY: help setup demo test test-commands test-sweeps test-all test-arm wheel lint docs kernels gpu lock fuzz sanitize bench-training bench-encoder bench-decode bench-moe
VENV := .venv/bin
PYTEST := $(VENV)/python -m pytest -n auto --maxprocesses=4 --dist=worksteal
# what the tests take, unless ARGS choose some: scripts/durations.py
DURATIONS = $(if $(ARGS),,--durations-json=runs/durations/$(1).json)

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## the environment in .venv (every target below does it first)
	@scripts/setup.sh

demo: setup  ## the main job: corpus, two systems, table, runs/demo/report.json
	@$(VENV)/python examples/demo.py $(ARGS)

test: setup lint  ## lint, and the tests of functions and small models: six minutes on two cores
	@$(PYTEST) $(call DURATIONS,unit) $(ARGS)

test-commands: setup  ## whole commands, trainings, resume and kill, the documentation's blocks, the server, the browser
	@$(PYTEST) -m command $(call DURATIONS,command) $(ARGS)

# what torch 2.11 brings, whose compiler finds other faults than that of torch 2.13; without network, tests skip it
OLDER_TRITON := .venv/triton-3.6
$(OLDER_TRITON):
	@$(VENV)/python -m pip install --quiet --no-deps --target $@.part triton==3.6.0 && mv $@.part $@ || rm -rf $@.part

test-sweeps: setup $(OLDER_TRITON)  ## Triton's interpreter, all instruction sets, more arguments, builds, and aarch64 in an emulator
	@$(PYTEST) -m sweep $(call DURATIONS,sweep) $(ARGS)
	@scripts/test_arm.sh --if-possible

test-all: test docs $(OLDER_TRITON)  ## everything, two minutes of hostile input included: the tiers in one run, which packs them better
	@$(PYTEST) -m "command or sweep" $(call DURATIONS,others) $(if $(SWEEP_MINUTES),--sweep-minutes $(SWEEP_MINUTES))
	@scripts/test_arm.sh --if-possible
	@$(VENV)/python -m benchmarks.fuzz --seconds 120

test-arm: setup  ## the CPU kernels' arithmetic for aarch64, in an emulator
	@scripts/test_arm.sh

wheel: setup  ## wheels in dist/ that install without a compiler
	@scripts/wheel.sh

docs: setup  ## the documentation site, in site/
	@$(VENV)/python scripts/api_page.py
	@NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build --quiet

lint: setup  ## style, types, imports between rooms, links of the pages: under a minute
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy
	@$(VENV)/python -m pytest tests/test_imports.py tests/test_docs.py --durations=0 -p no:xdist

lock: setup  ## regenerate constraints.txt: versions and hashes of everything that setup installs
	@scripts/lock.sh $(ARGS)

fuzz: setup  ## formats, loaders and the server with hostile input, for ten minutes
	@$(VENV)/python -m benchmarks.fuzz $(ARGS)
	@$(VENV)/python -m benchmarks.fuzz_server

sanitize: setup  ## the CPU kernels' tests with the address and undefined-behaviour sanitizers
	@scripts/sanitize.sh $(ARGS)

kernels: setup $(OLDER_TRITON)  ## compile every Triton kernel for real GPUs, without one, by two versions of Triton
	@$(VENV)/python -m benchmarks.compile_kernels $(ARGS)
	@PYTHONPATH=$(OLDER_TRITON) $(VENV)/python -m benchmarks.compile_kernels $(ARGS)

gpu: setup  ## on a machine with a GPU: check every kernel, run the benchmarks, write runs/gpu/gpu.json
	@scripts/gpu.sh

BENCHES := bench-training bench-encoder bench-decode bench-moe

bench-training: NAME = training
bench-encoder: NAME = prefill
bench-decode: NAME = decoding
bench-moe: NAME = moe
$(BENCHES): setup  ## see benchmarks/; ARGS passes options
	@$(VENV)/python -m benchmarks $(NAME) $(ARGS)
