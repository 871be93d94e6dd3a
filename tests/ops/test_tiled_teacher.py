"""A selector's teacher on GPUs against the one on CPUs, which has its own tests against the definition."""

from __future__ import annotations

import pytest
import torch
from helpers import HERE
from tiers import thinned

from fairseq_lasformer import ops
from fairseq_lasformer.ops import EVERY_ROW, AttentionMask, RowSample, Teachers
from fairseq_lasformer.ops.gpu import teacher

pytestmark = [pytest.mark.skipif(not HERE["triton"], reason="Triton is not installed"), pytest.mark.triton]

# queries, keys, causal, padding of the keys, of the queries, KL, sample
CASES = {
    "one-key": (1, 1, False, None, False, "forward", EVERY_ROW),
    "short": (9, 31, False, "left", True, "forward", EVERY_ROW),
    "causal": (70, 70, True, "left", True, "reverse", EVERY_ROW),
    "cross": (33, 90, False, None, False, "reverse", RowSample(2, 3)),
    "no-keys": (40, 70, False, "all", False, "forward", RowSample(1, 3)),
    "sampled": (61, 61, True, None, False, "forward", RowSample(2, 4)),
    "sampled-padded": (50, 50, True, "left", True, "reverse", RowSample(3, 8)),
}


@pytest.fixture(autouse=True)
def poisoned():
    """Fresh memory is NaN, so reads of unwritten memory show."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def case(n_queries, n_keys, causal, padding, ignored, dtype=torch.float32):
    torch.manual_seed(n_keys)
    key_padding = query_padding = None
    if padding:
        key_padding = torch.zeros(2, n_keys, dtype=torch.bool)
        key_padding[1, : n_keys // 3 if padding == "left" else n_keys] = True
    if ignored:
        query_padding = torch.zeros(2, n_queries, dtype=torch.bool)
        query_padding[0, -5:] = True
    # as projections leave them: the heads of a token next to each other
    made = [torch.randn(2, n, 3, 24, dtype=dtype).transpose(1, 2) for n in (n_queries, n_queries, n_keys, n_keys)]
    made = [torch.randn(2, n_queries, 8, dtype=dtype), torch.randn(2, n_keys, 8, dtype=dtype), *made]
    return [t.requires_grad_() for t in made], AttentionMask(key_padding, causal), query_padding


def supervised(leaves, mask, query_padding, kl, target, sample, in_tiles):
    sel_q, sel_k, q1, q2, k1, k2 = leaves
    bits = ops.topk_bitmask(sel_q, sel_k, mask, 200_000)
    kept = bits if in_tiles else ops.mask_of(sample.of(bits, 1), sel_k.size(1))
    of = ops.tiled_supervise if in_tiles else ops.supervise
    found = of(sel_q, sel_k, Teachers([q1, q2], [k1, k2], query_padding, kl, target), kept, mask, sample)
    return found, torch.autograd.grad(found.kl * 0.7, leaves, allow_unused=True)


@pytest.mark.parametrize(
    "name, blocks", thinned([*((name, 1) for name in CASES), ("causal", 3), ("sampled-padded", 3)], ("short", 1))
)
def test_supervision_in_tiles_is_that_in_blocks(name, blocks, monkeypatch):
    *shape, kl, sample = CASES[name]
    leaves, mask, query_padding = case(*shape)
    expected, gradients = supervised(leaves, mask, query_padding, kl, "live", sample, False)
    if blocks > 1:
        monkeypatch.setattr(teacher, "BLOCK_ELEMENTS", {"cpu": 1})
        monkeypatch.setattr(teacher, "MINIMUM_ROWS", -(-len(range(0, shape[0], sample.stride)) // blocks))
    found, ours = supervised(leaves, mask, query_padding, kl, "live", sample, True)
    for name, a, b in zip(found._fields, found, expected):
        torch.testing.assert_close(a.float(), b.float(), rtol=1e-5, atol=1e-5, msg=name)
    assert found.queries > 0 or shape[3] == "all"
    for name, a, b in zip(("sel_q", "sel_k", "q1", "q2", "k1", "k2"), ours, gradients):
        assert float(b.abs().max()) > 1e-4 or shape[1] == 1
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.sweep
def test_a_detached_target_leaves_the_attention_alone():
    leaves, mask, _ = case(40, 40, True, None, False)
    sample = RowSample(0, 2)
    _, expected = supervised(leaves, mask, None, "forward", "detached", sample, False)
    _, found = supervised(leaves, mask, None, "forward", "detached", sample, True)
    assert found[2:] == expected[2:] == (None,) * 4
    for a, b in zip(found[:2], expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_heads_without_kernels_are_supervised_in_blocks():
    leaves, mask, _ = case(20, 20, True, None, False, torch.float64)
    found, _ = supervised(leaves, mask, None, "forward", "live", EVERY_ROW, True)
    expected, _ = supervised(leaves, mask, None, "forward", "live", EVERY_ROW, False)
    assert found.kl.dtype == torch.float64 and torch.equal(found.kl, expected.kl)


@pytest.mark.sweep
@pytest.mark.parametrize("kl", ["forward", "reverse"])
def test_half_precision_keeps_the_gradient(kl):
    """1,024 keys, broad attention: the terms of the sums are far below half precision's smallest normal number."""
    torch.manual_seed(5)
    shapes = [(1, 16, 16), (1, 1024, 16), (1, 2, 16, 16), (1, 2, 1024, 16)]
    exact = [(torch.randn(*s) * 0.4).half().float().requires_grad_() for s in shapes]
    mask, bits = AttentionMask(None, False), torch.full((1, 16, 32), -1, dtype=torch.int32)

    def gradients(sel_q, sel_k, q, k):
        found = ops.tiled_supervise(sel_q, sel_k, Teachers([q], [k], None, kl), bits, mask)
        return torch.autograd.grad(found.kl * (128.0 * 0.01), (sel_q, sel_k, q, k))

    half = gradients(*(t.detach().half().requires_grad_() for t in exact))
    for got, want in zip(half, gradients(*exact)):
        assert got.dtype == torch.float16
        assert float((got.float() - want).norm() / want.norm()) < 0.01
