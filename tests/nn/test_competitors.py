"""Performer, RFA, Linformer and Luna: their equations, passes against steps, costs and refusals."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_beams_decode_alike, assert_steps_are_a_full_pass, tokens

from fairseq_lasformer.analysis import cost
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.attentions import ATTENTIONS, AttentionOptions
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.others.prefix_sums import prefix_products
from fairseq_lasformer.ops import AttentionMask
from fairseq_lasformer.plugin.config import LasformerConfig, module_config

OPTIONS = AttentionOptions(16, 2, 16, 16, 16)
SPECS = {"performer": "features=32", "rfa": "features=64", "luna": "rows=4", "linformer": "rows=4,length=64"}
CAUSAL = [name for name in SPECS if ATTENTIONS[name].causal]
NOT_CAUSAL = "encoder,cross"


def attention(name: str, argument: str = ""):
    torch.manual_seed(5)
    return ATTENTIONS[name].build(argument or SPECS[name], OPTIONS).eval()


def options(name: str) -> dict[str, str]:
    return {"select_pattern": f"{name}:{SPECS[name]}"} | ({} if name in CAUSAL else {"select_modules": NOT_CAUSAL})


def projected(layer, x):
    return (layer.heads(p(x)) for p in (layer.q_proj, layer.k_proj, layer.v_proj))


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_prefix_products_by_their_definition(n):
    a, b, c = torch.randn(2, 3, n, 4), torch.randn(2, 3, n, 4), torch.randn(2, 3, n, 5)
    expected = torch.einsum("...tm,...tme->...te", a, torch.einsum("...jm,...je->...jme", b, c).cumsum(2))
    torch.testing.assert_close(prefix_products(a, b, c), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["performer", "rfa"])
def test_random_features_estimate_their_kernel_without_bias(name):
    """The mean over many draws is the kernel, up to a few standard errors."""
    q, k = torch.randn(1, 2, 3, 8) / 2, torch.randn(1, 2, 4, 8) / 2
    found = []
    for seed in range(400):
        torch.manual_seed(seed)
        layer = ATTENTIONS[name].build("features=16", OPTIONS)
        if name == "rfa":
            a, b, scale = layer.query_features(q), layer.key_features(k)[0], 1 / 16
        else:  # query_features leaves out a factor of the query; key_features returns the factor that it leaves out
            x = q * 8**-0.25
            a = (x @ layer.random.T - x.square().sum(-1, keepdim=True) / 2).exp()
            phi, log = layer.key_features(k)
            b, scale = phi * log.exp(), 1 / 16
            ratio = a / layer.query_features(q)
            assert torch.allclose(ratio, ratio[..., :1].expand_as(ratio), rtol=1e-3)
        found.append((a @ b.transpose(2, 3) * scale).detach())
    found = torch.stack(found).double()
    if name == "rfa":
        apart = F.normalize(q, dim=-1)[:, :, :, None] - F.normalize(k, dim=-1)[:, :, None]
        kernel = (-apart.square().sum(-1) / 2).exp()
    else:
        kernel = (q @ k.transpose(2, 3) / math.sqrt(8)).exp()
    error = (found.mean(0) - kernel).abs() / (found.std(0) / math.sqrt(len(found)))
    assert float(error.max()) < 4.5, error


def test_many_features_come_near_dense_attention():
    layer = attention("performer", "features=60000")
    x = torch.randn(2, 30, 16) / 2
    for causal in (True, False):
        q, k, v = projected(layer, x)
        dense = layer.joined(F.scaled_dot_product_attention(q, k, v, is_causal=causal))
        torch.testing.assert_close(layer(Pass(x, x, AttentionMask(None, causal))).out, dense, rtol=0, atol=0.02)


def test_linformer_by_its_equation():
    layer = attention("linformer")
    x, padding = torch.randn(2, 20, 16), torch.zeros(2, 20, dtype=torch.bool)
    padding[1, :6] = True
    out = layer(Pass(x, x, AttentionMask(padding, False))).out
    for b, first in ((0, 0), (1, 6)):
        n = 20 - first
        q, k, v = projected(layer, x[b : b + 1, first:])
        rows, values = layer.key_rows[:, :n] @ k, layer.value_rows[:, :n] @ v
        expected = layer.joined((q @ rows.transpose(2, 3) / math.sqrt(8)).softmax(-1) @ values)
        torch.testing.assert_close(out[b, first:], expected[0], rtol=1e-4, atol=1e-5)


def test_luna_by_its_equations():
    layer = attention("luna")
    x = torch.randn(1, 9, 16)
    q, k, v = projected(layer, x)
    packed = (layer.rows @ k.transpose(2, 3) / math.sqrt(8)).softmax(-1) @ v
    both = layer.joined((q @ packed.transpose(2, 3) / math.sqrt(8)).softmax(-1) @ packed)
    torch.testing.assert_close(layer(Pass(x, x, AttentionMask(None, False))).out, both, rtol=1e-4, atol=1e-5)
    a = F.softplus(k @ layer.rows.transpose(2, 3) / math.sqrt(8))
    rows = []
    for t in range(9):
        read = sum(k[:, :, j, :, None] * a[:, :, j, None] for j in range(t + 1)) / (t + 1)
        weights = ((q[:, :, t, None] @ read) / math.sqrt(8)).softmax(-1)
        mixed = sum(a[:, :, j, :, None] * v[:, :, j, None] for j in range(t + 1)) / (t + 1)
        rows.append(weights @ mixed)
    causal = layer.joined(torch.cat(rows, 2))
    torch.testing.assert_close(layer(Pass(x, x, AttentionMask(None, True))).out, causal, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("padding", [{"pad_left": (0, 6)}, {"pad_right": (0, 6)}])
def test_steps_are_a_full_pass(build, name, padding):
    model = build(**options(name)).eval()
    assert_steps_are_a_full_pass(model, tokens(2, 15, **padding), tokens(2, 70))


def test_long_keys_overflow_nowhere(build):
    """The factor of a key, exp(-|k|^2 / 2), is beyond the range of floats."""
    model = build(**options("performer")).eval()
    for layer in model.decoder.layers:
        layer.self_attn.k_proj.weight.data.mul_(20)
    assert_steps_are_a_full_pass(model, tokens(2, 15), tokens(2, 20))


@pytest.mark.parametrize("name", SPECS)
def test_beams_decode_as_one_pass_reads(build, name):
    model = build(**options(name)).eval()
    assert_beams_decode_alike(model, model)
    model.make_generation_fast_()
    assert model.decoder.packed is None


@pytest.mark.parametrize("name", SPECS)
def test_padding_changes_nothing_and_every_weight_learns(build, name):
    model = build(**options(name)).train()
    src, prev = tokens(2, 30, pad_left=(0, 9)), tokens(2, 20)
    out = model(src, None, prev)[0]
    out.logsumexp(-1).square().sum().backward()
    assert all(
        p.grad is not None and float(p.grad.abs().max()) > 0
        for n, p in model.named_parameters()
        if "attn" in n and "bias" not in n
    )
    model.eval()
    alone = model(src[1:, 9:], None, prev[1:])[0]
    torch.testing.assert_close(model(src, None, prev)[0][1:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_what_follows_changes_no_earlier_position(build, name):
    model = build(**options(name)).eval()
    src, prev = tokens(1, 20), tokens(1, 30)
    other = prev.clone()
    other[:, 20:] = tokens(1, 10)
    a, b = model(src, None, prev)[0], model(src, None, other)[0]
    torch.testing.assert_close(a[:, :20], b[:, :20], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(a[:, 20:], b[:, 20:])


@pytest.mark.parametrize(("name", "kept"), [("performer", 32), ("rfa", 128), ("luna", 8), ("linformer", 4)])
def test_costs_are_counted_in_keys(name, kept):
    cfg = module_config(LasformerConfig(**options(name)))
    own = cost.module_cost("encoder", cfg, cost.module_patterns("encoder", cfg, []), 4096)
    assert own.kappa == pytest.approx(kept / 4096)
    assert own.ratio < 0.1


@pytest.mark.parametrize(
    "spec", ["performer", "performer:rows=3", "luna:rows=0", "linformer:length=5", "rfa:features=x"]
)
def test_mistakes_are_told_in_one_line(build, spec):
    with pytest.raises(InputError, match=f"--select-pattern {spec}:{{0,2}} "):
        build(select_pattern=spec, select_modules=NOT_CAUSAL)


def test_linformer_refuses_what_it_cannot_do(build):
    with pytest.raises(InputError, match="not for the decoder's self-attention"):
        build(select_pattern="linformer:rows=4")
    model = build(select_pattern="linformer:rows=4,length=16", select_modules=NOT_CAUSAL).eval()
    with pytest.raises(InputError, match="the text has 17 tokens; this model reads up to 16"):
        model(tokens(1, 17), None, tokens(1, 5))
    model(tokens(1, 20, pad_left=(4,)), None, tokens(1, 5))
