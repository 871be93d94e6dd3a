"""The time of a training: its own after a resume, not that of the training whose weights it starts from."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import log_lines, state, train


def seconds(folder) -> float:
    return state(folder)["extra_state"]["previous_training_time"]


@pytest.mark.command
def test_a_branch_does_not_count_its_trunks_time_and_a_resumed_training_does(prepared, tmp_path):
    trunk = tmp_path / "trunk/checkpoint_last.pt"
    train(prepared, trunk.parent, "--max-update", 2)
    saved = torch.load(trunk, weights_only=False)
    saved["extra_state"]["previous_training_time"] = 7200.0
    torch.save(saved, trunk)
    limit = ("--stop-time-hours", 1)
    done = train(prepared, tmp_path / "branch", "--finetune-from-model", trunk, *limit, "--max-update", 3)
    assert len(log_lines(done)) == 3 and 0 < seconds(tmp_path / "branch") < 1000
    restored = ("--restore-file", trunk, "--reset-meters", "--reset-optimizer", "--reset-dataloader")
    done = train(prepared, tmp_path / "restored", *restored, *limit, "--max-update", 3)
    assert len(log_lines(done)) == 3 and 0 < seconds(tmp_path / "restored") < 1000
    # the branch has a checkpoint now: its own time counts, whatever it started from
    own = tmp_path / "branch/checkpoint_last.pt"
    saved = torch.load(own, weights_only=False)
    saved["extra_state"]["previous_training_time"] = 7200.0
    torch.save(saved, own)
    done = train(prepared, tmp_path / "branch", "--finetune-from-model", trunk, *limit, "--max-update", 9)
    assert len(log_lines(done)) == 1 and seconds(tmp_path / "branch") > 7200


@pytest.mark.command
def test_kappa_is_held_after_the_warmup(prepared, tmp_path):
    words = ["--max-update", 4, "--sparsity-fixed", 0.05, "--sparsity-warmup", 2, "--disable-validation"]
    lines = log_lines(train(prepared, tmp_path, *words))
    assert [float(line["kappa"]) for line in lines] == [1.0, 1.0, 1.0, 0.05]
    for line in lines:  # a person reads them
        assert len(json.dumps(line)) <= 500 and {"mass", "recall", "selection_kl", "kappa_by_group"} <= line.keys()
        assert not [name for name in line if name.endswith(("_0", "_1"))]
    refused = train(prepared, tmp_path / "other", "--sparsity-fixed", 5, check=False)
    assert refused.returncode == 1 and "--sparsity-fixed 5.0: expected a share" in refused.stderr
