"""Smaller models: groups that are left out in training, tied groups, fewer heads."""

from __future__ import annotations

import pytest
import torch
from helpers import assert_beams_decode_alike, assert_steps_are_a_full_pass, tokens

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.plugin.config import LasformerConfig, module_config

DEEP = {"encoder_layers": 4, "decoder_layers": 4, "select_share": 2}


@pytest.mark.sweep
def test_groups_are_left_out_whole_and_in_training_alone(build):
    model = build(**DEEP, group_drop=0.5)
    src, prev = tokens(2, 12), tokens(2, 9)
    with torch.no_grad():
        expected = build(**DEEP).eval()(src, None, prev)[0]
        model.eval()
        assert torch.equal(model(src, None, prev)[0], expected)
    model.train()
    seen = set()
    for seed in range(300):
        torch.manual_seed(seed)
        seen.add(tuple(sorted(model(src, None, prev)[1]["supervision"])))
    assert len(seen) == 16  # each of four groups is there, or not
    for names in seen:
        assert ("cross.0" in names) == ("decoder.0" in names) and ("cross.1" in names) == ("decoder.1" in names)


def test_an_update_moves_what_was_not_left_out(build):
    model = build(**DEEP, group_drop=0.5).train()
    torch.manual_seed(4)
    out, extra = model(tokens(2, 12), None, tokens(2, 9))
    left_out = {"encoder.0", "encoder.1"} - set(extra["supervision"])
    assert left_out
    out.sum().backward()
    for name in ("encoder.0", "encoder.1"):
        layer = model.encoder.layers[2 * int(name[-1])]
        assert (layer.fc1.weight.grad is None) == (name in left_out)


def test_tied_groups_are_one_set_of_weights(build):
    model, free = build(**DEEP, tie_groups=True), build(**DEEP)
    first, second = model.decoder.layers[1], model.decoder.layers[3]
    assert first.fc1 is second.fc1 and first.encoder_attn.k_proj is second.encoder_attn.k_proj
    assert first.final_layer_norm is not second.final_layer_norm
    lowest, above = (model.encoder.layers[i].self_attn.selector for i in (0, 2))
    assert lowest.q_proj is not above.q_proj and model.encoder.layers[0].fc1 is not model.encoder.layers[1].fc1
    count = [sum(p.numel() for p in m.parameters()) for m in (model, free)]
    linear = sum(
        p.numel()
        for side in (free.encoder, free.decoder)
        for layer in list(side.layers)[2:]
        for name, p in layer.named_parameters()
        if "norm" not in name and "selector" not in name
    )
    assert count[1] - count[0] == linear
    other = build(**DEEP, tie_groups=True)
    other.load_state_dict(model.state_dict())
    assert_steps_are_a_full_pass(other.eval(), tokens(2, 20), tokens(2, 10))


@pytest.mark.parametrize("fewer", ["encoder=1,decoder=2,cross=1", "cross=1"])
def test_fewer_heads_decode_alike(build, fewer):
    models = [build(kappa=0.3, fewer_heads=fewer).eval() for _ in range(2)]
    heads = models[0].decoder.layers[0].encoder_attn
    assert heads.num_heads == 1 and heads.head_dim == 8 and heads.k_proj.out_features == 8
    models[0].decoder.make_generation_fast_()
    assert models[0].decoder.packed is not None
    assert_beams_decode_alike(models[0], models[1])


def test_selectors_learn_from_the_heads_that_there_are(build):
    model = build(fewer_heads="encoder=1").train()
    found = model(tokens(2, 20), None, tokens(2, 10))[1]["supervision"]
    assert torch.isfinite(found["encoder.0"].kl) and float(found["encoder.0"].kl) > 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"group_drop": 1.0}, "--group-drop 1.0"),
        ({"fewer_heads": "cross=0"}, "--fewer-heads cross=0"),
        ({"fewer_heads": "mouth=1"}, "mouth=1"),
        ({"tie_groups": True, "moe_experts": 4}, "--tie-groups: not with mixtures"),
        (
            {"fewer_heads": "cross=1", "delight": "official"},
            "--fewer-heads: not with --delight .its attention has one head",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        module_config(LasformerConfig(**options))
