"""Models that start from the weights of a dense one."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers import tokens

MIXTURE = {"moe_experts": 4, "moe_top_k": 2, "moe_every": "2", "moe_ffn_embed_dim": 48}


def started(model, dense) -> dict:
    weights = {name: value.clone() for name, value in dense.state_dict().items()}
    model.upgrade_state_dict(weights)
    model.load_state_dict(weights)
    return weights


def test_experts_begin_as_copies_of_the_dense_network(build, caplog):
    dense, model = build(select_modules="none"), build(select_modules="none", **MIXTURE)
    with torch.no_grad():
        for name, p in dense.named_parameters():
            if name.endswith(("fc1.bias", "fc2.bias")):
                p.zero_()  # experts have none
    started(model, dense)
    assert "those of 2 layers start as copies of the dense networks" in caplog.text
    experts, network = model.encoder.layers[1].moe.experts, dense.encoder.layers[1]
    for expert in range(4):
        assert torch.equal(experts.w1[expert], network.fc1.weight.t())
        assert torch.equal(experts.w2[expert], network.fc2.weight.t())
    src, prev = tokens(2, 9), tokens(2, 7)
    model.eval(), dense.eval()
    with torch.no_grad():  # the gates' weights sum to 1, so that copies are the dense network
        ours, theirs = (m(src, src.ne(1).sum(1), prev)[0] for m in (model, dense))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"moe_ffn_embed_dim": 24}, {"moe_placement": "shazeer"}])
def test_other_experts_begin_as_initialised(build, caplog, options):
    dense, model = build(select_modules="none"), build(**MIXTURE | options)
    before = {name: value.clone() for name, value in model.state_dict().items() if ".moe" in name}
    started(model, dense)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert "start from their initialisation" in caplog.text and "has no selectors" in caplog.text
    assert torch.equal(model.encoder.layers[2].fc1.weight, dense.encoder.layers[2].fc1.weight)


def test_weights_that_have_everything_are_left_alone(build, caplog):
    model, other = build(kappa=0.3, **MIXTURE), build(**MIXTURE)
    with caplog.at_level(logging.WARNING):
        weights = started(other, model)
    assert not caplog.text and weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
