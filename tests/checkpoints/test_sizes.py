"""A small checkpoint cannot ask for much memory, nor for other files."""

from __future__ import annotations

import copy
import zipfile

import pytest
import torch

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints import loading
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.documents.hub import load_model


@pytest.fixture
def state(checkpoint):
    return copy.deepcopy(loading.load(checkpoint))


def changed(state, tmp_path, **settings):
    model = state["cfg"]["model"]
    for name, value in settings.items():
        model.update({name: value}) if isinstance(model, dict) else setattr(model, name, value)
    torch.save(state, tmp_path / "x.pt")
    return tmp_path / "x.pt"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_source_positions": 10**6},
        {"max_target_positions": 10**7},
        {"define_depth": 10**6},
        {"delight_max_depth": 10**6},
        {"select_dim": 10**8},
        {"moe_experts": 10**6},
        {"moe_ffn_embed_dim": 10**7},
        {"encoder_layers": 10**6},
        {"decoder_attention_heads": -1},
        {f"{side}_{name}_dim": 65_536 for side in ("encoder", "decoder") for name in ("embed", "ffn_embed")},
        {"encoder_layers": 1000, "encoder_embed_dim": 1024, "encoder_ffn_embed_dim": 1024, "moe_experts": 1000},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_sizes_that_do_not_fit_the_weights_are_refused(state, tmp_path, settings):
    with pytest.raises(InputError, match="does not fit its weights|far larger than its weights"):
        loading.load(changed(state, tmp_path, **settings))


def test_a_width_that_is_not_used_is_no_reason(state, tmp_path):
    assert loading.load(changed(state, tmp_path, encoder_ffn_embed_dim=2048, decoder_ffn_embed_dim=2048))


def test_an_expanded_weight_is_refused(state, tmp_path):
    state["model"]["more"] = torch.zeros(1).expand(2**15, 2**16)
    with pytest.raises(InputError, match="weight more is larger than what is stored of it"):
        loading.load(changed(state, tmp_path))


@pytest.mark.parametrize("odd", ["float8", "a number", "meta"])
def test_odd_weights_are_refused(state, tmp_path, odd):
    name = next(name for name, weight in state["model"].items() if weight.is_floating_point())
    weight = state["model"].pop(name)
    if odd == "float8":
        state["model"][name] = weight.to(torch.float8_e4m3fn)
    elif odd == "meta":
        state["model"][name] = weight.to("meta")
    else:
        state["model"][5] = weight
    with pytest.raises(InputError, match="is not a numeric tensor|refused"):
        loading.load(changed(state, tmp_path))


def test_an_archive_that_is_larger_inside_is_refused(state, tmp_path):
    path = changed(state, tmp_path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "y.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info), zipfile.ZIP_DEFLATED)
        new.writestr("x/zeros", bytes(20_000_000))
    with pytest.raises(InputError, match="larger inside than outside"):
        loading.load(tmp_path / "y.pt")


def test_no_other_file_is_read(state, prepared, tmp_path):
    path = changed(state, tmp_path, encoder_embed_path="/dev/zero", decoder_embed_path="/dev/zero")
    assert load_model(path, data=prepared, device="cpu").translate_documents(["w1 w2"], progress=False)


@pytest.mark.parametrize(("part", "settings"), [("task", {"seed": "x"}), ("generation", {"temperature": 0.0})])
def test_settings_of_a_wrong_kind_are_told_in_one_line(state, prepared, tmp_path, part, settings):
    state["cfg"][part].update(settings) if isinstance(state["cfg"][part], dict) else [
        setattr(state["cfg"][part], name, value) for name, value in settings.items()
    ]
    with pytest.raises(InputError, match="cannot be used"):
        load_model(changed(state, tmp_path), data=prepared, device="cpu").translate_documents(["w1"], progress=False)


@pytest.mark.parametrize("value", [10**6, 1e308, -1, "x", [1]])
@pytest.mark.parametrize("name", ["sentence_max_len_a", "sentence_max_len_b"])
def test_a_line_that_would_not_end_is_refused(state, tmp_path, name, value):
    state["cfg"]["task"][name] = value
    with pytest.raises(InputError, match=f"its setting {name} is"):
        loading.load(changed(state, tmp_path))


@pytest.mark.parametrize(
    "settings",
    [
        {"max_len_b": "x"},
        {"min_len": [1]},
        {"min_len": None},
        {"temperature": "y"},
        {"sampling": "z"},
        {"lm_path": [1]},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_options_of_generation_have_their_types(state, tmp_path, settings):
    state["cfg"]["generation"].update(settings)
    with pytest.raises(InputError, match=f"its setting generation.{[*settings][0]} is "):
        loading.load(changed(state, tmp_path))


def test_a_prescribed_translation_is_forgotten(state, tmp_path):
    state["cfg"]["generation"]["score_reference"] = True
    model = load_model(changed(state, tmp_path), device="cpu")
    assert model.translate_documents(["w1 w2"], beam=1)


@pytest.mark.parametrize(
    "settings",
    [{"select_share": None}, {"sparsity_threshold": "x"}, {"select_modules": 0}, {"encoder_embed_dim": [1]}],
    ids=lambda settings: "-".join(settings),
)
def test_settings_of_the_wrong_kind_are_one_line(state, tmp_path, capsys, settings):
    assert main(["info", str(changed(state, tmp_path, **settings))]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'x.pt'}: ") and said.count("\n") == 1


@pytest.mark.parametrize(("part", "settings"), [("model", {"activation_fn": "x"}), ("generation", {"min_len": 10**6})])
def test_settings_that_cannot_be_used_are_one_line(state, tmp_path, part, settings):
    for name, value in settings.items():
        its = state["cfg"][part]
        its.update({name: value}) if isinstance(its, dict) else setattr(its, name, value)
    with pytest.raises(InputError, match="cannot be used|more than the"):
        load_model(changed(state, tmp_path), device="cpu").translate_documents(["w1 w2"], beam=1)
