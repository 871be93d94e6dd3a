.PHONY: setup demo test lint bench-training
VENV := .venv/bin

setup:
	@scripts/setup.sh

demo: setup  ## the main job: corpus, two systems, table, runs/demo/report.json
	@$(VENV)/python scripts/demo.py

test: setup lint  ## every test, the slow ones too
	@$(VENV)/python -m pytest

lint: setup
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy

bench-training: setup  ## time and memory of training beside fairseq's transformer
	@$(VENV)/python scripts/bench_training.py
