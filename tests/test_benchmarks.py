"""Every benchmark in miniature: rows of the one format, a table with ratios to the baselines."""

from __future__ import annotations

import json

import pytest
from helpers import run

CASES = {
    "training": ("--lengths 16 --kappas 0.5 --repeat 1", {"seconds", "peak GiB"}, "/transformer"),
    "prefill": ("--lengths 32 --kappas 0.5 --repeat 1", {"seconds"}, "/dense"),
    "decoding": (
        "--lengths 32 --steps 2 --repeat 1 --end-to-end 16 --systems lasformer_dense,lasformer_distinct",
        {"steps/s", "peak MiB", "seconds"},
        "system",
    ),
    "moe": ("--repeat 1 --tokens 64", {"ms", "importance_cv", "load_cv", "load_max_over_mean"}, "/dense"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_prints_its_table_and_writes_its_rows(tmp_path, name):
    options, metrics, ratio = CASES[name]
    done = run("python", "-m", "benchmarks", name, "--out", tmp_path / "rows.json", *options.split())
    report = json.loads((tmp_path / "rows.json").read_text())
    assert report["benchmark"] == name and {"cpu", "cores", "threads", "gpu", "torch"} == report["machine"].keys()
    assert {row["metric"] for row in report["rows"]} == metrics
    assert all(row.keys() == {"case", "system", "metric", "value", "compared"} for row in report["rows"])
    assert ratio in done.stdout.splitlines()[0] and all(row["system"] in done.stdout for row in report["rows"])
