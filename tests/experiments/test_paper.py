"""A row of the paper's main table."""

from __future__ import annotations

import re
import subprocess

import pytest
from helpers import ROOT, run, write_corpus

from fairseq_lasformer.resume import Progress, key_of


@pytest.mark.slow
def test_one_command_makes_a_row_of_the_main_table(tmp_path):
    """scripts/run.sh from raw documents that are there to scores; a second call trains no more."""
    raw = tmp_path / "data-bin" / "ted_en-de" / "raw"
    for split, n in (("train", 30), ("dev", 3), ("test", 4)):
        prefix = write_corpus(raw, split, n, seed=n)
        for own, language in (("xx", "en"), ("yy", "de")):
            prefix.with_name(f"{split}.{own}").rename(prefix.with_name(f"{split}.{language}"))
    done = Progress(raw, key_of("corpus", "ted"))
    done.begin()
    done.finish("build")
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
    # what is asked for otherwise is done again, and what follows it
    wider = row(AVERAGE="1", BEAM="1")
    assert re.findall(r"(\w+) lasformer_moe: already done", wider.stderr) == ["train"]
    refused = row(check=False, MAX_UPDATE="5")
    assert refused.returncode == 1 and "contains a run with other settings" in refused.stderr
