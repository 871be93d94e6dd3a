"""Folders of any name, and mistakes in Hydra's overrides."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.experiments.training import follow


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_every_path_passes_through_hydras_grammar(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from fairseq_lasformer.experiments.training import override

    parsed = OverridesParser.create().parse_override(override("task.data", value)).value()
    assert OmegaConf.create({"x": str(parsed)}).x == value


def hydra_config(folder: Path, data: Path, save: Path) -> Path:
    (folder / "run.yaml").write_text(
        f"""
common: {{user_dir: {ROOT / "fairseq_lasformer"}, cpu: true, log_format: json, log_interval: 1, seed: 1}}
task: {{_name: document_translation, data: {json.dumps(str(data))}}}
model: {{_name: lasformer, share_all_embeddings: true, select_share: 2, select_dim: 8,
  encoder_embed_dim: 32, encoder_ffn_embed_dim: 32, encoder_layers: 2, encoder_attention_heads: 2,
  decoder_embed_dim: 32, decoder_ffn_embed_dim: 32, decoder_layers: 2, decoder_attention_heads: 2}}
criterion: {{_name: label_smoothed_cross_entropy_with_selection}}
dataset: {{max_tokens: 200, disable_validation: true}}
optimization: {{max_update: 2, lr: [0.002], clip_norm: 1.0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
checkpoint: {{save_dir: {json.dumps(str(save))}, no_epoch_checkpoints: true}}
hydra: {{run: {{dir: {json.dumps(str(folder / "hydra"))}}}}}
"""
    )
    return folder / "run.yaml"


@pytest.mark.command
def test_training_works_in_a_folder_of_any_name(prepared, tmp_path):
    from fairseq_lasformer.experiments.training import override, train

    odd = tmp_path / "ü , = ' ( { # $x"
    config = hydra_config(tmp_path, tmp_path / "nowhere", tmp_path / "nowhere")
    data = shutil.copytree(prepared, odd / "data")
    places = [override("task.data", data), override("checkpoint.save_dir", odd), override("hydra.run.dir", odd / "h")]
    train(config, places, odd / "log", "odd")
    assert (odd / "checkpoint_last.pt").exists()


@pytest.mark.command
@pytest.mark.parametrize(
    "setting, reason",
    [
        ("+model.select_dimm=3", "select_dimm"),
        ("model.select_share=0", "--select-dim and --select-share must be at least 1"),
        ("++model.select_share=abc", "abc"),
        ("dataset.max_tokens=5", "--max-tokens 5: the longest example has"),
        ("task.data=nowhere", "nowhere: no such folder; prepare the data first"),
        ("optimisation.max_update=3", "optimisation"),
    ],
)
def test_what_hydra_is_told_wrongly_ends_in_one_line(prepared, tmp_path, setting, reason):
    from fairseq_lasformer.experiments.training import train

    config = hydra_config(tmp_path, prepared, tmp_path / "save")
    with pytest.raises(InputError, match="training it failed; see .*log: .*") as caught:
        train(config, [setting], tmp_path / "log", "it")
    assert reason in str(caught.value) and "HYDRA_FULL_ERROR" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["max-update", "max-tokens", "update-freq", "save-every", "log-every"])
def test_a_training_of_no_updates_is_refused(prepared, tmp_path, capsys, option):
    assert main(["train", str(prepared), str(tmp_path / "out"), f"--{option}", "0"]) != 0
    assert f"--{option} 0: expected at least 1" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_training_that_is_killed_says_by_what(tmp_path):
    command = [sys.executable, "-c", "import os, signal; print('half a line'); os.kill(os.getpid(), signal.SIGKILL)"]
    with pytest.raises(
        InputError, match="training it failed; see .*log: ended by SIGKILL; the same command resumes it"
    ):
        follow(command, tmp_path / "log", 5, "it")
