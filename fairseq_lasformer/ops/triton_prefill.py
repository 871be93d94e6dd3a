"""Inference prefill over the kept keys on GPUs (arXiv 2309.14174, eq 1-3): tiles of all keys with a bitmask.

The kept keys of a query are scattered, so gathering them costs a GPU more than reading all keys in tiles (unless fewer
than about 1.6 % are kept); tiles in which no query keeps a key are skipped. The mask has one bit per query-key pair and
is shared by the heads. Definition: ``reference.selected_attention``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.blocks import query_blocks
from fairseq_lasformer.ops.reference import keep_counts
from fairseq_lasformer.ops.select import topk_rows
from fairseq_lasformer.ops.types import KAPPA_ONE, AttentionMask

WORD = 32
QUERIES = KEYS = 64
TILE_ELEMENTS = 8192  # per tile of queries, keys or values: wider heads get smaller tiles to fit shared memory


@triton.jit
def _tiles(
    q, k, v, bits, out,
    batch_stride, head_stride, row_stride, key_batch_stride, key_head_stride, key_row_stride,
    bits_batch_stride, bits_row_stride, scale, n_queries, n_keys, n_heads, head_width,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Process one tile of queries of one head against all keys."""
    batch, head = (tl.program_id(1) // n_heads).to(tl.int64), tl.program_id(1) % n_heads
    i = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, WIDTH)
    mine = (i[:, None] < n_queries) & (d[None, :] < head_width)
    at = batch * batch_stride + head * head_stride + i.to(tl.int64)[:, None] * row_stride + d[None, :]
    query = tl.load(q + at, mask=mine, other=0.0)
    high = tl.full([BLOCK_Q], -1e30, tl.float32)
    sums = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, WIDTH], tl.float32)
    for begin in range(0, n_keys, BLOCK_K):
        j = begin + tl.arange(0, BLOCK_K)
        inside = (i[:, None] < n_queries) & (j[None, :] < n_keys)
        word = bits + batch * bits_batch_stride + i.to(tl.int64)[:, None] * bits_row_stride + (j // 32)[None, :]
        kept = ((tl.load(word, mask=inside, other=0) >> (j % 32)[None, :]) & 1) != 0
        kept = kept & inside
        if tl.max(tl.max(kept.to(tl.int32), 1), 0) > 0:
            theirs = (j[:, None] < n_keys) & (d[None, :] < head_width)
            spot = (
                batch * key_batch_stride
                + head * key_head_stride
                + j.to(tl.int64)[:, None] * key_row_stride
                + d[None, :]
            )
            key = tl.load(k + spot, mask=theirs, other=0.0)
            value = tl.load(v + spot, mask=theirs, other=0.0)
            score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            score = tl.where(kept, score, -1e30)
            new = tl.maximum(high, tl.max(score, 1))
            weight = tl.where(kept, tl.exp(score - new[:, None]), 0.0)
            fade = tl.exp(high - new)
            sums = sums * fade + tl.sum(weight, 1)
            acc = acc * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            high = new
    result = acc / tl.where(sums > 0, sums, 1.0)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=mine)


@torch.no_grad()
def topk_bitmask(sel_q: Tensor, sel_k: Tensor, allowed: AttentionMask, kappa: Tensor | int) -> Tensor:
    """Select the kept keys of all queries (eq 1, 2) as a bitmask.

    Args:
        sel_q: [B, Q, S].
        sel_k: [B, K, S].
        allowed: attention mask.
        kappa: fraction of keys to keep, in millionths.

    Returns:
        int32 [B, Q, ceil(K / 32)]: bit j % 32 of word j // 32 is key j.
    """
    (n_batch, n_queries, width), n_keys = sel_q.shape, sel_k.size(1)
    queries, keys = sel_q.float() * width**-0.5, sel_k.float().transpose(1, 2)
    n_words = -(-n_keys // WORD)
    bits = torch.zeros(n_batch, n_queries, n_words, dtype=torch.int32, device=sel_q.device)
    place = torch.ones((), dtype=torch.int64, device=sel_q.device) << torch.arange(WORD, device=sel_q.device)
    for rows, seen, may in query_blocks(1, sel_q.shape, n_keys, allowed, sel_q.device):
        if may is None:
            may = torch.ones(n_batch, rows.stop - rows.start, seen, dtype=torch.bool, device=sel_q.device)
        n_allowed = may.sum(-1).expand(n_batch, -1)
        if int(kappa) >= KAPPA_ONE:
            kept = may.expand(n_batch, -1, -1)
        else:
            scores = torch.matmul(queries[:, rows], keys[..., :seen]).masked_fill(~may, float("-inf"))
            kept = topk_rows(scores, keep_counts(n_allowed, kappa), n_allowed)
        kept = torch.nn.functional.pad(kept, (0, n_words * WORD - seen)).view(*kept.shape[:2], n_words, WORD)
        words = (kept * place).sum(-1)
        bits[:, rows] = torch.where(words >= 2**31, words - 2**32, words).int()
    return bits


@torch.no_grad()
def attend_tiles(q: Tensor, k: Tensor, v: Tensor, bits: Tensor) -> Tensor:
    """Compute attention over the kept keys (eq 3).

    Args:
        q, k, v: [B, H, Q or K, D].
        bits: bitmask of :func:`topk_bitmask`.

    Returns:
        [B, H, Q, D]; 0 for rows without kept keys.
    """
    (n_batch, n_heads, n_queries, width), n_keys = q.shape, k.size(2)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    padded = max(16, triton.next_power_of_2(width))
    rows = max(16, min(QUERIES, TILE_ELEMENTS // padded))
    _tiles[(triton.cdiv(n_queries, rows), n_batch * n_heads)](
        q, k, v, bits, out, *q.stride()[:3], *k.stride()[:3], *bits.stride()[:2], width**-0.5, n_queries, n_keys,
        n_heads, width, BLOCK_Q=rows, BLOCK_K=min(KEYS, rows), WIDTH=padded,
    )  # fmt: skip
    return out
