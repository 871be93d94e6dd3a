"""The configurations, composed of groups: their content, key by key, and the existence of every option."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from fairseq.tasks.translation import TranslationConfig
from helpers import ROOT
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from fairseq_lasformer.experiments.training import composed, train
from fairseq_lasformer.plugin.config import PRESETS, LasformerConfig, module_config
from fairseq_lasformer.plugin.options import CompactOptions, LengthOptions, MoeOptions, SelectionOptions, StudentOptions
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

# the content of each configuration when it was a single file
EXPECTED = [json.loads(line) for line in (ROOT / "tests/configurations.jsonl").read_text().splitlines()]
REFERENCE = ROOT / "configs/reference.yaml"
LEAVES = sorted(set((ROOT / "configs").glob("*.yaml")) - {REFERENCE})


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda e: e["name"])
def test_composed_of_groups_it_says_what_one_file_said(expected):
    cfg = composed(ROOT / "configs" / f"{expected['name']}.yaml")
    values = flat(OmegaConf.to_container(cfg, resolve=False))
    assert {"name": expected["name"]} | values == expected


def test_no_configuration_goes_unchecked():
    assert [path.stem for path in LEAVES] == sorted(e["name"] for e in EXPECTED)


@pytest.mark.parametrize("path", LEAVES, ids=lambda p: p.stem)
def test_configurations_hold_options_that_exist(path):
    cfg = composed(path)
    options = OmegaConf.create({k: v for k, v in cfg.model.items() if k != "_name"})
    module_config(OmegaConf.merge(OmegaConf.structured(LasformerConfig), options))
    OmegaConf.merge(
        OmegaConf.structured(DocumentTranslationConfig),
        {k: v for k, v in cfg.task.items() if k not in ("_name", "data")},
    )
    assert {"common", "criterion", "optimization", "optimizer", "lr_scheduler", "checkpoint"} <= cfg.keys()
    system = path.stem.partition("_")[2].removeprefix("en-de_").removeprefix("zh-en_")
    if path.stem.startswith(("ted", "news", "europarl", "pdc")):  # base sizes, as the preset of that name
        assert dict(PRESETS.get(system, {})).items() <= dict(cfg.model).items()


@pytest.mark.parametrize("path", LEAVES, ids=lambda p: p.stem)
def test_leaves_say_only_what_is_their_own(path):
    own = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert list(own) == ["defaults", "checkpoint", "hydra"] and own["defaults"][0] == "_self_"
    assert [next(iter(group)) for group in own["defaults"][1:]] == ["base", "corpus", "size", "system"]


@pytest.mark.command
def test_the_reference_explains_every_key_and_names_its_default():
    reference = flat(OmegaConf.to_container(OmegaConf.load(REFERENCE), resolve=False))
    used = {key for path in LEAVES for key in flat(OmegaConf.to_container(composed(path), resolve=False))}
    assert used - set(reference) == {"lr_scheduler.total_num_update"}
    options = {
        "model": (SelectionOptions, StudentOptions, MoeOptions, CompactOptions, LengthOptions),
        "task": (DocumentTranslationConfig,),
    }
    inherited = {f.name for f in fields(TranslationConfig)} - {"max_source_positions", "max_target_positions"}
    for group, classes in options.items():
        for f in (f for cls in classes for f in fields(cls) if f.name not in inherited and not f.name.startswith("_")):
            assert reference[f"{group}.{f.name}"] == getattr(f.default, "value", f.default), f.name
    known = {f"task.{f.name}" for f in fields(DocumentTranslationConfig)} | {
        f"model.{f.name}" for f in fields(LasformerConfig)
    }
    assert {key for key in reference if key.startswith(("task.", "model."))} <= known
    lines = REFERENCE.read_text().splitlines()
    for before, line in zip(lines, lines[1:]):
        if ": " in line and not line.lstrip().startswith("#"):
            assert before.lstrip().startswith("#"), line


@pytest.mark.command
def test_the_reference_trains_as_it_stands(prepared, tmp_path):
    small = [
        f"model.{s}_{k}" for s in ("encoder", "decoder") for k in ("embed_dim=16", "layers=1", "attention_heads=2")
    ]
    small += ["model.encoder_ffn_embed_dim=16", "model.decoder_ffn_embed_dim=16", "optimization.max_update=1"]
    places = [f"task.data={prepared}", f"checkpoint.save_dir={tmp_path / 'save'}", f"hydra.run.dir={tmp_path}"]
    languages = ["task.source_lang=xx", "task.target_lang=yy", "common.cpu=true", "dataset.disable_validation=true"]
    train(REFERENCE, [*small, *places, *languages], tmp_path / "log", "reference")
    assert (tmp_path / "save/checkpoint_last.pt").exists()


def test_the_papers_rows_use_the_papers_method_and_the_overlay_this_projects():
    literal = composed(ROOT / "configs/ted_en-de_lasformer.yaml").model
    assert (literal.select_gradient, literal.supervise_rows) == ("straight-through", "all")
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.1"):
        fast = compose("ted_en-de_lasformer", overrides=["system=lasformer_fast"]).model
    default = LasformerConfig()
    assert (fast.select_gradient, fast.supervise_rows) == (str(default.select_gradient), default.supervise_rows)
