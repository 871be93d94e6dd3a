"""The demo and what is in its folder already; test_readme runs it as a newcomer does."""

from __future__ import annotations

import subprocess

import pytest
from helpers import ROOT, run


def demo(*arguments: object, check: bool = True) -> subprocess.CompletedProcess:
    tiny = ["--documents", 14, "optimization.max_update=2", "lr_scheduler.total_num_update=2"]
    return run("python", ROOT / "examples/demo.py", *arguments, *tiny, "lr_scheduler.warmup_updates=1", check=check)


@pytest.mark.command
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
    done = demo("--out", tmp_path / "no", "--systems", "sentence,dence", check=False)
    assert done.stderr.splitlines()[-1].startswith(
        "error: --systems sentence,dence: no system dence; there are lasformer, "
    )
    assert not (tmp_path / "no").exists()
