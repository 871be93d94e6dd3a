"""The configurations, composed of groups: what each says, key by key, and that every option exists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers import ROOT
from omegaconf import OmegaConf

from fairseq_lasformer.experiments.training import composed
from fairseq_lasformer.plugin.config import PRESETS, LasformerConfig, module_config
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

# what each configuration said when it was one file that held everything
EXPECTED = [json.loads(line) for line in (ROOT / "tests/configurations.jsonl").read_text().splitlines()]
LEAVES = sorted((ROOT / "configs").glob("*.yaml"))


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
