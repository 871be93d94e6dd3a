"""scripts/train.sh."""

from __future__ import annotations

import re

import pytest
from helpers import SIZES, run


@pytest.mark.slow
def test_training_shows_its_first_updates_and_saves_them(prepared, tmp_path):
    settings = {"MAX_TOKENS": "200", "UPDATE_FREQ": "1", "MAX_UPDATE": "9", "SAVE_EVERY": "3", "LOG_EVERY": "2"}
    done = run("scripts/train.sh", prepared, tmp_path, *SIZES, "--select-dim", 8, **settings)
    assert len(re.findall(r"\| train_inner \| ", done.stdout)) == 4
    assert "train_inner" in (tmp_path / "train.log").read_text()
    assert [p.name for p in sorted(tmp_path.glob("checkpoint_*"))] == [
        "checkpoint_1_9.pt",
        "checkpoint_best.pt",
        "checkpoint_last.pt",
    ]
    again = run("scripts/train.sh", prepared, tmp_path, *SIZES, "--select-dim", 8, **settings)
    assert "training has finished: 9 of 9" in again.stdout


@pytest.mark.slow
def test_half_precision_without_a_gpu_is_one_line(prepared, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("scripts/train.sh", prepared, tmp_path, *SIZES, "--fp16", MAX_TOKENS="200", check=False)
    last = (done.stdout + done.stderr).strip().splitlines()[-1]
    assert done.returncode != 0 and last.startswith("error: there is no GPU here") and "--cpu" in last
