"""Supervision and straight-through gradient from a sample of the queries."""

from __future__ import annotations

import pytest
import torch

from fairseq_lasformer import ops
from fairseq_lasformer.ops import AttentionMask, RowSample, StraightThrough, Teachers, blocks, reference

B, H, D, S = 2, 2, 8, 4
SHAPES = [(37, 37, True), (24, 41, False), (16, 16, True)]


def inputs(n_queries: int, n_keys: int, causal: bool, padded: bool):
    torch.manual_seed(n_queries + n_keys)

    def made(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    padding = None
    if padded:
        padding = torch.zeros(B, n_keys, dtype=torch.bool)
        padding[1, -5:] = True
    mask = AttentionMask(padding, causal)
    sel = made(B, n_queries, S), made(B, n_keys, S)
    heads = [made(B, H, n, D) for n in (n_queries, n_queries, n_keys, n_keys)]
    return mask, sel, heads, made(B, H, n_keys, D)


def gradients(loss, tensors):
    return torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys", "causal"), SHAPES)
@pytest.mark.parametrize("kl", ["forward", "reverse"])
@pytest.mark.parametrize("implementation", [ops, reference])
def test_the_mean_over_all_offsets_is_the_whole(n_queries, n_keys, causal, padded, kl, implementation, monkeypatch):
    monkeypatch.setitem(blocks.BLOCK_ELEMENTS, "cpu", 16 * B * H * n_keys)  # several blocks
    mask, sel, (q1, q2, k1, k2), _ = inputs(n_queries, n_keys, causal, padded)
    keep = ops.topk_mask(*sel, mask, 300_000)
    query_padding = mask.key_padding if causal else None

    def supervise(sample):
        teachers = Teachers([q1, q2], [k1, k2], query_padding, kl)
        found = implementation.supervise(*sel, teachers, sample.of(keep, 1), mask, sample)
        return found, gradients(found.kl, (*sel, q1, q2, k1, k2))

    whole, expected = supervise(ops.EVERY_ROW)
    for stride in (3, 5):
        parts = [supervise(RowSample(offset, stride)) for offset in range(stride)]
        assert all(part.queries == whole.queries for part, _ in parts)
        mean = sum(part.kl for part, _ in parts) / stride
        torch.testing.assert_close(mean, whole.kl, rtol=1e-12, atol=1e-12)
        for tensor, each in zip(expected, zip(*(found for _, found in parts))):
            torch.testing.assert_close(sum(each) / stride, tensor, rtol=1e-12, atol=1e-12)
        assert all(0 < part.mass <= part.queries and 0 < part.recall <= part.queries for part, _ in parts)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys", "causal"), SHAPES)
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("implementation", [ops, reference])
def test_only_the_selectors_gradient_is_sampled(
    n_queries, n_keys, causal, padded, bounded, dropout_p, implementation, monkeypatch
):
    monkeypatch.setitem(blocks.BLOCK_ELEMENTS, "cpu", 16 * B * H * n_keys)
    mask, sel, (q, _, k, _), v = inputs(n_queries, n_keys, causal, padded)
    keep = ops.topk_mask(*sel, mask, 300_000)
    d_out = torch.randn(q.shape, dtype=torch.float64)

    def attend(sample):
        torch.manual_seed(7)  # the same dropout
        through = StraightThrough(*sel, bounded, sample)
        out = implementation.selected_attention(q, k, v, keep, mask, through, dropout_p)
        return out, gradients((out * d_out).sum(), (q, k, v, *sel))

    whole, expected = attend(ops.EVERY_ROW)
    parts = [attend(RowSample(offset, 4)) for offset in range(4)]
    for out, found in parts:
        assert torch.equal(out, whole)
        for a, b in zip(found[:3], expected):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for tensor, each in zip(expected[3:], zip(*(found[3:] for _, found in parts))):
        assert tensor.abs().max() > 0
        torch.testing.assert_close(sum(each) / 4, tensor, rtol=1e-12, atol=1e-12)
