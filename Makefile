.PHONY: setup demo test lint bench-training bench-encoder bench-decode bench-moe
VENV := .venv/bin

setup:
	@scripts/setup.sh

demo: setup  ## the main job: corpus, two systems, table, runs/demo/report.json
	@$(VENV)/python scripts/demo.py $(ARGS)

test: setup lint  ## every test, the slow ones too
	@$(VENV)/python -m pytest -n auto --maxprocesses=4 --dist=worksteal

lint: setup
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy

bench-training: setup  ## time and memory of training beside fairseq's transformer
	@$(VENV)/python scripts/bench_training.py

bench-encoder: setup  ## where the encoder gains from reading kept keys alone
	@$(VENV)/python scripts/bench_encoder.py

bench-decode: setup  ## decoding beside fairseq's transformer and CTranslate2
	@$(VENV)/python -m pip install --quiet -e '.[bench]' --no-build-isolation
	@$(VENV)/python scripts/bench_decode.py

bench-moe: setup  ## mixtures of experts beside a dense network, and how evenly their experts are used
	@$(VENV)/python scripts/bench_moe.py
