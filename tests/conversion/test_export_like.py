"""Imported models exported back to Hugging Face's format: the same weights, or the trained ones."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file
from tiers import thinned

transformers = pytest.importorskip("transformers")

from hf_models import FAMILIES  # noqa: E402

from fairseq_lasformer.checkpoints.loading import load  # noqa: E402
from fairseq_lasformer.cli.main import main  # noqa: E402
from fairseq_lasformer.conversion.huggingface.folder import Folder  # noqa: E402
from fairseq_lasformer.conversion.huggingface.importing import import_model  # noqa: E402


@pytest.fixture(scope="module", params=thinned(FAMILIES, "marian"))
def original(request, tmp_path_factory):
    torch.manual_seed(1)
    made = FAMILIES[request.param](tmp_path_factory.mktemp(request.param))
    import_model(made.folder, made.folder.parent / f"{request.param}-imported", made.languages, check=False)
    return made, made.folder.parent / f"{request.param}-imported"


def changed(imported, folder, change):
    """Return a copy of an imported model with different weights."""
    state = load(imported / "model.pt")
    change(state["model"])
    torch.save(state, folder / "changed.pt")
    return folder / "changed.pt"


def exported(checkpoint, original, imported, out):
    words = ["export", str(checkpoint), str(out), "--like", str(original.folder), "--data", str(imported)]
    return main(words)


def test_an_unchanged_model_comes_back_as_it_was(original, tmp_path, capsys):
    theirs, imported = original
    assert exported(imported / "model.pt", theirs, imported, tmp_path / "out") == 0
    assert str(tmp_path / "out") in capsys.readouterr().out
    before, after = Folder(theirs.folder).weights(), Folder(tmp_path / "out").weights()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    names = {p.name for p in theirs.folder.iterdir() if p.is_file() and "model.safetensors" not in p.name}
    for name in names - {"config.json", "pytorch_model.bin"}:
        assert (tmp_path / "out" / name).read_bytes() == (theirs.folder / name).read_bytes()
    mine, config = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "out", theirs.folder))
    assert {k: v for k, v in mine.items() if "dtype" not in k} == {k: v for k, v in config.items() if "dtype" not in k}


def test_trained_weights_score_there_as_here(original, tmp_path):
    theirs, imported = original
    draw = torch.Generator().manual_seed(2)

    def train(weights):
        moved = {}
        for name, weight in weights.items():
            if weight.is_floating_point() and not name.endswith(".version") and "output_projection.bias" not in name:
                of = moved.setdefault(weight.data_ptr(), 0.01 * torch.randn(weight.shape, generator=draw))
                if "embed_tokens" in name or "output_projection" in name:
                    of[1] = 0  # padding has no gradient
                weights[name] = weight + of

    checkpoint = changed(imported, tmp_path, train)
    assert exported(checkpoint, theirs, imported, tmp_path / "out") == 0
    there = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    old = dict(theirs.model.named_parameters())
    pairs = [(w, old[n]) for n, w in there.named_parameters() if w.dim() == 2 and "embed_positions" not in n]
    assert pairs and not any(torch.equal(*pair) for pair in pairs)
    again = tmp_path / "again"
    import_model(tmp_path / "out", again, theirs.languages)  # compares the scores with the original's
    before, after = load(checkpoint)["model"], load(again / "model.pt")["model"]
    for name, weight in before.items():
        if "embed_tokens" not in name and "output_projection" not in name:
            assert torch.equal(weight, after[name]), name
    table = "decoder.embed_tokens.weight"
    same = (before[table] == after[table]).all(1)
    assert same.float().mean() > 0.9 and same[4:].all()  # special words that the original lacks are not kept


def test_what_the_original_cannot_have_is_refused(original, tmp_path, capsys):
    theirs, imported = original

    assert exported(imported / "model.pt", theirs, imported, imported) == 1
    assert "is not empty" in capsys.readouterr().err
    other = tmp_path / "other"
    shutil.copytree(theirs.folder, other)
    weights = Folder(other).weights()
    smaller = {name: weight.clone() for name, weight in weights.items() if "encoder.layers.2.fc1" not in name}
    for path in other.glob("*model.*"):
        path.unlink()
    save_file(smaller, other / "model.safetensors")
    for file in theirs.folder.glob("*.spm"):
        shutil.copyfile(file, other / file.name)
    words = ["export", str(imported / "model.pt"), str(tmp_path / "y"), "--like", str(other), "--data", str(imported)]
    assert main(words) == 1 and "encoder.layers.2.fc1" in capsys.readouterr().err and not (tmp_path / "y").exists()
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    words = ["export", str(imported / "model.pt"), str(tmp_path / "x"), "--like", str(tmp_path)]
    assert main(words) == 1 and not (tmp_path / "x").exists()
    words = ["export", str(imported), str(tmp_path / "x"), "--like", str(theirs.folder), "--quantization", "int8"]
    assert main(words) == 1 and "--quantization int8" in capsys.readouterr().err
