"""A model as a small folder: 8 bits, and everything that translation needs."""

from __future__ import annotations

import shutil

import pytest
import torch
from helpers import run

from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.conversion.pack import in_eight_bits, pack
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.ops import reference


def test_a_packed_model_translates_anywhere(trained_folder, prepared, tmp_path):
    said = pack(trained_folder, tmp_path / "model")
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert files == {"model.pt", "settings.json", "dict.xx.txt", "dict.yy.txt", "bpe.codes"} and "SHA-256" in said
    elsewhere = shutil.move(tmp_path / "model", tmp_path / "elsewhere")
    original = load(trained_folder / "checkpoint_last.pt")["model"]
    unpacked = load(elsewhere / "model.pt")["model"]
    assert unpacked.keys() == original.keys()
    rounded = 0
    for name, weight in original.items():
        if weight.dim() == 2 and weight.numel() >= 1024:
            numbers, scale = reference.quantised(weight)
            assert torch.equal(unpacked[name], numbers * scale), name
            again, _ = reference.quantised(unpacked[name])  # decoding in 8 bits finds the same numbers
            assert torch.equal(again, numbers), name
            rounded += 1
        else:
            assert torch.equal(unpacked[name], weight), name
    assert rounded >= 1
    (found,) = load_model(elsewhere).translate_documents(["w1 w2 w3\nw4 w5"], beam=2)
    assert len(found.split("\n")) == 2 and found.strip()
    raw = (elsewhere / "model.pt").read_bytes()
    assert not [place for place in (trained_folder, prepared) if str(place).encode() in raw]
    assert b"/fairseq_lasformer" not in raw


def test_large_matrices_take_a_byte_a_weight():
    tied = torch.randn(100, 64)
    found, scales = in_eight_bits({"embedding": tied, "projection": tied})
    assert found["projection"] is found["embedding"] and scales["projection"] is scales["embedding"]
    weights = {"a": torch.randn(100, 64), "b": torch.randn(64), "c": torch.randn(3, 4), "n": torch.tensor([3])}
    found, scales = in_eight_bits(weights)
    assert found["a"].dtype == torch.int8 and scales.keys() == {"a"}
    assert ((found["a"] * scales["a"] - weights["a"]).abs() <= scales["a"] / 2 + 1e-7).all()
    assert all(torch.equal(found[name], weights[name]) for name in "bcn")


@pytest.mark.parametrize("damage", ["shape", "type", "unknown", "infinite", "table"])
def test_scales_that_do_not_fit_are_refused(trained_folder, tmp_path, damage):
    pack(trained_folder, tmp_path / "model")
    file = tmp_path / "model/model.pt"
    state = torch.load(file, weights_only=False)
    name = next(iter(state["eight_bits"]))
    if damage == "table":
        state["eight_bits"] = [1]
    elif damage == "unknown":
        state["eight_bits"]["nothing"] = torch.ones(1, 1)
    elif damage == "type":
        state["model"][name] = state["model"][name].float()
    else:
        scale = state["eight_bits"][name]
        state["eight_bits"][name] = scale[:-1] if damage == "shape" else scale / 0
    torch.save(state, file)
    with pytest.raises(InputError, match="scale|not finite"):
        load(file)


@pytest.mark.command
def test_the_command(trained_folder, tmp_path):
    done = run("lasformer", "pack", trained_folder, tmp_path / "mine")
    assert f"next: lasformer translate {tmp_path / 'mine'} FILE" in done.stdout
    refused = run("lasformer", "pack", trained_folder, tmp_path / "mine", check=False)
    assert refused.returncode == 1 and "is not empty" in refused.stderr
