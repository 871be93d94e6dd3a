"""The selector's supervision against its definition, forward and backward."""

from __future__ import annotations

import pytest
import torch
from helpers import SHAPES, B, D, case

from fairseq_lasformer import ops
from fairseq_lasformer.ops import AttentionMask, Teachers, reference


@pytest.mark.parametrize("shape", [s.values for s in SHAPES], ids=[s.id for s in SHAPES])
@pytest.mark.parametrize("kl", ["forward", "reverse"])
@pytest.mark.parametrize("target", ["live", "detached"])
def test_supervision_equals_its_definition_forward_and_backward(shape, kl, target, small_blocks):
    q, k, _, sel_q, sel_k, mask, allowed, _ = case(*shape)
    q2, k2, _, *_ = case(*shape)
    padding = allowed.key_padding if shape[2] else None
    inputs, teachers = (sel_q, sel_k, q, q2, k, k2), Teachers([q, q2], [k, k2], padding, kl, target)
    expected = reference.supervise(sel_q, sel_k, teachers, mask, allowed)
    seen = ops.supervise(sel_q, sel_k, teachers, mask, allowed)
    for a, b in zip(seen, expected):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(s.kl * 0.7, inputs, allow_unused=True) for s in (seen, expected)]
    for i, (a, b) in enumerate(zip(*grads)):
        if target == "detached" and i > 1:
            assert a is None and b is None
        else:
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kl", ["forward", "reverse"])
@pytest.mark.parametrize("target", ["live", "detached"])
def test_supervision_gradcheck(kl, target, small_blocks):
    q, k, _, sel_q, sel_k, mask, allowed, _ = case(9, 9, True, None)

    def loss(sel_q, sel_k, q, k):
        return ops.supervise(sel_q, sel_k, Teachers([q], [k], None, kl, target), mask, allowed).kl

    assert torch.autograd.gradcheck(loss, (sel_q, sel_k, *((q, k) if target == "live" else (q.detach(), k.detach()))))


def test_supervision_is_zero_where_selector_and_attention_agree():
    x, y = torch.randn(B, 11, D, dtype=torch.double), torch.randn(B, 13, D, dtype=torch.double)
    allowed, mask = AttentionMask(None, False), torch.ones(B, 11, 13, dtype=torch.bool)
    for kl in ("forward", "reverse"):
        given = ops.supervise(x, y, Teachers([x[:, None]], [y[:, None]], None, kl), mask, allowed)
        assert abs(float(given.kl)) < 1e-10
        torch.testing.assert_close(given.mass / given.queries, torch.ones((), dtype=torch.double))


@pytest.mark.parametrize("kl", ["forward", "reverse"])
def test_half_precision_keeps_the_supervisions_gradient(kl):
    """4,096 keys, broad attention: every term is far below half precision's smallest normal number."""
    torch.manual_seed(5)
    shapes = [(1, 256, 16), (1, 4096, 16), (1, 2, 256, 16), (1, 2, 4096, 16)]
    exact = [(torch.randn(*s) * 0.4).half().double().requires_grad_() for s in shapes]
    mask, allowed = torch.ones(1, 256, 4096, dtype=torch.bool), AttentionMask(None, False)

    def gradients(sel_q, sel_k, q, k):
        given = ops.supervise(sel_q, sel_k, Teachers([q], [k], None, kl), mask, allowed)
        return torch.autograd.grad(given.kl * (128.0 * 0.01), (sel_q, sel_k, q, k))

    half = gradients(*(t.detach().half().requires_grad_() for t in exact))
    for got, want in zip(half, gradients(*exact)):
        assert got.dtype == torch.float16
        assert float((got.double() - want).norm() / want.norm()) < 0.01
