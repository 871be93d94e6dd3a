"""The blocked operations against their definitions, and the definitions against brute force."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import SHAPES, S, case

from fairseq_lasformer import ops
from fairseq_lasformer.ops import KAPPA_ONE, AttentionMask, StraightThrough, Teachers, reference


@pytest.mark.parametrize("shape", [s.values for s in SHAPES], ids=[s.id for s in SHAPES])
@pytest.mark.parametrize("gradient", ["straight-through", "bounded", "none"])
def test_selected_attention_equals_its_definition_forward_and_backward(shape, gradient, small_blocks):
    q, k, v, sel_q, sel_k, mask, allowed, _ = case(*shape)
    through = None if gradient == "none" else StraightThrough(sel_q, sel_k, gradient != "straight-through")
    inputs = (q, k, v) if gradient == "none" else (q, k, v, sel_q, sel_k)
    expected = reference.selected_attention(q, k, v, mask, allowed, through)
    seen = ops.selected_attention(q, k, v, mask, allowed, through)
    torch.testing.assert_close(seen, expected, rtol=1e-12, atol=1e-12)
    assert torch.isfinite(seen).all()
    d_out = torch.randn_like(seen)
    for a, b in zip(torch.autograd.grad(seen, inputs, d_out), torch.autograd.grad(expected, inputs, d_out)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bounded", [False, True], ids=["straight-through", "bounded"])
def test_straight_through_gradient_follows_its_formula(bounded):
    """Eq 3 differentiated by hand: A = exp(S) (M + A_s - sg(A_s)) / Sum; bounded, no key weighs more than 1 in it."""
    q, k, v, sel_q, sel_k, mask, allowed, full = case(13, 13, True, None)
    with torch.no_grad():
        q *= 3  # so that some keys outside the selection outweigh the kept ones
    out = ops.selected_attention(q, k, v, mask, allowed, StraightThrough(sel_q, sel_k, bounded))
    d_out = torch.randn_like(out)
    seen = torch.autograd.grad(out, (sel_q,), d_out)[0]
    scores = reference.attention_scores(q, k)
    kept = scores.masked_fill(~mask[:, None], float("-inf")).logsumexp(-1, keepdim=True)
    delta = (d_out * out).sum(-1, keepdim=True)
    weights = (scores - kept).exp()
    assert float(weights.masked_fill(~full[:, None], 0.0).max()) > 1.5
    weights = weights.clamp(max=1.0) if bounded else weights
    d_mask = (weights * (d_out @ v.transpose(2, 3) - delta)).sum(1).masked_fill(~full, 0.0)
    soft = (sel_q @ sel_k.transpose(1, 2) * S**-0.5).masked_fill(~full, float("-inf")).softmax(-1)
    d_scores = soft * (d_mask - (soft * d_mask).sum(-1, keepdim=True))
    torch.testing.assert_close(seen, d_scores @ sel_k * S**-0.5, rtol=1e-10, atol=1e-12)


def test_the_literal_gradient_is_what_autograd_makes_of_eq_3():
    q, k, v, sel_q, sel_k, mask, allowed, full = case(13, 13, True, None)
    scores = reference.attention_scores(q, k).masked_fill(~full[:, None], float("-inf"))
    soft = (sel_q @ sel_k.transpose(1, 2) * S**-0.5).masked_fill(~full, float("-inf")).softmax(-1)
    weights = scores.exp() * (mask.double() + soft - soft.detach())[:, None]
    literal = weights / weights.sum(-1, keepdim=True) @ v
    seen = ops.selected_attention(q, k, v, mask, allowed, StraightThrough(sel_q, sel_k, False))
    d_out = torch.randn_like(seen)
    inputs = (q, k, v, sel_q, sel_k)
    for a, b in zip(torch.autograd.grad(seen, inputs, d_out), torch.autograd.grad(literal, inputs, d_out)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_missed_key_far_above_the_kept_ones_leaves_the_literal_gradient_finite():
    q, k, v, sel_q, sel_k, mask, allowed, _ = case(37, 37, False, None, torch.float)
    with torch.no_grad():
        q *= 400
    out = ops.selected_attention(q, k, v, mask, allowed, StraightThrough(sel_q, sel_k, False))
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.sum(), (q, k, v, sel_q, sel_k)))


def test_kappa_one_is_dense_attention():
    q, k, v, sel_q, sel_k, _, _, _ = case(37, 37, True, None)
    mask = ops.topk_mask(sel_q, sel_k, AttentionMask(None, True), KAPPA_ONE)
    out = ops.selected_attention(q, k, v, mask, AttentionMask(None, True))
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True))


@pytest.mark.sweep
def test_attention_dropout_is_the_same_in_forward_and_backward(small_blocks):
    q, k, v, sel_q, sel_k, mask, allowed, _ = case(13, 11, False, "left")

    def f(q, k, v):
        torch.manual_seed(5)
        return ops.selected_attention(q, k, v, mask, allowed, StraightThrough(sel_q.detach(), sel_k.detach()), 0.3)

    assert torch.autograd.gradcheck(f, (q, k, v))
    kept = ops.selected_attention(q, k, torch.ones_like(v), mask, allowed, dropout_p=0.3)[1, :, :, 0].detach()
    assert 0.7 < float(kept.mean()) < 1.3 and float(kept.std()) > 0.05


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_half_precision_masks_stay_finite(dtype):
    q, k, v, sel_q, sel_k, mask, allowed, full = case(23, 23, True, "all", dtype=dtype)
    out = ops.selected_attention(q * 6, k * 6, v, mask, allowed, StraightThrough(sel_q, sel_k))
    given = ops.supervise(sel_q, sel_k, Teachers([q * 6], [k * 6]), mask, allowed)
    grads = torch.autograd.grad(out.float().sum() + given.kl, (q, k, v, sel_q, sel_k))
    assert all(torch.isfinite(t).all() for t in (out, given.kl, *grads))
    assert given.kl.dtype == torch.float32
