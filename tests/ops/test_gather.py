"""Attention over gathered keys in training: against the definition, forward and backward."""

from __future__ import annotations

import pytest
import torch

from fairseq_lasformer import ops
from fairseq_lasformer.ops import AttentionMask, KeptKeys, KeyIndex, RowSample, reference
from fairseq_lasformer.ops.cpu import kernels, topk
from fairseq_lasformer.ops.cpu.gather import _kept_of_any
from fairseq_lasformer.ops.dropout import factors
from fairseq_lasformer.ops.types import DropoutMask, StraightThrough

pytestmark = [pytest.mark.skipif(kernels() is None, reason="no CPU kernels"), pytest.mark.usefixtures("instructions")]
B, H, S = 2, 3, 8
SHAPES = [(37, 37, True), (24, 41, False), (300, 300, True)]


def test_an_item_may_begin_behind_a_block_of_queries(monkeypatch):
    """Padding on the left that is longer than a block: its rows have no keys there."""
    monkeypatch.setitem(topk.BLOCK_ELEMENTS, "cpu", 16 * 100)
    padded = torch.zeros(B, 100, dtype=torch.bool)
    padded[1, :60] = True
    mask, sel = AttentionMask(padded, True), [torch.randn(B, 100, S) for _ in range(2)]
    kept = selected(sel, mask, 200_000)
    assert torch.equal(ops.kept_mask(kept, B, 100), ops.topk_mask(*sel, mask, 200_000))


def test_slots_of_no_keys_are_refused():
    q, none, row = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 0, 4), torch.zeros(1, 1, dtype=torch.int32)
    one = torch.ones(1, dtype=torch.int32)
    call = torch.ops.fairseq_lasformer.gather_forward
    with pytest.raises(RuntimeError, match="beyond the last key"):
        call(q, none, none, row, one, 0.0, 1)
    for p in (1.0, 2.0, -1.0, float("nan")):
        with pytest.raises(RuntimeError, match="probability"):
            call(q, q, q, row, one, p, 1)


def inputs(n_queries, n_keys, causal, padding, width=16, dtype=torch.float32):
    torch.manual_seed(n_queries + n_keys + width)
    padded = None
    if padding:
        padded = torch.zeros(B, n_keys, dtype=torch.bool)
        padded[1, slice(-6, None) if padding == "right" else slice(6)] = True
    mask = AttentionMask(padded, causal)

    def made(*shape):
        return torch.randn(shape).to(dtype).requires_grad_()

    tensors = [made(B, H, n, width) for n in (n_queries, n_keys, n_keys)]
    return mask, tensors, [made(B, n_queries, S), made(B, n_keys, S)], torch.randn(B, H, n_queries, width).to(dtype)


def selected(sel, mask, kappa):
    n_keys = sel[1].size(1)
    index = KeyIndex.over(torch.zeros(B, n_keys, dtype=torch.bool) if mask.key_padding is None else mask.key_padding)
    return ops.topk_slots(*sel, index, mask, kappa)


@pytest.mark.parametrize("padding", ["", "right", "left"])
@pytest.mark.parametrize(("n_queries", "n_keys", "causal"), SHAPES)
@pytest.mark.parametrize("kappa", [50_000, 400_000, 1_000_000])
def test_slots_are_the_keys_of_the_mask(n_queries, n_keys, causal, padding, kappa, monkeypatch):
    mask, _, sel, _ = inputs(n_queries, n_keys, causal, padding)
    kept = selected(sel, mask, kappa)
    expected = ops.topk_mask(*sel, mask, kappa)
    assert torch.equal(ops.kept_mask(kept, B, n_keys), expected)
    assert torch.equal(kept.counts.view(B, -1), expected.sum(-1).int())
    sample = RowSample(2, 5)
    assert torch.equal(ops.kept_mask(kept, B, n_keys, sample), expected[:, 2::5])


@pytest.mark.parametrize("padding", ["", "right", "left"])
@pytest.mark.parametrize(("n_queries", "n_keys", "causal"), SHAPES)
@pytest.mark.parametrize(("width", "kappa"), [(16, 200_000), (64, 50_000), (20, 1_000_000)])
@pytest.mark.parametrize("bounded", [False, True])
def test_gathered_attention_is_the_definition(n_queries, n_keys, causal, padding, width, kappa, bounded, monkeypatch):
    mask, (q, k, v), sel, d_out = inputs(n_queries, n_keys, causal, padding, width)
    kept = selected(sel, mask, kappa)
    out = ops.gathered_attention(q, k, v, kept, mask, StraightThrough(*sel, bounded))
    found = torch.autograd.grad((out * d_out).sum(), (q, k, v, *sel))
    double = [t.detach().double().requires_grad_() for t in (q, k, v, *sel)]
    keep = ops.kept_mask(kept, B, n_keys)
    whole = reference.selected_attention(*double[:3], keep, mask, StraightThrough(*double[3:], bounded))
    expected = torch.autograd.grad((whole * d_out.double()).sum(), double)
    torch.testing.assert_close(out.double(), whole, rtol=1e-4, atol=1e-5)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


def test_only_the_selectors_gradient_is_sampled(monkeypatch):
    mask, (q, k, v), sel, d_out = inputs(300, 300, True, "right")
    kept = selected(sel, mask, 100_000)

    def gradients(sample):
        out = ops.gathered_attention(q, k, v, kept, mask, StraightThrough(*sel, sample=sample))
        return torch.autograd.grad((out * d_out).sum(), (q, k, v, *sel))

    whole = gradients(ops.EVERY_ROW)
    parts = [gradients(RowSample(offset, 4)) for offset in range(4)]
    for part in parts:
        assert all(torch.equal(a, b) for a, b in zip(part[:3], whole))
    for i in (3, 4):
        torch.testing.assert_close(sum(part[i] for part in parts) / 4, whole[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gradient", [False, True])
def test_dropout_drops_the_same_weights_in_both_passes(gradient, monkeypatch):
    p = 0.4
    mask, (q, k, v), sel, d_out = inputs(37, 37, True, "right")
    kept = selected(sel, mask, 300_000)
    torch.manual_seed(5)
    seed = int(torch.randint(2**31, (1,)))
    torch.manual_seed(5)
    out = ops.gathered_attention(q, k, v, kept, mask, StraightThrough(*sel) if gradient else None, p)
    rows = torch.arange(B * H * 37).view(B, H, 37, 1)
    drop = factors(DropoutMask(p, seed), rows, torch.arange(37))
    assert 0.5 < (drop > 0).float().mean() < 0.7 and drop.max() == pytest.approx(1 / (1 - p))
    keep = ops.kept_mask(kept, B, 37)[:, None]
    weights = torch.matmul(q, k.transpose(2, 3)).mul(0.25).masked_fill(~keep, float("-inf"))
    expected = torch.matmul(weights.softmax(-1).nan_to_num() * drop, v)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    tensors = (q, k, v)
    for a, b in zip(
        torch.autograd.grad((out * d_out).sum(), tensors), torch.autograd.grad((expected * d_out).sum(), tensors)
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_dropout_of_the_straight_through_gradient(monkeypatch):
    """If every key is kept, the gradient of the mask is known: that of the weights before normalisation."""
    mask, (q, k, v), sel, d_out = inputs(24, 41, False, "")
    kept = selected(sel, mask, 1_000_000)
    torch.manual_seed(5)
    seed = int(torch.randint(2**31, (1,)))
    torch.manual_seed(5)
    out = ops.gathered_attention(q, k, v, kept, mask, StraightThrough(*sel), 0.3)
    found = torch.autograd.grad((out * d_out).sum(), sel)
    drop = factors(DropoutMask(0.3, seed), torch.arange(B * H * 24).view(B, H, 24, 1), torch.arange(41))
    soft = (torch.matmul(sel[0], sel[1].transpose(1, 2)) * S**-0.5).softmax(-1)
    weights = torch.matmul(q, k.transpose(2, 3)).mul(0.25).exp() * (1 + soft - soft.detach())[:, None]
    expected = torch.matmul(weights / weights.sum(-1, keepdim=True) * drop, v)
    for a, b in zip(found, torch.autograd.grad((expected * d_out).sum(), sel)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_bfloat16_is_close_and_runs_are_equal(monkeypatch):
    mask, tensors, sel, d_out = inputs(300, 300, True, "", 64, torch.bfloat16)
    kept = selected(sel, mask, 50_000)

    def run():
        out = ops.gathered_attention(*tensors, kept, mask, StraightThrough(*sel, sample=RowSample(1, 3)))
        return [out, *torch.autograd.grad((out * d_out).sum(), (*tensors, *sel))]

    first, second = run(), run()
    assert all(torch.equal(a, b) and a.dtype == torch.bfloat16 for a, b in zip(first, second))
    exact = [t.detach().float().requires_grad_() for t in tensors]
    out = ops.gathered_attention(*exact, kept, mask)
    expected = [out, *torch.autograd.grad((out * d_out.float()).sum(), exact)]
    for a, b in zip(first, expected):
        torch.testing.assert_close(a.float(), b, rtol=0.05, atol=0.05)


def test_wrong_arguments_are_refused():
    q = torch.randn(1, 1, 4, 8)
    slots, kept = torch.zeros(4, 2, dtype=torch.int32), torch.full((4,), 2, dtype=torch.int32)
    forward = torch.ops.fairseq_lasformer.gather_forward
    assert forward(q, q, q, slots, kept, 0.0, 0)[0].shape == (1, 4, 1, 8)
    for arguments, reason in (
        ((q, q, q, slots + 4, kept), "beyond the last key"),
        ((q, q, q, slots - 1, kept), "beyond the last key"),
        ((q, q, q, slots, kept + 1), "number of slots"),
        ((q, q, q[..., :4], slots, kept), "keys' shape"),
        ((q.double(), q.double(), q.double(), slots, kept), "float32 or bfloat16"),
        ((q, q, q, slots[:2], kept), "slots: expected"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            forward(*arguments, 0.0, 0)
    empty = KeptKeys(slots, torch.zeros(4, dtype=torch.int32))
    assert ops.gathered_attention(q, q, q, empty, AttentionMask(None, False)).eq(0).all()


@pytest.mark.parametrize("with_slots", [False, True])
def test_kept_keys_of_a_mask_are_those_of_the_mask_in_order(with_slots):
    mask = torch.rand(9, 40) < torch.linspace(0, 1, 9)[:, None]  # one row keeps nothing, one nearly all
    slots = torch.stack([torch.randperm(100)[:40] for _ in range(9)]) if with_slots else None
    kept = ops.kept_of(mask, slots)
    expected = [(torch.arange(40) if slots is None else slots[r])[mask[r]].tolist() for r in range(9)]
    assert kept.counts.tolist() == mask.sum(1).tolist() and kept.indices.dtype == torch.int32
    wide = _kept_of_any(mask, kept.counts, slots)  # as on a GPU
    for indices in (kept.indices, wide):
        for row, its in zip(indices.tolist(), expected):
            assert row[: len(its)] == its and set(row[len(its) :]) <= {-1}
