"""Models with mixtures of experts: placement, refused settings, training and decoding."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from helpers import SMALL, assert_steps_are_a_full_pass, tokens

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.plugin.config import LasformerConfig, module_config
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.plugin.placement import mixture_layers


@pytest.mark.parametrize(
    ("options", "encoder", "decoder"),
    [
        ({}, (1, 3, 5), (1, 3, 5)),
        ({"moe_layers": "3,0"}, (2, 5), ()),
        ({"moe_layers": "encoder.0, decoder.5"}, (0,), (5,)),
        ({"moe_placement": "shazeer"}, (4,), (0,)),
    ],
)
def test_mixtures_are_placed_where_they_are_asked_for(options, encoder, decoder):
    layers = mixture_layers(module_config(LasformerConfig(moe_experts=4, **options)))
    assert layers == {"encoder": encoder, "decoder": decoder}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moe_top_k": 5}, "can use 1 to 4"),
        ({"moe_top_k": 1}, "gate learns nothing"),
        ({"moe_gating": "gshard-top2", "moe_top_k": 3}, "must be 2"),
        ({"moe_groups": 3}, "must split"),
        ({"moe_groups": 4}, "must split"),
        ({"moe_groups": 2, "moe_gating": "softmax"}, "needs --moe-gating noisy-topk"),
        ({"moe_gating": "batchwise"}, "--moe-batchwise-decoder"),
        ({"moe_layers": "two"}, "expected N, N,M or layers"),
        ({"moe_layers": "9"}, "no layer is a mixture"),
        ({"moe_layers": "encoder.7"}, "no layer encoder.7"),
        ({"moe_load_weight": -1.0}, "expected a number, 0 or larger"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        module_config(LasformerConfig(moe_experts=4, **options))


MODELS = [
    {"moe_gating": "noisy-topk", "moe_recompute": True},
    {"moe_gating": "batchwise", "moe_layers": "1,0"},
    {"moe_gating": "gshard-top2", "moe_sigmoid": True},
    {"moe_groups": 2, "moe_placement": "shazeer"},
    {"select_modules": "none"},
]


@pytest.mark.parametrize("options", MODELS, ids=lambda o: "-".join(map(str, o.values())))
def test_models_train_with_checkpointing_and_decode_step_by_step(build, options):
    options = {"moe_experts": 4} | options
    model = build(0.5, **options).train()
    src, prev = tokens(3, 14, pad_left=(0, 3, 6)), tokens(3, 11, pad_right=(0, 2, 5))
    gradients = []
    for recompute in (False, True):
        again = build(0.5, checkpoint_activations=recompute, **options).train()
        again.load_state_dict(model.state_dict())
        torch.manual_seed(2)
        out, extra = again(src, src.ne(1).sum(1), prev)
        assert len(extra["router_stats"]) == sum(map(len, mixture_layers(again.encoder.cfg).values()))
        loss = out.square().mean() + sum(b.loss for b in extra["router_stats"].values())
        loss = loss + sum(s.kl for s in extra["supervision"].values())
        loss.backward()
        gradients.append({n: p.grad for n, p in again.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and any("experts.w1" in n for n in gradients[0])
    for name, grad in gradients[0].items():
        torch.testing.assert_close(grad, gradients[1][name], rtol=1e-4, atol=1e-6)
    assert_steps_are_a_full_pass(model.eval(), src[:1], prev[:1])


def test_a_cuda_graph_is_refused(small_task, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    task = SimpleNamespace(**vars(small_task), run_options=RunOptions(cuda_graph=True))
    with pytest.raises(InputError, match="mixtures of experts"):
        LasformerModel.build_model(LasformerConfig(**SMALL, moe_experts=4), task)
