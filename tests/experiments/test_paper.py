"""A row of the paper's main table."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from helpers import ROOT, run, small_tvsub, write_corpus

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.experiments import paper
from fairseq_lasformer.experiments.settings import RowOptions


@pytest.mark.command
def test_one_command_makes_a_row_of_the_main_table(tmp_path):
    """scripts/run.sh from local raw documents to scores; a second call does not train again."""
    raw = tmp_path / "data-bin" / "ted_en-de" / "raw"
    _finished(raw, "ted", ["en", "de"])
    sizes = [
        f"++model.{s}_{k}"
        for s in ("encoder", "decoder")
        for k in ("embed_dim=32", "ffn_embed_dim=32", "layers=2", "attention_heads=2")
    ]
    small = [
        *sizes,
        "++model.select_dim=8",
        "++model.moe_ffn_embed_dim=16",
        "checkpoint.save_interval_updates=2",
        "dataset.max_tokens=300",
        "optimization.update_freq=[1]",
    ]
    env = {"GPUS": "0", "MAX_UPDATE": "4", "BEAM": "2", "SIZE": "200", "WORKERS": "1"}

    def row(check: bool = True, **more: str) -> subprocess.CompletedProcess:
        command = [str(ROOT / "scripts" / "run.sh"), "ted_en-de", "lasformer_moe", *small]
        script = "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
        return run("python", "-c", script, tmp_path, *command, check=check, **(env | more))

    first = row()
    out = tmp_path / "runs" / "ted_en-de" / "lasformer_moe"
    assert "4 documents; d-BLEU" in first.stdout and "already done" not in first.stderr
    assert {"averaged.pt", "hypotheses", "scores.json", "train.log"} <= {p.name for p in out.iterdir()}
    stamp = (out / "checkpoint_last.pt").stat().st_mtime_ns
    again = row()
    assert (out / "checkpoint_last.pt").stat().st_mtime_ns == stamp
    assert again.stdout == first.stdout
    assert re.findall(r"(\w+) lasformer_moe: already done", again.stderr) == ["train", "average", "translate"]
    # stages with changed options are done again, with those that follow
    wider = row(AVERAGE="1", BEAM="1")
    assert re.findall(r"(\w+) lasformer_moe: already done", wider.stderr) == ["train"]
    refused = row(check=False, MAX_UPDATE="5")
    assert refused.returncode == 1 and "contains a run with other settings" in refused.stderr


@pytest.mark.command
@pytest.mark.parametrize("experiment", ["ted_en-de", "news_en-de", "europarl_en-de", "pdc_zh-en"])
def test_both_ways_to_prepare_a_corpus_agree(experiment, tmp_path, monkeypatch):
    """A row of the table takes up what scripts/prepare_*.sh has prepared."""

    class Prepared(Exception):
        pass

    def stop(**_):
        raise Prepared

    corpus, pair = experiment.split("_")
    _finished(tmp_path / "data-bin" / experiment / "raw", corpus, pair.split("-"))
    script = "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
    run("python", "-c", script, tmp_path, ROOT / "scripts" / f"prepare_{corpus}.sh", SIZE="200", WORKERS="1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paper, "Experiment", stop)
    with pytest.raises(Prepared):
        paper.run_row(experiment, "lasformer", RowOptions(size=200, workers=1))


@pytest.mark.parametrize("experiment", ["demo", "zh-en", "ted_de-en", "systems"])
def test_what_is_no_row_of_the_table_is_refused(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"^{experiment}: there is no row of that name in configs/"):
        paper.run_row(experiment, "lasformer", RowOptions())
    with pytest.raises(InputError, match="^lasformer_define: ted_en-de has lasformer, transformer, lasformer_fast, "):
        paper.run_row("ted_en-de", "lasformer_define", RowOptions())
    assert not list(tmp_path.iterdir())


def _finished(raw: Path, corpus: str, languages: list[str]) -> None:
    """Write a small corpus in place of a public one."""
    for split, n in (("train", 30), ("dev", 3), ("test", 4)):
        prefix = write_corpus(raw, split, n, seed=n)
        for own, language in zip(("xx", "yy"), languages):
            prefix.with_name(f"{split}.{own}").rename(prefix.with_name(f"{split}.{language}"))
    done = Progress(raw, key_of("corpus", corpus))
    done.begin()
    done.finish("build")


def test_the_help_is_a_corpus_of_its_own_name(tmp_path, monkeypatch):
    made = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paper, "build", lambda *args: made.append(args) or ["made"])
    monkeypatch.setattr(paper, "run_from_config", lambda config, only, tell: made.append((config, only)))
    assert paper.described("help_en-de") == ROOT / "examples/help.yaml"
    with pytest.raises(FileNotFoundError, match="scores.json"):  # nothing was trained
        paper.run_row("help_en-de", "lasformer", RowOptions(files=tmp_path))
    raw = Path("data-bin/help_en-de/raw")
    assert made == [
        ("libreoffice-help", tmp_path, raw, False, ("en", "de")),
        (ROOT / "examples/help.yaml", ("lasformer",)),
    ]


@pytest.mark.command
def test_one_command_makes_a_system_of_another_corpus(tmp_path, monkeypatch):
    """From compressed files to scores: the pipeline of examples/tvsub.yaml at a small size."""
    files = tmp_path / "files"
    example = small_tvsub(files)
    config = tmp_path / "tvsub.yaml"
    config.write_text(yaml.safe_dump(example, sort_keys=False))
    assert paper.described("tvsub_zh-en") == ROOT / "examples/tvsub.yaml" and paper.described("ted_en-de") is None
    monkeypatch.setattr(paper, "described", lambda experiment: config)
    monkeypatch.chdir(tmp_path)
    text, scores = paper.run_row("tvsub_zh-en", "sentences", RowOptions(files=files))
    assert "d-BLEU" in text and scores["documents"] == 4 and (tmp_path / "runs/tvsub_zh-en/trunk").is_dir()
    with pytest.raises(InputError, match="--only nothing: the systems are trunk, sentences, "):
        paper.run_row("tvsub_zh-en", "nothing", RowOptions(files=files))
    with pytest.raises(InputError, match="--max-update: tvsub_zh-en is described by tvsub.yaml"):
        paper.run_row("tvsub_zh-en", "lasformer", RowOptions(max_update=5))
    (files / "tvsub.test.zh.xz").write_bytes(b"damaged")
    monkeypatch.chdir(files)
    with pytest.raises(InputError, match=r"tvsub.test.zh.xz: damaged"):
        paper.run_row("tvsub_zh-en", "lasformer", RowOptions(files=files))
    (files / "tvsub.test.zh.xz").unlink()
    with pytest.raises(InputError, match="tvsub.test.zh: put it there"):
        paper.run_row("tvsub_zh-en", "lasformer", RowOptions(files=files))
