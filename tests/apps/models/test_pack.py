"""A model as a small folder: 8 bits, and everything that translation needs."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from helpers import run

from fairseq_lasformer.apps.models import pack as packing
from fairseq_lasformer.apps.models.pack import in_eight_bits, pack
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.ops import reference


def test_a_packed_model_translates_anywhere(trained_folder, prepared, tmp_path):
    said = pack(trained_folder, tmp_path / "model")
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert (
        files == {"model.pt", "settings.json", "dict.xx.txt", "dict.yy.txt", "bpe.codes", "model.json"}
        and "SHA-256" in said
    )
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


def test_a_model_has_a_length_penalty_of_its_own(trained_folder, tmp_path):
    (tmp_path / "about.yaml").write_text("lenpen: 3\n")
    pack(trained_folder, tmp_path / "model", about=tmp_path / "about.yaml")
    assert json.loads((tmp_path / "model/model.json").read_text())["lenpen"] == 3
    own, usual = load_model(tmp_path / "model"), load_model(trained_folder)
    assert own.translator().generator.len_penalty == 3 and usual.translator().generator.len_penalty == 1
    assert own.translator(lenpen=0.5).generator.len_penalty == 0.5
    for value in ("x", "-1", "true", ".nan"):
        (tmp_path / "about.yaml").write_text(f"lenpen: {value}\n")
        with pytest.raises(InputError, match="lenpen: .*expected a number from 0 to 10"):
            pack(trained_folder, tmp_path / "other", about=tmp_path / "about.yaml")


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


def test_what_shares_little_storage_is_not_expanded(trained_folder, tmp_path):
    """300 names for one weight: 2 MB on disk, a gigabyte and more in memory."""
    pack(trained_folder, tmp_path / "model")
    state = torch.load(tmp_path / "model/model.pt", weights_only=False)
    numbers, scale = torch.zeros(2000, 1000, dtype=torch.int8), torch.ones(2000, 1)
    for kind in ("one", "views"):
        whole = torch.zeros(2_000_300, dtype=torch.int8)
        many = dict(state["model"])
        for i in range(300):
            many[f"x{i}"] = numbers if kind == "one" else whole[i : i + 2_000_000].view(2000, 1000)
        scales = state["eight_bits"] | {f"x{i}": scale for i in range(300)}
        torch.save({**state, "model": many, "eight_bits": scales}, tmp_path / "large.pt")
        with pytest.raises(InputError, match="its weights are 8 times as large as what is stored of them, or more"):
            load(tmp_path / "large.pt")
    some = {**state["model"], **{f"x{i}": numbers for i in range(3)}}
    scales = state["eight_bits"] | {f"x{i}": scale for i in range(3)}
    torch.save({**state, "model": some, "eight_bits": scales}, tmp_path / "tied.pt")
    tied = load(tmp_path / "tied.pt")["model"]
    assert len({tied[f"x{i}"].data_ptr() for i in range(3)}) == 1


def test_scales_that_overflow_are_refused(trained_folder, tmp_path):
    pack(trained_folder, tmp_path / "model")
    state = torch.load(tmp_path / "model/model.pt", weights_only=False)
    name = next(iter(state["eight_bits"]))
    state["eight_bits"][name] = torch.full_like(state["eight_bits"][name], 3e38)
    torch.save(state, tmp_path / "model/model.pt")
    with pytest.raises(InputError, match="the scale of .+ is too large"):
        load(tmp_path / "model/model.pt")


@pytest.mark.parametrize("file", ["dict.xx.txt", "bpe.codes", "settings.json", "model.pt", "dict.yy.txt"])
@pytest.mark.parametrize("kind", ["device", "pipe", "kernel"])
def test_every_file_of_a_folder_is_a_file(trained_folder, tmp_path, file, kind):
    pack(trained_folder, tmp_path / "model")
    place = tmp_path / "model" / file
    place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero" if kind == "device" else "/proc/kmsg")
    with pytest.raises(InputError, match="no such file|contains none of|does not say what"):
        load_model(tmp_path / "model")


def test_a_separator_that_stands_for_something_else_is_refused(trained_folder, tmp_path):
    pack(trained_folder, tmp_path / "model")
    settings = json.loads((tmp_path / "model/settings.json").read_text())
    for separator in ("<s>", "</s>", "a b", "\x1b["):
        (tmp_path / "model/settings.json").write_text(json.dumps(settings | {"separator": separator}))
        with pytest.raises(InputError, match="settings.json: damaged"):
            load_model(tmp_path / "model")


def test_of_two_that_write_one_folder_the_second_is_refused(trained_folder, tmp_path, monkeypatch):
    real = packing.save

    def slow(content, path):
        real(content, path)
        (tmp_path / "model").mkdir()
        (tmp_path / "model/model.pt").write_text("the other's")

    monkeypatch.setattr(packing, "save", slow)
    with pytest.raises(InputError, match="model: cannot be written .+; choose another folder"):
        pack(trained_folder, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model/model.pt").read_text() == "the other's"
