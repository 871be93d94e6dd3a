.PHONY: setup demo test test-fast test-arm wheel lint docs kernels gpu lock fuzz sanitize bench-training bench-encoder bench-decode bench-moe
VENV := .venv/bin

setup:
	@scripts/setup.sh

demo: setup  ## the main job: corpus, two systems, table, runs/demo/report.json
	@$(VENV)/python examples/demo.py $(ARGS)

test: setup lint docs  ## every test, including the slow ones
	@$(VENV)/python -m pytest -n auto --maxprocesses=4 --dist=worksteal

test-fast: setup  ## tests of single functions and small models
	@$(VENV)/python -m pytest -n auto --maxprocesses=4 --dist=worksteal -m "not slow"

test-arm: setup  ## the CPU kernels' arithmetic for aarch64, in an emulator
	@scripts/test_arm.sh

wheel: setup  ## wheels in dist/ that install without a compiler
	@scripts/wheel.sh

docs: setup  ## the documentation site, in site/
	@$(VENV)/python scripts/api_page.py
	@NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build --quiet

lint: setup
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy

lock: setup  ## regenerate constraints.txt: versions and hashes of everything that setup installs
	@scripts/lock.sh $(ARGS)

fuzz: setup  ## formats, loaders and the server with hostile input, for ten minutes
	@$(VENV)/python -m benchmarks.fuzz $(ARGS)

sanitize: setup  ## the CPU kernels' tests with the address and undefined-behaviour sanitizers
	@scripts/sanitize.sh $(ARGS)

kernels: setup  ## compile every Triton kernel for real GPUs, without one
	@$(VENV)/python -m benchmarks.compile_kernels $(ARGS)

gpu: setup  ## on a machine with a GPU: check every kernel, run the benchmarks, write runs/gpu/gpu.json
	@scripts/gpu.sh

BENCHES := bench-training bench-encoder bench-decode bench-moe

bench-training: NAME = training
bench-encoder: NAME = prefill
bench-decode: NAME = decoding
bench-moe: NAME = moe
$(BENCHES): setup  ## see benchmarks/; ARGS passes options
	@$(VENV)/python -m benchmarks $(NAME) $(ARGS)
