"""Options that no longer exist: a line of advice on the command line; checkpoints that have them still load."""

from __future__ import annotations

import pytest
import torch
from fairseq import options

from fairseq_lasformer.checkpoints.settings import rename_former
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.plugin import register
from fairseq_lasformer.plugin.build import sampling
from fairseq_lasformer.plugin.config import LasformerConfig, module_config
from fairseq_lasformer.plugin.patches.retired import RETIRED


@pytest.mark.parametrize("name", RETIRED)
@pytest.mark.parametrize("form", ["{} 1", "{}=1"])
def test_a_retired_option_says_what_to_use_instead(name, form):
    register()
    parser = options.get_training_parser()
    with pytest.raises(InputError) as error:
        options.parse_args_and_arch(parser, ["data", "--arch", "lasformer", *form.format(name).split()])
    assert str(error.value) == f"{name}: no longer exists; {RETIRED[name]}"


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ({"select_window": 7, "select_pattern": "learned"}, {"select_pattern": "window:7"}),
        ({"select_window": 0, "select_pattern": "full"}, {"select_pattern": "full"}),
        ({"moe_every": "3,0", "moe_layers": ""}, {"moe_layers": "3,0"}),
        ({"moe_every": "2", "moe_layers": "encoder.1"}, {"moe_layers": "encoder.1"}),
        ({"supervise_rows": "512", "supervise_all_above": 0.35}, {"supervise_rows": "auto"}),
        ({"supervise_rows": "512", "supervise_all_above": 1.0}, {"supervise_rows": "512"}),
        ({"supervise_rows": "all", "supervise_all_above": 0.35}, {"supervise_rows": "all"}),
        ({"moe_backend": "loop"}, {}),
    ],
)
def test_a_former_checkpoint_says_the_same_by_present_options(former, now):
    state = {"cfg": {"model": dict(former), "task": {}}}
    rename_former(state)
    assert state["cfg"]["model"] == now
    module_config(LasformerConfig(moe_experts=4, **now))


@pytest.mark.parametrize(
    ("former", "now"), [((False, False), "auto"), ((True, False), "yes"), ((False, True), "no"), (("no", None), "no")]
)
def test_former_alignment_is_one_option_now(former, now):
    task = {"align_sentences": former[0]} | ({} if former[1] is None else {"no_align_sentences": former[1]})
    rename_former({"cfg": {"model": {}, "task": task}})
    assert task == {"align_sentences": now}


def test_queries_are_sampled_as_asked():
    def strides(rows: str) -> list[int]:
        drawn = sampling(module_config(LasformerConfig(supervise_rows=rows)), 3, torch.device("cpu"))
        return [drawn.sample(4, 1024, kappa).stride for kappa in (1.0, 0.36, 0.35, 0.1)]

    assert strides("auto") == [1, 1, 8, 8] and strides("512") == [8] * 4 and strides("all") == [1] * 4
