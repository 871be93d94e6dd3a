"""The configurations and their systems: their content, key by key, and the existence of every option."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from fairseq.tasks.translation import TranslationConfig
from helpers import ROOT
from omegaconf import OmegaConf

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.experiments.training import composed, systems_of, train
from fairseq_lasformer.plugin.config import PRESETS, LasformerConfig, module_config
from fairseq_lasformer.plugin.options import CompactOptions, LengthOptions, MoeOptions, SelectionOptions, StudentOptions
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

# what each system of each configuration trains with
EXPECTED = [json.loads(line) for line in (ROOT / "tests/configurations.jsonl").read_text().splitlines()]
REFERENCE = ROOT / "configs/reference.yaml"
LEAVES = sorted(set((ROOT / "configs").glob("*.yaml")) - {REFERENCE, ROOT / "configs/systems.yaml"})
ROWS = [(path, system) for path in LEAVES for system in systems_of(path)]


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda e: f"{e['config']} {e['system']}")
def test_a_system_trains_with_what_is_written_down(expected):
    config, system = ROOT / f"configs/{expected['config']}.yaml", expected["system"]
    values = flat(OmegaConf.to_container(composed(config, systems_of(config)[system]), resolve=False))
    if system != "lasformer":  # whoever starts it says where it is saved
        values.pop("checkpoint.save_dir")
    assert {"config": config.stem, "system": system} | values == expected


def test_no_system_goes_unchecked():
    known = {(e["config"], e["system"]) for e in EXPECTED}
    of_ted = systems_of(ROOT / "configs/ted_en-de.yaml")
    for path, system in ROWS:  # the rows of the paper's other corpora are those of TED
        assert (path.stem, system) in known or systems_of(path)[system] == of_ted[system]


def test_systems_that_are_no_lists_of_overrides_are_refused(tmp_path):
    config = tmp_path / "mine.yaml"
    assert systems_of(config) == {"lasformer": ()}  # a configuration in a folder of its own
    for text, message in (("mine: [a]", "mine: expected names"), ("mine: {a: {b: c}}", "mine.a: expected a list")):
        (tmp_path / "systems.yaml").write_text(text)
        with pytest.raises(InputError, match=f"systems.yaml: {message}"):
            systems_of(config)
    (tmp_path / "systems.yaml").write_text("mine: {dense: [++model.select_modules=none]}\nother: {a: []}")
    assert systems_of(config) == {"lasformer": (), "dense": ("++model.select_modules=none",)}


@pytest.mark.parametrize("path, system", ROWS, ids=lambda p: getattr(p, "stem", p))
def test_configurations_hold_options_that_exist(path, system):
    cfg = composed(path, systems_of(path)[system])
    options = OmegaConf.create({k: v for k, v in cfg.model.items() if k != "_name"})
    module_config(OmegaConf.merge(OmegaConf.structured(LasformerConfig), options))
    OmegaConf.merge(
        OmegaConf.structured(DocumentTranslationConfig),
        {k: v for k, v in cfg.task.items() if k not in ("_name", "data")},
    )
    assert {"common", "criterion", "optimization", "optimizer", "lr_scheduler", "checkpoint"} <= cfg.keys()
    if path.stem.startswith(("ted", "news", "europarl", "pdc")):  # base sizes, as the preset of that name
        assert dict(PRESETS.get(system, {})).items() <= dict(cfg.model).items()


@pytest.mark.parametrize("path", LEAVES, ids=lambda p: p.stem)
def test_what_a_file_says_is_not_overridden_by_what_it_is_based_on(path):
    """fairseq's own defaults are merged with the file itself, so that it has to come first."""
    own = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert own.pop("defaults")[0] == "_self_" and own.pop("hydra")
    whole = flat(OmegaConf.to_container(composed(path), resolve=False))
    assert {key: whole[key] for key in flat(own)} == flat(own)


@pytest.mark.command
def test_the_reference_explains_every_key_and_names_its_default():
    reference = flat(OmegaConf.to_container(OmegaConf.load(REFERENCE), resolve=False))
    used = {key for e in EXPECTED for key in e} - {"config", "system"}
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


def test_the_papers_rows_use_the_papers_method_and_the_fast_ones_this_projects():
    config = ROOT / "configs/ted_en-de.yaml"
    literal = composed(config).model
    assert (literal.select_gradient, literal.supervise_rows) == ("straight-through", "all")
    fast = composed(config, systems_of(config)["lasformer_fast"]).model
    default = LasformerConfig()
    assert (fast.select_gradient, fast.supervise_rows) == (str(default.select_gradient), default.supervise_rows)
