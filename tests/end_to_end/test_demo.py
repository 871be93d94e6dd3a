"""The whole demo, in miniature."""

from __future__ import annotations

import json
import subprocess

import pytest
from helpers import ROOT, run


def demo(*arguments: object, check: bool = True) -> subprocess.CompletedProcess:
    tiny = ["--documents", 14, "optimization.max_update=2", "lr_scheduler.total_num_update=2"]
    return run("python", ROOT / "examples/demo.py", *arguments, *tiny, "lr_scheduler.warmup_updates=1", check=check)


@pytest.mark.slow
def test_the_demo_replaces_nothing_unasked_and_nothing_of_others(tmp_path):
    out = tmp_path / "demo"
    (out / "hydra").mkdir(parents=True)  # as fairseq-hydra-train leaves it
    (out / "notes.txt").write_text("mine")
    demo("--out", out, "--systems", "sentence")
    other = ["--out", out, "--systems", "sentence", "optimization.clip_norm=2.0"]
    done = demo(*other, check=False)
    assert done.returncode == 1 and "--overwrite" in done.stderr and (out / "report.json").exists()
    demo(*other, "--overwrite")
    assert (out / "notes.txt").read_text() == "mine" and (out / "report.json").exists()


@pytest.mark.slow
def test_the_demo_in_miniature(tmp_path):
    command = ["python", ROOT / "examples/demo.py", "--out", tmp_path / "demo", "--documents", 40]
    command += ["optimization.max_update=25", "lr_scheduler.total_num_update=25", "lr_scheduler.warmup_updates=5"]
    done = run(*command)
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert set(report["systems"]) == {"sentence", "lasformer"}
    for system in report["systems"].values():
        assert system["documents"] == 4 and 0 <= system["d_bleu"] <= 100
        assert {"all"} <= set(system["accuracy"]) and system["by_distance"]
    assert report["systems"]["sentence"]["kappa"] == 1.0 and report["systems"]["lasformer"]["kappa"] < 1.0
    assert "d-BLEU" in done.stdout and "kappa, cross" in done.stdout and "seconds:" in done.stdout
    # a second run has nothing left to do and prints the same table
    again = run(*command)
    assert again.stdout.split("seconds:")[0] == done.stdout.split("seconds:")[0] and "already done" in again.stderr
    measured = tmp_path / "compact.json"
    done = run("python", "-m", "benchmarks", "compact", tmp_path / "demo", "--repeat", 1, "--out", measured)
    assert "lasformer" in done.stdout and "ms per step" in done.stdout
    rows = json.loads(measured.read_text())["rows"]
    figures = {(r["system"], r["metric"]): r["value"] for r in rows}
    assert figures["lasformer", "d-BLEU"] == report["systems"]["lasformer"]["d_bleu"]
    assert all(r["value"] > 0 for r in rows if r["compared"]) and len(figures) == 12
    cost = run(
        "lasformer",
        "cost",
        tmp_path / "demo/lasformer/checkpoint_last.pt",
        "--lengths",
        "512,1024",
        "--json",
        tmp_path / "cost.json",
    )
    assert "all" in cost.stdout
    rows = json.loads((tmp_path / "cost.json").read_text())["rows"]
    assert {r["module"] for r in rows} == {"encoder", "decoder", "cross", "all", "model"} and all(
        0 < r["ratio"] <= 1.2 for r in rows
    )
    scored = run(
        "scripts/score.sh",
        tmp_path / "demo/raw/test.de",
        tmp_path / "demo/sentence.de",
        tmp_path / "demo/lasformer.de",
        "--json",
        tmp_path / "s.json",
    )
    assert "lasformer" in scored.stdout
    assert (
        json.loads((tmp_path / "s.json").read_text())["systems"]["lasformer"]["d_bleu"]
        == report["systems"]["lasformer"]["d_bleu"]
    )
