"""The whole chain on a miniature corpus, and the command line's refusals."""

from __future__ import annotations

import json

import pytest
from conftest import ROOT, run


@pytest.mark.slow
def test_the_demo_in_miniature(tmp_path):
    command = ["python", ROOT / "scripts/demo.py", "--out", tmp_path / "demo", "--documents", 40]
    command += ["--systems", "sentence,lasformer,lasformer_delight"]
    command += ["optimization.max_update=25", "lr_scheduler.total_num_update=25", "lr_scheduler.warmup_updates=5"]
    done = run(*command)
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert set(report["systems"]) == {"sentence", "lasformer", "lasformer_delight"}
    for system in report["systems"].values():
        assert system["documents"] == 4 and 0 <= system["d_bleu"] <= 100
        assert {"all"} <= set(system["accuracy"]) and system["by_distance"]
    assert report["systems"]["sentence"]["kappa"] == 1.0 and report["systems"]["lasformer"]["kappa"] < 1.0
    assert "d-BLEU" in done.stdout and "kappa, cross" in done.stdout and "seconds:" in done.stdout
    # a second run has nothing left to do and prints the same table
    again = run(*command)
    assert again.stdout.split("seconds:")[0] == done.stdout.split("seconds:")[0] and "done before" in again.stderr
    measured = tmp_path / "compact.json"
    done = run("python", ROOT / "scripts/bench_compact.py", tmp_path / "demo", "--repeat", 1, "--out", measured)
    assert "`lasformer_delight`" in done.stdout
    rows = {r["system"]: r for r in json.loads(measured.read_text())["rows"]}
    assert rows["lasformer_delight"]["d_bleu"] == report["systems"]["lasformer_delight"]["d_bleu"]
    assert all(r["seconds"] > 0 and r["parameters"] > 0 and r["gmac"] > 0 for r in rows.values())
    assert rows["sentence"]["gmac"] == rows["sentence"]["gmac_dense"]
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


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["score", "none.de", "h"], "none.de: cannot be read"),
        (["cost", "none.pt"], "none.pt: no such checkpoint"),
        (["cost", "none.pt", "--lengths", "a,b"], "--lengths a,b"),
        (["average", "o", "none.pt"], "none.pt: no such checkpoint"),
        (["generate", "nowhere", "none.pt", "o"], "was not prepared"),
        (["prepare", "o", "-s", "a", "-t", "b"], "nothing to prepare"),
    ],
)
def test_bad_arguments_end_in_one_line(arguments, message, capsys):
    from fairseq_lasformer.cli import main

    assert main(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert message in error and error.startswith("error: ") and "\n" not in error


def test_missing_hypotheses_are_named(tmp_path, capsys):
    from fairseq_lasformer.cli import main

    (tmp_path / "ref").write_text("a b\n\nc d\n\ne f\n")
    (tmp_path / "hyp").write_text("a b\n")
    assert main(["score", str(tmp_path / "ref"), str(tmp_path / "hyp")]) == 1
    assert "no hypothesis for document(s) 2 to 3" in capsys.readouterr().err
