"""Models that start from the weights of a dense one."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers import log_lines, state, tokens, train

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.ops import KAPPA_ONE
from fairseq_lasformer.plugin.config import LasformerConfig, module_config
from fairseq_lasformer.plugin.placement import group_starts
from fairseq_lasformer.plugin.training.upcycling import mean_head, stretched

MIXTURE = {"moe_experts": 4, "moe_top_k": 2, "moe_layers": "2", "moe_ffn_embed_dim": 48}


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
    with torch.no_grad():  # the gates' weights sum to 1, so copies equal the dense network
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


def test_a_wide_enough_selector_scores_as_the_mean_head_does():
    n_heads, head, width, other = 4, 3, 12, 10
    query, key = torch.randn(n_heads * head, width), torch.randn(n_heads * head, other)
    x, y = torch.randn(5, width), torch.randn(7, other)
    q, k = ((t @ w.T).view(-1, n_heads, head).transpose(0, 1) for t, w in ((x, query), (y, key)))
    expected = (q @ k.mT / head**0.5).mean(0)
    for dim in (10, 16):
        mine, its = mean_head(query, key, n_heads, dim)
        assert mine.shape == (dim, width) and its.shape == (dim, other)
        torch.testing.assert_close((x @ mine.T) @ (y @ its.T).T / dim**0.5, expected, rtol=1e-4, atol=1e-4)
    mine, its = mean_head(query, key, n_heads, 3)  # the best of rank 3: none is nearer to the product
    whole, narrow = query.T @ key / (n_heads * head**0.5), mine.T @ its / 3**0.5
    left, values, right = torch.linalg.svd(whole)
    torch.testing.assert_close(narrow, left[:, :3] @ values[:3].diag() @ right[:3], rtol=1e-3, atol=1e-4)


def test_selectors_begin_as_the_mean_heads_of_their_groups(build, caplog):
    dense, model = build(select_modules="none"), build(select_groups="encoder.0,encoder.1,decoder.0")
    started(model, dense)
    assert "start as the mean heads of their groups" in caplog.text
    layers = list(dense.encoder.layers)
    for selector, group in (
        (model.encoder.layers[0].self_attn.selector, layers[:1]),
        (model.encoder.layers[1].self_attn.selector, layers[1:]),
        (model.decoder.layers[0].encoder_attn.selector, dense.decoder.layers),
    ):
        attentions = [getattr(layer, "encoder_attn", layer.self_attn) for layer in group]
        query, key = (torch.cat([getattr(a, f"{n}_proj").weight for a in attentions]) for n in "qk")
        heads = attentions[0].num_heads * len(attentions)
        expected = mean_head(query.detach(), key.detach(), heads, selector.q_proj.out_features)
        torch.testing.assert_close((selector.q_proj.weight, selector.k_proj.weight), expected)
        assert int(selector.kappa) == KAPPA_ONE


def test_learned_positions_are_stretched(build, caplog):
    table = torch.randn(12, 4)
    longer = stretched(table, 22, 2)
    assert torch.equal(longer[:2], table[:2])  # positions are not
    torch.testing.assert_close(longer[[2, 21]], table[[2, 11]])
    assert (longer[2:].diff(dim=0).abs() <= table[2:].diff(dim=0).abs().max(0).values).all()
    short, long = (build(select_modules="none", encoder_learned_pos=True, max_source_positions=n) for n in (20, 50))
    started(long, short)
    assert "the 20 learned positions are stretched to 50" in caplog.text
    assert torch.equal(long.encoder.embed_positions.weight[2], short.encoder.embed_positions.weight[2])


def test_groups_may_have_any_sizes(build):
    """Named groups of equal size are those of --select-share, to the bit."""
    src, prev = tokens(2, 30), tokens(2, 20)
    named = "encoder.0,encoder.2,decoder.0,decoder.2"
    outs = [
        build(kappa=0.3, encoder_layers=4, decoder_layers=4, **options).eval()(src, src.ne(1).sum(1), prev)[0]
        for options in ({"select_share": 2}, {"select_groups": named})
    ]
    assert torch.equal(*outs)
    model = build(encoder_layers=4, decoder_layers=4, select_groups="decoder.0, encoder.3,encoder.0,decoder.1")
    assert [len(group) for _, group in model.encoder.layers.groups()] == [3, 1]
    assert [len(group) for _, group in model.decoder.layers.groups()] == [1, 3]
    assert [name for name, _ in model.patterns()] == [
        "encoder.0", "encoder.1", "decoder.0", "decoder.1", "cross.0", "cross.1"
    ]  # fmt: skip
    assert group_starts(model.cfg, "cross") == (0, 1)


@pytest.mark.parametrize(
    "groups, message",
    [
        ("encoder.0", "lacks decoder.0"),
        ("encoder.1,decoder.0", "lacks encoder.0"),
        ("encoder.0,decoder.0,decoder.9", "no layer decoder.9"),
        ("cross.0", "no layer cross.0"),
    ],
)
def test_groups_that_cannot_be_are_refused(groups, message):
    with pytest.raises(InputError, match=message):
        module_config(LasformerConfig(select_groups=groups))


@pytest.mark.command
def test_selectors_can_be_trained_alone(prepared, tmp_path):
    """And kappa waits for the end of its warm-up."""
    train(prepared, tmp_path / "dense", "--select-modules", "none", "--max-update", 2)
    start = ["--finetune-from-model", tmp_path / "dense/checkpoint_last.pt"]
    alone = ["--select-only", "--select-gradient", "none", "--sparsity-warmup", 3, "--max-update", 5]
    done = train(prepared, tmp_path / "alone", *start, *alone)
    before, after = (state(tmp_path / name)["model"] for name in ("dense", "alone"))
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert [round(float(line["kappa"]), 3) for line in log_lines(done)] == [
        1.0,
        1.0,
        1.0,
        1.0,
        0.99,
    ]  # as the update begins
    other = state(tmp_path / "alone")["cfg"]["model"]
    assert other["select_only"]
    moved = [name for name in after if ".selector." in name and name.endswith("weight")]
    fresh = train(prepared, tmp_path / "fresh", *start, *alone[:-1], 1)
    assert moved and "mean heads" in fresh.stdout + fresh.stderr
    assert all(not torch.equal(after[name], state(tmp_path / "fresh")["model"][name]) for name in moved)
    refused = train(prepared, tmp_path / "none", "--select-modules", "none", "--select-only", check=False)
    assert refused.returncode and "no attention has a learned selector" in refused.stderr
