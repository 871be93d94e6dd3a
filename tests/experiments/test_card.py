"""The model card beside a checkpoint."""

from __future__ import annotations

import json
import shutil

import pytest
from helpers import run

from fairseq_lasformer.analysis.runs import started
from fairseq_lasformer.experiments.card import NAME, write_card


@pytest.fixture
def folder(trained_folder, tmp_path):
    made = tmp_path / "mine"
    made.mkdir()
    shutil.copy(trained_folder / "checkpoint_last.pt", made)
    machine = {"cpu": "some processor", "instructions": "avx2", "cores": 2, "memory": 8.0}
    command = ["/home/jane/bin/fairseq-train", "/home/jane/secret/data", "--lr", "0.5", "--save-dir", "/home/jane/x"]
    lines = [
        {"num_updates": "7", "nll_loss": "3.5", "loss": "4", "kappa": "0.25"},
        {"valid_loss": "4", "valid_nll_loss": "2.75", "valid_num_updates": "5"},
    ]
    (made / "train.log").write_text(
        started(command, machine) + f"| train_inner | {json.dumps(lines[0])}\n| valid | {json.dumps(lines[1])}\n"
    )
    return made


def test_a_card_says_what_is_known(folder, prepared):
    write_card(folder, prepared)
    text = (folder / NAME).read_text()
    for said in ("# mine: xx to yy", "million parameters", "trained on", "sentences", "--lr 0.5", "some processor"):
        assert said in text
    assert "7 updates, kappa 25.0% at the end" in text and "2.75 bits per token, after 5 updates" in text
    assert "Not scored yet" in text and "## Licence" in text and "2309.14174" in text
    assert "jane" not in text and "secret" not in text  # names of the owner's folders
    scores = {"d_bleu": 30.0, "s_bleu": 28.5, "chrf": 60.25}
    (folder / "scores.json").write_text(json.dumps({"systems": {"mine": scores}}))
    write_card(folder, prepared)
    assert "| mine | 30.00 | 28.50 | 60.25 |" in (folder / NAME).read_text()


def test_what_the_owner_wrote_stays(folder, prepared):
    write_card(folder, prepared)
    path = folder / NAME
    path.write_text(path.read_text().replace("Not stated.", r"CC0, \1 says.") + "More of mine.\n")
    (folder / "train.log").unlink()
    write_card(folder, prepared)
    text = path.read_text()
    assert r"CC0, \1 says." in text and text.endswith("More of mine.\n") and "--lr 0.5" not in text
    path.write_text("# A card of my own\n")
    write_card(folder, prepared)
    assert path.read_text() == "# A card of my own\n"


@pytest.mark.command
def test_a_training_writes_it(prepared, tmp_path):
    small = [f"--{side}-{name}" for side in ("encoder", "decoder") for name in ("embed-dim=16", "ffn-embed-dim=16")]
    words = ["train", prepared, tmp_path / "out", "--max-update", 2, "--max-tokens", 300, "--", *small, "--cpu"]
    run("lasformer", *words)
    assert "2 updates" in (tmp_path / "out" / NAME).read_text()
