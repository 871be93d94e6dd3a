"""torchrun: a worker that is killed is restarted with the others, and the training ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import MODEL, ROOT, state

pytestmark = pytest.mark.command


def start(data: Path, save: Path) -> subprocess.Popen:
    words = [
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
        str(Path(sys.executable).with_name("fairseq-train")),
    ]
    words += [str(data), "--user-dir", str(ROOT / "fairseq_lasformer"), "--task", "document_translation", "--cpu"]
    words += ["--ddp-backend", "legacy_ddp", "--optimizer", "adam", "--lr", "0.002"]
    words += ["--criterion", "label_smoothed_cross_entropy_with_selection", "--clip-norm", "1.0", "--seed", "1"]
    words += ["--save-dir", str(save), "--max-tokens", "200", "--share-all-embeddings", "--disable-validation"]
    words += ["--sparsity-threshold", "0.97", "--save-interval-updates", "4", "--max-update", "14", *map(str, MODEL)]
    words += ["--no-epoch-checkpoints", "--keep-interval-updates", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [str(Path(sys.executable).with_name("torchrun")), *words]
    with open(save.with_suffix(".log"), "w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def workers(of: subprocess.Popen) -> list[int]:
    texts = [path.read_text() for path in Path(f"/proc/{of.pid}/task").glob("*/children")]
    return sorted(int(pid) for pid in " ".join(texts).split())


def test_a_killed_worker_changes_nothing(prepared, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = start(prepared, whole)
    assert undisturbed.wait(300) == 0, whole.with_suffix(".log").read_text()[-2000:]
    process = start(prepared, killed)
    deadline = time.monotonic() + 200
    while not (killed / "checkpoint_last.pt").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    victim = workers(process)[-1]
    os.kill(victim, signal.SIGKILL)
    log = killed.with_suffix(".log")
    assert "training on 2 devices" in log.read_text()  # together, not separately
    assert process.wait(300) == 0, log.read_text()[-2000:]
    assert "Loaded checkpoint" in log.read_text() and str(victim) in log.read_text()
    one, two = state(whole), state(killed)
    assert one["optimizer_history"][-1]["num_updates"] == two["optimizer_history"][-1]["num_updates"] == 14
    assert one["model"].keys() == two["model"].keys()
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
