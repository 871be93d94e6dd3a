"""Every benchmark in miniature: rows of the one format, a table with ratios to the baselines."""

from __future__ import annotations

import json

import pytest
from helpers import run

CASES = {
    "training": ("--lengths 16 --kappas 0.5 --repeat 1", {"seconds", "ratio_to_dense", "peak GiB"}, "/transformer"),
    "prefill": ("--lengths 32 --kappas 0.5 --repeat 1", {"seconds"}, "/dense"),
    "decoding": (
        "--lengths 32 --steps 2 --repeat 1 --end-to-end 16 --systems lasformer_dense,lasformer_distinct",
        {"steps/s", "peak MiB", "seconds"},
        "system",
    ),
    "moe": ("--repeat 1 --tokens 64", {"ms", "importance_cv", "load_cv", "load_max_over_mean"}, "/dense"),
}


@pytest.mark.slow
def test_the_alignment_benchmark_compares_searches(trained_folder, prepared, tmp_path):
    raw = prepared.parent / "raw"
    (tmp_path / "terms").write_text("w1\tW1\n")
    options = ["--source", raw / "test.xx", "--reference", raw / "test.yy", "--glossary", tmp_path / "terms"]
    checkpoint = trained_folder / "checkpoint_last.pt"
    done = run("python", "-m", "benchmarks", "alignment", checkpoint, *options, "--out", tmp_path / "rows.json")
    rows = {(r["system"], r["metric"]): r["value"] for r in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    assert all(rows[way, "lines right, %"] == 100 for way in ("aligned", "placed", "glossary"))
    assert rows["glossary", "terms, %"] == 100 > rows["aligned", "terms, %"]
    assert rows["placed", "first line, s"] > 0 and "/free" in done.stdout.splitlines()[0]
    longer = ["--ways", "free,placed", "--join", 60, "--limit", 40, "--overlap", 1, *options[:4]]
    done = run("python", "-m", "benchmarks", "alignment", checkpoint, *longer, "--out", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {row["system"] for row in rows} == {"free", "placed"} and "lines right, %" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_prints_its_table_and_writes_its_rows(tmp_path, name):
    options, metrics, ratio = CASES[name]
    done = run("python", "-m", "benchmarks", name, "--out", tmp_path / "rows.json", *options.split())
    report = json.loads((tmp_path / "rows.json").read_text())
    about = {"cpu", "cores", "memory", "threads", "gpu", "python", "torch"}
    assert report["benchmark"] == name and about == report["machine"].keys()
    assert {row["metric"] for row in report["rows"]} == metrics
    assert all(row.keys() == {"case", "system", "metric", "value", "compared"} for row in report["rows"])
    assert ratio in done.stdout.splitlines()[0] and all(row["system"] in done.stdout for row in report["rows"])
