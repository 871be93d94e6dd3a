"""The blocked operations against their definitions, and the definitions against brute force."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lasformer import ops
from fairseq_lasformer.ops import KAPPA_ONE, Allowed, blocks, reference

B, H, D, S = 2, 3, 4, 3


@pytest.fixture(params=[16, 64], ids=["many-blocks", "fewer-blocks"])
def small_blocks(request, monkeypatch):
    monkeypatch.setitem(blocks.BLOCK_ELEMENTS, "cpu", request.param * B * H)


def case(n_queries: int, n_keys: int, causal: bool, padding: str | None, dtype=torch.double):
    def leaf(*shape):
        return torch.randn(*shape, dtype=dtype, requires_grad=True)

    key_padding = None
    if padding:
        key_padding = torch.zeros(B, n_keys, dtype=torch.bool)
        if padding == "left":
            key_padding[0, :5] = True
        elif padding == "right":
            key_padding[1, -4:] = True
        else:
            key_padding[1] = True
    allowed = Allowed(key_padding, causal)
    projections = [leaf(B, H, n, D) for n in (n_queries, n_keys, n_keys)]
    selector = [leaf(B, n, S) for n in (n_queries, n_keys)]
    mask = ops.select_mask(*selector, allowed, 300_000)
    return *projections, *selector, mask, allowed, allowed.full(B, n_queries, n_keys, mask.device)


SHAPES = [pytest.param(37, 37, True, p, id=f"causal-{p}") for p in (None, "left", "right", "all")] + [
    pytest.param(37, 41, False, p, id=f"cross-{p}") for p in (None, "left", "right", "all")
]


@pytest.mark.parametrize("shape", [s.values for s in SHAPES], ids=[s.id for s in SHAPES])
@pytest.mark.parametrize("gradient", ["straight-through", "bounded", "none"])
def test_selected_attention_equals_its_definition_forward_and_backward(shape, gradient, small_blocks):
    q, k, v, sel_q, sel_k, mask, allowed, full = case(*shape)
    selector = (None, None) if gradient == "none" else (sel_q, sel_k)
    inputs = (q, k, v) if gradient == "none" else (q, k, v, sel_q, sel_k)
    bounded = gradient != "straight-through"
    expected = reference.selected_attention(q, k, v, mask, full, *selector, bounded)
    seen = ops.selected_attention(q, k, v, mask, allowed, *selector, 0.0, bounded)
    torch.testing.assert_close(seen, expected, rtol=1e-12, atol=1e-12)
    assert torch.isfinite(seen).all()
    d_out = torch.randn_like(seen)
    for a, b in zip(torch.autograd.grad(seen, inputs, d_out), torch.autograd.grad(expected, inputs, d_out)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [s.values for s in SHAPES], ids=[s.id for s in SHAPES])
@pytest.mark.parametrize("kl", ["forward", "reverse"])
@pytest.mark.parametrize("target", ["live", "detached"])
def test_supervision_equals_its_definition_forward_and_backward(shape, kl, target, small_blocks):
    q, k, _, sel_q, sel_k, mask, allowed, full = case(*shape)
    q2, k2, _, *_ = case(*shape)
    padding = allowed.key_padding if shape[2] else None
    valid = torch.ones(B, shape[0], dtype=torch.bool) if padding is None else ~padding
    inputs = (sel_q, sel_k, q, q2, k, k2)
    expected = reference.supervise(sel_q, sel_k, [q, q2], [k, k2], mask, full, valid, kl, target)
    seen = ops.supervise(sel_q, sel_k, [q, q2], [k, k2], mask, allowed, padding, kl, target)
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
        return ops.supervise(sel_q, sel_k, [q], [k], mask, allowed, None, kl, target).kl

    assert torch.autograd.gradcheck(loss, (sel_q, sel_k, *((q, k) if target == "live" else (q.detach(), k.detach()))))


def test_supervision_is_zero_where_selector_and_attention_agree():
    x, y = torch.randn(B, 11, D, dtype=torch.double), torch.randn(B, 13, D, dtype=torch.double)
    allowed, mask = Allowed(None, False), torch.ones(B, 11, 13, dtype=torch.bool)
    for kl in ("forward", "reverse"):
        given = ops.supervise(x, y, [x[:, None]], [y[:, None]], mask, allowed, None, kl)
        assert abs(float(given.kl)) < 1e-10
        torch.testing.assert_close(given.mass / given.queries, torch.ones((), dtype=torch.double))


@pytest.mark.parametrize("bounded", [False, True], ids=["straight-through", "bounded"])
def test_straight_through_gradient_follows_its_formula(bounded):
    """Eq 3 differentiated by hand: A = exp(S) (M + A_s - sg(A_s)) / Sum; bounded, no key weighs more than 1 in it."""
    q, k, v, sel_q, sel_k, mask, allowed, full = case(13, 13, True, None)
    with torch.no_grad():
        q *= 3  # so that some keys outside the selection outweigh the kept ones
    out = ops.selected_attention(q, k, v, mask, allowed, sel_q, sel_k, bounded=bounded)
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
    seen = ops.selected_attention(q, k, v, mask, allowed, sel_q, sel_k, bounded=False)
    d_out = torch.randn_like(seen)
    inputs = (q, k, v, sel_q, sel_k)
    for a, b in zip(torch.autograd.grad(seen, inputs, d_out), torch.autograd.grad(literal, inputs, d_out)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_missed_key_far_above_the_kept_ones_leaves_the_literal_gradient_finite():
    q, k, v, sel_q, sel_k, mask, allowed, _ = case(37, 37, False, None, torch.float)
    with torch.no_grad():
        q *= 400
    out = ops.selected_attention(q, k, v, mask, allowed, sel_q, sel_k, bounded=False)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.sum(), (q, k, v, sel_q, sel_k)))


@pytest.mark.parametrize("kl", ["forward", "reverse"])
def test_half_precision_keeps_the_supervisions_gradient(kl):
    """4,096 keys, broad attention: every term is far below half precision's smallest normal number."""
    torch.manual_seed(5)
    shapes = [(1, 256, 16), (1, 4096, 16), (1, 2, 256, 16), (1, 2, 4096, 16)]
    exact = [(torch.randn(*s) * 0.4).half().double().requires_grad_() for s in shapes]
    mask, allowed = torch.ones(1, 256, 4096, dtype=torch.bool), Allowed(None, False)

    def gradients(sel_q, sel_k, q, k):
        given = ops.supervise(sel_q, sel_k, [q], [k], mask, allowed, None, kl)
        return torch.autograd.grad(given.kl * (128.0 * 0.01), (sel_q, sel_k, q, k))

    half = gradients(*(t.detach().half().requires_grad_() for t in exact))
    for got, want in zip(half, gradients(*exact)):
        assert got.dtype == torch.float16
        assert float((got.double() - want).norm() / want.norm()) < 0.01


def test_kappa_one_is_dense_attention():
    q, k, v, sel_q, sel_k, _, _, _ = case(37, 37, True, None)
    mask = ops.select_mask(sel_q, sel_k, Allowed(None, True), KAPPA_ONE)
    out = ops.selected_attention(q, k, v, mask, Allowed(None, True))
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_attention_dropout_is_the_same_in_forward_and_backward(small_blocks):
    q, k, v, sel_q, sel_k, mask, allowed, _ = case(13, 11, False, "left")

    def f(q, k, v):
        torch.manual_seed(5)
        return ops.selected_attention(q, k, v, mask, allowed, sel_q.detach(), sel_k.detach(), dropout_p=0.3)

    assert torch.autograd.gradcheck(f, (q, k, v))
    kept = ops.selected_attention(q, k, torch.ones_like(v), mask, allowed, dropout_p=0.3)[1, :, :, 0].detach()
    assert 0.7 < float(kept.mean()) < 1.3 and float(kept.std()) > 0.05


def brute_force(scores: list[float], keep: int) -> list[bool]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return [i in order[:keep] for i in range(len(scores))]


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_selection_equals_a_brute_force_sort_with_ties_and_masks(data):
    n = data.draw(st.integers(1, 40))
    rows = data.draw(st.integers(1, 4))
    # few distinct values: many ties, also at the threshold
    values = st.lists(st.sampled_from([-1.5, 0.0, 0.25, 2.0, float("-inf")]), min_size=n, max_size=n)
    scores = torch.tensor([data.draw(values) for _ in range(rows)])
    n_allowed = (scores > float("-inf")).sum(-1)
    kappa = data.draw(st.integers(10_000, KAPPA_ONE))
    keep = reference.keep_counts(n_allowed, kappa)
    expected = torch.tensor([brute_force(r, int(c)) for r, c in zip(scores.tolist(), keep)])
    from fairseq_lasformer.ops.selection import highest

    assert torch.equal(reference.select(scores, keep), expected)
    assert torch.equal(highest(scores, keep, n_allowed), expected)


@pytest.mark.parametrize(
    "n_allowed, kappa, keep",
    [
        (5, 0.05, 5),
        (10, 0.05, 10),
        (11, 0.05, 10),
        (200, 0.05, 10),
        (201, 0.05, 11),
        (4096, 0.05, 205),
        (100, 0.29, 29),
        (0, 0.5, 0),
        (7, 1.0, 7),
    ],
)
def test_keep_counts_by_hand(n_allowed, kappa, keep):
    assert int(reference.keep_counts(torch.tensor(n_allowed), round(kappa * KAPPA_ONE))) == keep


@pytest.mark.parametrize("shape", [s.values for s in SHAPES], ids=[s.id for s in SHAPES])
def test_blocked_selection_equals_its_definition(shape, small_blocks):
    *_, sel_q, sel_k, mask, allowed, full = case(*shape)
    scores = reference.selector_scores(sel_q, sel_k, full)
    expected = reference.select(scores, reference.keep_counts(full.sum(-1), 300_000)) & full
    assert torch.equal(mask, expected)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_half_precision_masks_stay_finite(dtype):
    q, k, v, sel_q, sel_k, mask, allowed, full = case(23, 23, True, "all", dtype=dtype)
    out = ops.selected_attention(q * 6, k * 6, v, mask, allowed, sel_q, sel_k)
    given = ops.supervise(sel_q, sel_k, [q * 6], [k * 6], mask, allowed, None)
    grads = torch.autograd.grad(out.float().sum() + given.kl, (q, k, v, sel_q, sel_k))
    assert all(torch.isfinite(t).all() for t in (out, given.kl, *grads))
    assert given.kl.dtype == torch.float32
