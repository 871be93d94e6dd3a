"""``model.json`` of packed models."""

from __future__ import annotations

import json

import pytest

from fairseq_lasformer import __version__
from fairseq_lasformer.apps.models.pack import pack
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import file_hash


def test_a_card_names_every_file_with_its_hash_and_what_was_measured(trained_folder, prepared, tmp_path):
    (tmp_path / "about.yaml").write_text("licence: MIT\nscores: {d-BLEU: 12.5}\n")
    (tmp_path / "text.txt").write_text("w1 w2 w3\nw4 w5\n")
    out = tmp_path / "mine"
    message = pack(trained_folder, out, prepared, tmp_path / "about.yaml", tmp_path / "text.txt")
    card = json.loads((out / "model.json").read_text())
    assert file_hash(out / "model.json") in message
    assert {name: card[name] for name in ("name", "source", "target", "licence", "scores")} == {
        "name": "mine",
        "source": "xx",
        "target": "yy",
        "licence": "MIT",
        "scores": {"d-BLEU": 12.5},
    }
    assert card["fairseq_lasformer"] == f">={__version__}"
    assert {file["name"]: (file["size"], file["sha256"]) for file in card["files"]} == {
        path.name: (path.stat().st_size, file_hash(path)) for path in out.iterdir() if path.name != "model.json"
    }
    measured = card["measured"]
    assert measured["source_tokens"] == 7 and measured["tokens_per_second"] > 0 and measured["memory_mib"] > 100
    assert {"cpu", "instructions", "threads", "torch"} <= measured.keys()


def test_what_a_card_says_itself_is_not_taken_from_a_file(trained_folder, prepared, tmp_path):
    (tmp_path / "about.yaml").write_text("files: []\nname: other\n")
    with pytest.raises(InputError, match="about.yaml: files, name: found by lasformer pack itself"):
        pack(trained_folder, tmp_path / "mine", prepared, tmp_path / "about.yaml")
    assert not (tmp_path / "mine").exists()
    for odd in ("trained: 2026-11-01", "loss: .nan"):
        (tmp_path / "about.yaml").write_text(odd)
        with pytest.raises(InputError, match="about.yaml: not for JSON"):
            pack(trained_folder, tmp_path / "mine", prepared, tmp_path / "about.yaml")
    with pytest.raises(InputError, match="missing.txt: no such file; --measure needs a text"):
        pack(trained_folder, tmp_path / "mine", prepared, None, tmp_path / "missing.txt")
    assert not (tmp_path / "mine").exists()
