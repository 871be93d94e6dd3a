"""Numbers of allowed keys."""

from __future__ import annotations

import pytest
import torch

from fairseq_lasformer.ops import AttentionMask


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_counts_are_those_of_the_mask(causal, padding):
    key_padding = None
    if padding:
        key_padding = torch.zeros(2, 9, dtype=torch.bool)
        key_padding[0, slice(0, 3) if padding == "left" else slice(-3, None)] = True
    mask = AttentionMask(key_padding, causal)
    device = torch.device("cpu")
    for n_queries in (9, 4) if causal else (5,):
        full = mask.full(2, n_queries, 9, device).sum(-1)
        assert torch.equal(mask.counts(n_queries, 9, device).expand(2, n_queries), full)
