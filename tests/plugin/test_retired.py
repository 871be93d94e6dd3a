"""Options that no longer exist: a line of advice on the command line; checkpoints that have them still load."""

from __future__ import annotations

import pytest
import torch
from fairseq import options

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.checkpoints.settings import FORMER
from fairseq_lasformer.plugin import register
from fairseq_lasformer.plugin.build import sampling
from fairseq_lasformer.plugin.config import LasformerConfig, module_config
from fairseq_lasformer.plugin.patches.tool_options import RETIRED


@pytest.mark.parametrize("name", RETIRED)
@pytest.mark.parametrize("form", ["{} 1", "{}=1"])
def test_a_retired_option_says_what_to_use_instead(name, form):
    register()
    parser = options.get_training_parser()
    with pytest.raises(InputError) as error:
        options.parse_args_and_arch(parser, ["data", "--arch", "lasformer", *form.format(name).split()])
    assert str(error.value) == f"{name}: no longer exists; {RETIRED[name]}"


@pytest.mark.parametrize("name", FORMER)
@pytest.mark.parametrize("part", ["model", "task"])
def test_a_checkpoint_of_version_02_is_refused_in_one_line(name, part, tmp_path):
    path, cfg = tmp_path / "old.pt", {"model": {"_name": "lasformer"}, "task": {"_name": "document_translation"}}
    cfg[part][name] = 0
    torch.save({"model": {}, "cfg": cfg}, path)
    with pytest.raises(InputError) as error:
        load(path)
    assert str(error.value) == f"{path}: of version 0.2 of this package (it sets {name}); use it with that version"


def test_a_checkpoint_with_gates_is_refused_in_one_line(tmp_path):
    path, gate = tmp_path / "old.pt", {"encoder.layers.0.self_attn.line_gate": torch.zeros(4)}
    torch.save(
        {"model": gate, "cfg": {"model": {"_name": "lasformer"}, "task": {"_name": "document_translation"}}}, path
    )
    with pytest.raises(InputError) as error:
        load(path)
    expected = "its own lines have gates, as those of version 0.3.0.dev0; use it with commit 2ee9ace"
    assert str(error.value) == f"{path}: {expected}"


@pytest.mark.parametrize("settings", [{"positions": "line"}, {"positions": "text", "own_lines": True}])
def test_a_checkpoint_with_positions_apart_from_lines_is_refused_in_one_line(settings, tmp_path):
    path, model = tmp_path / "old.pt", {"_name": "lasformer", **settings}
    torch.save({"model": {}, "cfg": {"model": model, "task": {"_name": "document_translation"}}}, path)
    with pytest.raises(InputError) as error:
        load(path)
    assert str(error.value) == f"{path}: positions or attention alone go by lines; use it with commit c451627"


def test_queries_are_sampled_as_asked():
    def strides(rows: str) -> list[int]:
        drawn = sampling(module_config(LasformerConfig(supervise_rows=rows)), 3, torch.device("cpu"))
        return [drawn.sample(4, 1024, kappa).stride for kappa in (1.0, 0.36, 0.35, 0.1)]

    assert strides("auto") == [1, 1, 8, 8] and strides("512") == [8] * 4 and strides("all") == [1] * 4
