"""Folders of strangers in Hugging Face's format: every fault is one line, and none costs memory or time."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from hf_models import FAMILIES  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from fairseq_lasformer.apps.models.huggingface import importing, proof  # noqa: E402
from fairseq_lasformer.base.files import new_folder  # noqa: E402
from fairseq_lasformer.cli.main import main  # noqa: E402

CHANGES = {
    "vocab_size": [2_000_000_000, -1, 1.5, "x", None, [], True],
    "encoder_layers": [100_000_000, 10_000, -1, "2", None],
    "decoder_layers": [100_000_000, 3],
    "d_model": [1 << 30, 0, 7],
    "encoder_ffn_dim": [1 << 30, 0],
    "encoder_attention_heads": [0, 3, -2, 1 << 30],
    "decoder_attention_heads": [0, 3],
    "max_position_embeddings": [2_147_483_647, 0, 1, 2, -5],
    "dropout": ["abc", [1], 2, -0.5],
    "attention_dropout": [{"a": 1}],
    "activation_function": [[1], None, "os.system"],
    "id2label": [5],
    "decoder_start_token_id": [1 << 40, -3, "0"],
    "pad_token_id": [None, 10**9, -1],
    "eos_token_id": [[0], 10**9],
    "num_hidden_layers": [10**9],
    "torch_dtype": ["float77", 5],
    "bad_words_ids": [5],
    "tie_word_embeddings": [[]],
}


@pytest.fixture(scope="module", params=["marian", "m2m"])
def original(request, tmp_path_factory):
    return FAMILIES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def folder(original, tmp_path):
    shutil.copytree(original.folder, tmp_path / "folder")
    return tmp_path / "folder"


def refused(folder: Path, original, capsys, expected: str = "") -> None:
    """Import a folder: either it works, or there is one line, and nothing is left behind."""
    out = folder.parent / "out"
    languages = ["-s", str(original.languages[0]), "-t", str(original.languages[1])] if original.languages[0] else []
    code = main(["import", str(folder), str(out), *languages])
    said = capsys.readouterr()
    assert code == 1 or not expected, said
    if code:
        assert said.err.startswith("error: ") and said.err.count("\n") == 1 and expected in said.err, said.err
        assert "folder/model.pt" not in said.err  # the temporary place
        assert not out.exists()
    shutil.rmtree(out, ignore_errors=True)
    assert sorted(p.name for p in folder.parent.iterdir()) == ["folder"]


@pytest.mark.parametrize("name", CHANGES)
def test_settings_that_do_not_fit(name, folder, original, capsys):
    config = json.loads((folder / "config.json").read_text())
    for value in CHANGES[name]:
        (folder / "config.json").write_text(json.dumps(config | {name: value}))
        large = isinstance(value, int) and abs(value) > 1 << 28 and not name.endswith("_id")
        begin = time.monotonic()
        refused(folder, original, capsys, f"its setting {name} is" if large else "")
        assert time.monotonic() - begin < 60


@pytest.mark.parametrize(
    "index", [[1], None, {"weight_map": []}, {"weight_map": {"a": 5, "b": "part.safetensors"}}, {"weight_map": {}}]
)
def test_indices_of_parts(index, folder, original, capsys):
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, original, capsys, "error: ")


@pytest.mark.parametrize("kind", ["int", "bool", "float8", "scalar", "short", "nan"])
def test_weights_of_other_kinds(kind, folder, original, capsys):
    weights = load_file(folder / "model.safetensors")
    name = next(n for n, w in weights.items() if w.dim() == 2 and "layers" in n)
    bias = next(n for n, w in weights.items() if w.dim() == 1 and "fc1" in n)
    weights |= {
        "int": {name: weights[name].int()},
        "bool": {name: weights[name] > 0},
        "float8": {name: weights[name].to(torch.float8_e4m3fn)},
        "scalar": {name: torch.tensor(1.0)},
        "short": {bias: weights[bias][:-1].clone()},
        "nan": {name: weights[name] * torch.nan},
    }[kind]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused(folder, original, capsys, "error: ")


@pytest.mark.parametrize("word", ["a\nb", "a\rb", "\ud800", "", " "])
def test_words_that_a_dictionary_cannot_hold(word, folder, original, capsys):
    path = folder / "vocab.json"
    words = json.loads(path.read_text())
    first = next(w for w, row in words.items() if row == 20)
    words = {word if w == first else w: row for w, row in words.items()}
    path.write_text(json.dumps(words))
    refused(folder, original, capsys)


def test_a_list_for_the_settings_of_generation(folder, original, capsys):
    (folder / "generation_config.json").write_text("[1]")
    refused(folder, original, capsys)


def test_what_transformers_raises_is_one_line(folder, original, capsys, monkeypatch):
    def broken(*_, **__):
        raise KeyError("some\nkey")

    monkeypatch.setattr(transformers.AutoModelForSeq2SeqLM, "from_pretrained", broken)
    assert importing.compared is proof.compared
    refused(folder, original, capsys, "cannot load it (KeyError:")


def test_what_a_killed_import_left_is_removed(tmp_path):
    left, fresh = tmp_path / ".out.abc.new", tmp_path / ".out.def.new"
    for path in (left, fresh):
        (path / "folder").mkdir(parents=True)
    os.utime(left, (0, 0))
    with new_folder(tmp_path / "out") as place:
        (place / "file").touch()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".out.def.new", "out"]
