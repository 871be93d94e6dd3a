"""Every benchmark in miniature: rows of the one format, a table with ratios to the baselines."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree

import pytest
import torch
from helpers import run, skip_unless_here

from benchmarks import instructions
from benchmarks.kept import DISTANCES, FARTHER
from benchmarks.kept import WORDS as WORDS_KEPT
from fairseq_lasformer import ops
from fairseq_lasformer.ops import AttentionMask

LINES_KEPT = (*DISTANCES, FARTHER)
CASES = {
    "training": (
        "--lengths 16 --kappas 0.5 --repeat 1",
        {"seconds", "ratio_to_dense", "peak GiB"},
        "/transformer",
    ),
    "prefill": ("--lengths 32 --kappas 0.5 --repeat 1", {"seconds"}, "/dense"),
    "decoding": (
        "--lengths 32 --steps 2 --repeat 1 --sentences 2 --end-to-end 16 "
        "--systems transformer,lasformer_dense,lasformer_int8,lasformer_distinct",
        {"tokens_per_second", "peak MiB"},
        "/transformer",
    ),
    "competitors": ("--length 12 --keys 4 --steps 2 --repeat 1", {"steps/s", "cost, %"}, "/Transformer"),
    "lookups": ("--pairs 300 --look-ups 20", {"seconds", "file MiB", "look-ups/s", "found, %", "peak MiB"}, "found, %"),
    "kernels": ("--repeat 1 --cases candidates", {"G/s", "GB/s", "microseconds"}, "microseconds"),
    "moe": ("--repeat 1 --tokens 64", {"ms", "importance_cv", "load_cv", "load_max_over_mean"}, "/dense"),
}


@pytest.mark.command
def test_the_alignment_benchmark_compares_searches(by_lines_folder, prepared, tmp_path):
    raw = prepared.parent / "raw"
    (tmp_path / "terms").write_text("w1\tW17 W9\n")
    options = ["--source", raw / "test.xx", "--reference", raw / "test.yy", "--glossary", tmp_path / "terms"]
    checkpoint = by_lines_folder / "checkpoint_last.pt"
    done = run("python", "-m", "benchmarks", "alignment", checkpoint, *options, "--out", tmp_path / "rows.json")
    rows = {(r["system"], r["metric"]): r["value"] for r in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    assert all(rows[way, "lines right, %"] == 100 for way in ("aligned", "glossary"))
    assert rows["glossary", "terms, %"] == 100 > rows["aligned", "terms, %"]
    assert rows["aligned", "first line, s"] > 0 and "/free" in done.stdout.splitlines()[0]
    longer = ["--ways", "free,aligned", "--join", 60, "--limit", 40, "--overlap", 1, *options[:4]]
    done = run("python", "-m", "benchmarks", "alignment", checkpoint, *longer, "--out", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {row["system"] for row in rows} == {"free", "aligned"} and "lines right, %" in done.stdout


@pytest.mark.command
def test_kept_keys_are_counted_by_kind(trained_folder, tmp_path):
    checkpoint, out = trained_folder / "checkpoint_last.pt", tmp_path / "rows.json"
    run("python", "-m", "benchmarks", "kept", checkpoint, "--longer", 10, "--documents", 4, "--out", out)
    rows = json.loads(out.read_text())["rows"]
    kept = {(r["case"], r["system"]): r["value"] for r in rows}
    share = {(r["case"], r["system"]): float(r["of all keys"].rstrip("%")) / 100 for r in rows}
    for module in ("encoder", "decoder", "cross"):
        assert 0 < kept[module, "all keys"] <= 100
        for kinds in (LINES_KEPT, WORDS_KEPT):
            there = [(module, kind) for kind in kinds if (module, kind) in kept]
            assert len(there) > 1 and sum(share[key] for key in there) == pytest.approx(1, abs=0.005)
            mean = sum(kept[key] * share[key] for key in there)
            assert mean == pytest.approx(kept[module, "all keys"], rel=0.02)


@pytest.mark.command
def test_quality_is_measured_and_drawn_by_kappa(trained_folder, prepared, tmp_path):
    raw, picture = prepared.parent / "raw", tmp_path / "kappa.svg"
    args = [trained_folder / "checkpoint_last.pt", prepared, raw / "valid.yy", "--shares", "0.05,1"]
    args += ["--folder", tmp_path / "texts", "--picture", picture, "--out", tmp_path / "rows.json"]
    for _ in range(2):  # the second time, from the translations of the first
        run("python", "-m", "benchmarks", "kappa", *args)
        rows = {
            (r["system"], r["metric"]): r["value"] for r in json.loads((tmp_path / "rows.json").read_text())["rows"]
        }
        assert {system for system, _ in rows} == {"trained", "0.05", "1"} and rows["1", "d_bleu"] > 0
    svg = ElementTree.fromstring(picture.read_text())
    written = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert f"{rows['0.05', 'd_bleu']:.2f}" in written and {"5%", "100%"} <= set(written)
    assert {path.name for path in (tmp_path / "texts").glob("valid.*")} == {"valid.trained", "valid.0.05", "valid.1"}


@pytest.mark.command
def test_forms_of_selectors_are_compared_on_a_frozen_model(trained_folder, tmp_path):
    options = ["--longer", 10, "--documents", 8, "--tested", 4, "--updates", 150, "--seeds", 2]
    checkpoint = trained_folder / "checkpoint_last.pt"
    run("python", "-m", "benchmarks", "selectors", checkpoint, *options, "--out", tmp_path / "rows.json")
    rows = {(r["case"], r["system"]): r["value"] for r in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    forms = {system for _, system in rows}
    assert len(rows) == 3 * 4 * 5 and len(forms) == 5 and all(0 < r <= 100.001 for r in rows.values())
    assert all(rows["cross, kappa 0.2", form] >= rows["cross, kappa 0.02", form] for form in forms)


@pytest.mark.command
def test_tiles_of_queries_keep_more_keys_together_than_one(trained_folder, tmp_path):
    checkpoint, options = trained_folder / "checkpoint_last.pt", ["--documents", 2, "--tokens", 60]
    run("python", "-m", "benchmarks", "unions", checkpoint, *options, "--out", tmp_path / "rows.json")
    rows = {(r["system"], r["metric"]): r["value"] for r in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    for module in ("encoder", "decoder", "cross"):
        shares = [rows[f"{module}.0", f"{n} queries, %"] for n in (1, 8, 16, 32)]
        assert 0 < shares[0] < shares[1] and max(shares) <= 100.001
        if module != "decoder":  # there, later queries of a tile may also see more keys
            assert shares[1] <= shares[2] <= shares[3]
    done = run("python", "-m", "benchmarks", "unions", checkpoint, "--tokens", 10**6, check=False)
    assert done.returncode == 1 and "fewer than 3 x 1000000 tokens" in done.stderr


@pytest.mark.command
def test_the_script_for_a_gpu_runs_without_one_and_survives_a_section_that_fails(tmp_path):
    env = {"DEVICE": "cpu", "QUICK": "1", "OUT": str(tmp_path), "PYTHON": sys.executable, "SECONDS_LEFT": "3000"}
    done = run("scripts/gpu.sh", SECTIONS="facts,nothing,correct,decoding", check=False, **env)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert done.returncode == 1 and "failed: nothing" in done.stdout and "KeyError" in found["nothing"]["error"]
    errors = {(row["case"], row["system"]): row["value"] for row in found["correct"]["rows"]}
    assert errors["float16, 40 x 40, causal", "dk"] < 0.01 and errors["float32, 40 x 40", "bits"] == 0
    assert {row["system"] for row in found["decoding"]["rows"]} == {"transformer", "lasformer"}
    assert "not measured  5 rows: tokens/s" in done.stdout.split("== bars")[1]
    assert "/transformer" in done.stdout and found["facts"]["machine"]["gpu"] is None


def test_bars_pass_or_are_missed_or_were_not_measured():
    from benchmarks.bars import Bar, judged

    bars = [
        Bar("speed", "decoding", "T=8", "ours", "tokens/s", 40_000, True),
        Bar("8 bits", "decoding", "T=8", "eight", "tokens/s", 1.0, True, "ours"),
        Bar("time", "kernels", "T=8", "attend", "ms", 0.028),
        Bar("a peer", "kernels", "T=8", "attend", "ms", 1.0, False, "theirs"),
    ]
    found = {
        "decoding": [("ours", "tokens/s", 40_000), ("eight", "tokens/s", 39_000), ("eight", "MiB", 1)],
        "kernels": [("attend", "ms", 0.03), ("theirs", "ms", 0.0)],
    }
    results = {
        section: {"rows": [{"case": "T=8", "system": s, "metric": m, "value": v} for s, m, v in rows]}
        for section, rows in found.items()
    }
    assert [line.split("  ")[0] for line in judged(results, bars)] == ["pass", "miss", "miss", "not measured"]
    assert judged(results, bars)[1] == "miss  8 bits: 0.975, at least 1"
    assert judged({"kernels": {"error": "x"}}, bars[2:3]) == ["not measured  time: at most 0.028"]


@pytest.mark.command
def test_the_peer_of_a_full_pass_attends_to_the_same_keys():
    skip_unless_here("triton")
    from benchmarks.gpu import Place, flexible, kernels

    q, kept = torch.randn(1, 2, 64, 16), torch.rand(1, 64, 64) < 0.2
    kept |= torch.eye(64, dtype=torch.bool)
    theirs = ops.reference.selected_attention(q, q, q, kept, AttentionMask(None, False))
    torch.testing.assert_close(flexible(q, kept)(), theirs, rtol=1e-4, atol=1e-5)
    rows = {(row.case, row.system) for row in kernels(Place(torch.device("cpu"), torch.float32), True)}
    assert {system for case, system in rows if case == "full pass, T=64"} > {"tiles", "flex_attention, the same keys"}


@pytest.mark.command
def test_without_a_gpu_cuda_is_refused():
    done = run("python", "-m", "benchmarks", "prefill", "--device", "cuda", check=False)
    assert done.returncode == 1 and "error: --device cuda: no GPU" in done.stderr


@pytest.mark.command
@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_prints_its_table_and_writes_its_rows(tmp_path, name):
    options, metrics, ratio = CASES[name]
    done = run("python", "-m", "benchmarks", name, "--out", tmp_path / "rows.json", *options.split())
    report = json.loads((tmp_path / "rows.json").read_text())
    about = {"cpu", "instructions", "cores", "memory", "threads", "gpu", "python", "torch"}
    assert report["benchmark"] == name and about == report["machine"].keys()
    assert {row["metric"] for row in report["rows"]} == metrics
    more = {"dtype", "work", "ratio_to_fairseq"} if name == "decoding" else set()
    always = {"case", "system", "metric", "value", "compared"}
    assert all(
        row.keys() == always | (more if row["compared"] else more - {"ratio_to_fairseq"}) for row in report["rows"]
    )
    assert ratio in done.stdout.splitlines()[0] and all(row["system"] in done.stdout for row in report["rows"])


@pytest.mark.command
def test_an_interrupted_benchmark_goes_on_where_it_stopped(tmp_path):
    out = tmp_path / "rows.json"
    command = ["python", "-m", "benchmarks", "kernels", "--cases", "candidates", "--out", out]
    run(*command, "--repeat", "1")
    whole = json.loads(out.read_text())
    assert len(whole["rows"]) >= 5
    marked = whole | {"rows": [row | {"value": -1.0} for row in whole["rows"][:-2]]}
    out.write_text(json.dumps(marked))
    run(*command, "--repeat", "1", "--resume")
    rows = json.loads(out.read_text())["rows"]
    names = [(row["case"], row["system"], row["metric"]) for row in rows]
    assert sorted(names) == sorted((row["case"], row["system"], row["metric"]) for row in whole["rows"])
    assert rows[-1]["value"] > 0  # measured again
    refused = run(*command, "--repeat", "2", "--resume", check=False)
    assert refused.returncode == 1 and "differs in options; leave out --resume" in refused.stderr
    out.write_text(json.dumps({"rows": 1}))
    refused = run(*command, "--resume", check=False)
    assert refused.returncode == 1 and "not the rows of a benchmark" in refused.stderr
    assert json.loads(out.read_text()) == {"rows": 1}


def test_all_systems_of_a_benchmark_use_the_same_instructions(monkeypatch):
    begun = []
    monkeypatch.setattr(instructions.os, "execve", lambda *call: begun.append(call))
    for name in instructions.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    instructions.restrict("avx2")
    ((program, command, environment),) = begun
    assert program == sys.executable and command[1:] == sys.orig_argv[1:]
    for name in ("LASFORMER_ISA", "ATEN_CPU_CAPABILITY"):
        assert environment[name] == "avx2"
    for name in ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "CT2_FORCE_CPU_ISA"):
        assert environment[name] == "AVX2"
    for name in instructions.VARIABLES:
        monkeypatch.setenv(name, environment[name])
    instructions.restrict("avx2")
    assert len(begun) == 1  # not again and again
