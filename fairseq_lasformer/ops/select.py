"""Selection of the kept keys of every query (arXiv 2309.14174, eq 1, 2), in blocks of query rows.

Definition: ``reference.select``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_lasformer.ops.blocks import query_blocks
from fairseq_lasformer.ops.reference import keep_counts
from fairseq_lasformer.ops.types import KAPPA_ONE, AttentionMask


@torch.no_grad()
def topk_mask(sel_q: Tensor, sel_k: Tensor, mask: AttentionMask, kappa: Tensor | int) -> Tensor:
    """Select the kept keys of all queries (eq 1, 2).

    Args:
        sel_q: [B, Q, S].
        sel_k: [B, K, S].
        kappa: fraction of keys to keep, in millionths.

    Returns:
        bool [B, Q, K]; never True where not allowed. The keys of its own line are kept besides.
    """
    (n_batch, n_queries, width), n_keys = sel_q.shape, sel_k.size(1)
    if int(kappa) >= KAPPA_ONE or n_keys <= 1:
        return mask.full(n_batch, n_queries, n_keys, sel_q.device)
    queries = sel_q.float() * width**-0.5
    keys = sel_k.float().transpose(1, 2)
    keep_mask = torch.zeros(n_batch, n_queries, n_keys, dtype=torch.bool, device=sel_q.device)
    for rows, n_seen, allowed in query_blocks(1, sel_q.shape, n_keys, mask, sel_q.device):
        scores = torch.matmul(queries[:, rows], keys[..., :n_seen])
        others = mask.others(allowed, n_seen, rows)
        if others is None:
            n_allowed = scores.new_full(scores.shape[:2], n_seen, dtype=torch.int64)
        else:
            scores.masked_fill_(~others, float("-inf"))
            n_allowed = others.sum(-1).expand(scores.shape[:2])
        keep_mask[:, rows, :n_seen] = topk_rows(scores, keep_counts(n_allowed, kappa), n_allowed)
        if mask.own is not None:
            keep_mask[:, rows, :n_seen] |= mask.own.of(rows).among(n_seen)
    return keep_mask


def topk_rows(scores: Tensor, keep: Tensor, n_allowed: Tensor) -> Tensor:
    """Compute ``reference.select`` without a sort: quickselect finds the threshold; ties are taken from the left.

    Args:
        scores: [..., K], -inf where not allowed.
        keep: int64 [...], number of keys to keep.
        n_allowed: int64 [...], number of allowed keys.
    """
    finite = scores > float("-inf")
    if bool((keep == n_allowed).all()):
        return finite
    n_keys, most = scores.size(-1), int(keep.max())
    # kthvalue takes one k for all rows: rows that keep fewer are padded in front with +inf
    lack = most - keep
    widest = int(lack.max())
    padded = scores.masked_fill(scores.isnan(), float("-inf"))
    if widest:
        ahead = torch.arange(widest, device=scores.device) < lack[..., None]
        ahead = torch.zeros(ahead.shape, device=scores.device).masked_fill_(ahead, float("inf"))
        ahead.masked_fill_(ahead == 0, float("-inf"))
        padded = torch.cat([ahead, padded], -1)
    threshold = padded.kthvalue(n_keys + widest - most + 1, dim=-1, keepdim=True).values
    mask = (scores >= threshold) & finite
    if bool((mask.sum(-1) > keep).any()):
        above = scores > threshold
        ties = mask & ~above
        mask = above | (ties & (ties.cumsum(-1) <= (keep - above.sum(-1))[..., None]))
    return mask
