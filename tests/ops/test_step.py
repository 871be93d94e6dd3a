"""What follows a linear layer or an attention in a decoding step, against PyTorch's functions one after another."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import BACKENDS, tokens

from fairseq_lasformer import ops
from fairseq_lasformer.nn.layers import TransformerLayer


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("n_rows, width", [(1, 1), (5, 32), (3, 100), (2, 512), (2, 5000)])
def test_a_sum_and_its_norm_are_those_of_two_steps(backend, dtype, n_rows, width):
    torch.manual_seed(width)
    x, added = (torch.randn(n_rows, 2 * width, dtype=dtype)[:, ::2] + 3 for _ in range(2))  # not contiguous
    weight, bias = torch.randn(width, dtype=dtype), torch.randn(width, dtype=dtype)
    total, normed = ops.add_norm(x, added, weight, bias, 1e-5, backend)
    assert torch.equal(total, x + added)
    within = {torch.float32: 1e-5, torch.float64: 1e-9, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    expected = F.layer_norm((x + added).double(), (width,), weight.double(), bias.double(), 1e-5)
    torch.testing.assert_close(normed.double(), expected, rtol=within, atol=within)
    assert normed.dtype == dtype and normed.shape == (n_rows, width)


def test_a_product_with_relu_is_that_of_two_steps():
    x, weight, bias = torch.randn(5, 16), torch.randn(24, 16), torch.randn(24)
    torch.testing.assert_close(ops.linear_relu(x, weight, bias), F.relu(F.linear(x, weight, bias)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("widths", [(6,), (16, 16), (32, 32, 1), (20, 7, 5, 3)], ids=str)
def test_entries_are_written_to_their_slots_and_nowhere_else(backend, dtype, widths):
    """Parts of products, whose rows are not next to each other, in stores with room for more."""
    torch.manual_seed(1)
    n_items, beam, capacity = 3, 2, 9
    new = [torch.randn(n_items * beam, 4 * i + width, dtype=dtype)[:, 4 * i :] for i, width in enumerate(widths)]
    stores = [torch.randn(n_items + 1, capacity, width, dtype=dtype)[:n_items] for width in widths]
    newest = torch.tensor([7, 3])
    expected = [store.clone() for store in stores]
    for entries, store in zip(new, expected):
        for row, entry in enumerate(entries):
            store[row // beam, newest[row % beam]] = entry
    ops.append(new, newest, stores, backend)
    for store, right in zip(stores, expected):
        assert torch.equal(store, right)


@pytest.mark.parametrize("pre", [False, True], ids=["post-norm", "pre-norm"])
def test_steps_norm_what_passes_norm(build, pre, monkeypatch):
    """A step's fused norms are used, and give what layers compute in a pass."""
    calls, add_norm = [], ops.add_norm
    monkeypatch.setattr(ops, "add_norm", lambda *args: calls.append(len(args)) or add_norm(*args))
    model = build(0.5, "reference", encoder_normalize_before=pre, decoder_normalize_before=pre).eval()
    for name, parameter in model.named_parameters():
        if "layer_norm" in name:
            parameter.data += torch.randn_like(parameter) * 0.3
    src, prev, state = tokens(2, 9), tokens(2, 6), {}
    with torch.no_grad():
        encoded = model.encoder(src, src.ne(1).sum(1))
        full = model.decoder(prev, encoded)[0]
        assert not calls
        steps = [model.decoder(prev[:, : i + 1], encoded, incremental_state=state)[0][:, 0] for i in range(6)]
    torch.testing.assert_close(torch.stack(steps, 1), full, rtol=1e-4, atol=1e-5)
    layers = [layer for layer in model.decoder.layers if isinstance(layer, TransformerLayer)]
    assert len(calls) == 6 * (2 if pre else 3) * len(layers)


@pytest.mark.parametrize("pre", [False, True], ids=["post-norm", "pre-norm"])
def test_gradients_and_dropout_are_not_lost_in_steps(build, pre):
    layer = build(decoder_normalize_before=pre).decoder.layers[0].eval()
    norm, x, out = layer.final_layer_norm, torch.randn(4, 32, requires_grad=True), torch.randn(4, 32)
    for after in (layer.after(norm, x, out), *layer.between(norm, x, out, layer.encoder_attn_layer_norm)):
        (gradient,) = torch.autograd.grad(after.square().sum(), x, retain_graph=True)
        assert gradient.abs().sum() > 0
    layer.dropout_module.p, layer.dropout_module.retained = 0.5, True  # --retain-dropout
    with torch.no_grad():
        dropped = layer.between(norm, torch.zeros(4, 32), torch.ones(4, 32), layer.encoder_attn_layer_norm)[0]
    assert dropped.unique().numel() > 1
