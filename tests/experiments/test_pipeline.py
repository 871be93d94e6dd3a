"""Averaging in the pipeline: the newest checkpoints, each once."""

from __future__ import annotations

import shutil

import torch
from helpers import save_model

from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.experiments.pipeline import ConfiguredTraining, Experiment


def test_the_last_checkpoint_counts_once_also_where_it_has_two_names(tmp_path, build):
    for name, shift in (("checkpoint_1_9.pt", 50.0), ("checkpoint_1_10.pt", 0.0), ("checkpoint_2_20.pt", 2.0)):
        save_model(tmp_path / name, build, 0.5, shift)
    shutil.copy2(tmp_path / "checkpoint_2_20.pt", tmp_path / "checkpoint_last.pt")
    experiment = Experiment("x", ConfiguredTraining(tmp_path / "x.yaml"), tmp_path, tmp_path, averaged=2)
    experiment._average()
    name = "decoder.embed_tokens.weight"
    first, last, mean = (
        load(tmp_path / n)["model"][name] for n in ("checkpoint_1_10.pt", "checkpoint_last.pt", "averaged.pt")
    )
    torch.testing.assert_close(mean, (first + last) / 2)
