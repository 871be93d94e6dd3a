"""Prefill by tiles against masked attention."""

from __future__ import annotations

import pytest
import torch
from helpers import HERE

from fairseq_lasformer import ops
from fairseq_lasformer.ops import AttentionMask, reference


@pytest.fixture(autouse=True)
def poisoned():
    """Fresh memory is NaN (floats) or the largest integer: whatever is read unwritten shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(not HERE["triton"], reason="Triton is not installed")
@pytest.mark.parametrize(
    "n_queries,n_keys,causal,width",
    [(1, 1, False, 24), (63, 111, False, 24), (111, 111, True, 24), (70, 200, False, 24), (40, 70, False, 300)],
)
@pytest.mark.parametrize("padding", [None, "left", "all"])
def test_tiles_with_a_mask_of_bits_equal_masked_attention(n_queries, n_keys, causal, width, padding):
    from fairseq_lasformer.ops import triton_prefill

    torch.manual_seed(n_keys)
    key_padding = None
    if padding:
        key_padding = torch.zeros(2, n_keys, dtype=torch.bool)
        key_padding[1, : n_keys // 3 if padding == "left" else n_keys] = True
    allowed = AttentionMask(key_padding, causal)
    sel_q, sel_k = torch.randn(2, n_queries, 8), torch.randn(2, n_keys, 8)
    q, k, v = (torch.randn(2, 3, n, width) for n in (n_queries, n_keys, n_keys))
    mask = ops.topk_mask(sel_q, sel_k, allowed, 200_000)
    bits = triton_prefill.topk_bitmask(sel_q, sel_k, allowed, 200_000)
    j = torch.arange(n_keys)
    assert torch.equal((bits[..., j // 32] >> (j % 32)) & 1, mask.int())
    full = allowed.full(2, n_queries, n_keys, q.device)
    expected = reference.selected_attention(q, k, v, mask, full)
    torch.testing.assert_close(triton_prefill.attend_tiles(q, k, v, bits), expected, rtol=1e-5, atol=1e-5)
