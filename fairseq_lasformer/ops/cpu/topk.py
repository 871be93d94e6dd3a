"""Selection in full passes on CPUs (arXiv 2309.14174, eq 1, 2) that then gather only the kept keys."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer.ops.blocks import BLOCK_ELEMENTS
from fairseq_lasformer.ops.types import KeptKeys, KeyIndex, OwnLines


@torch.no_grad()
def topk_gather(sel_q: Tensor, sel_k: Tensor, paths: KeyIndex, kappa: int, own: OwnLines | None = None) -> KeptKeys:
    """Select the kept keys of all queries (eq 1, 2) on the CPU, computing scores one block of queries at a time.

    Args:
        sel_q: [B, Q, S].
        sel_k: [B, K, S].
        paths: key index.
        kappa: fraction of keys to keep, in millionths.
        own: the keys of the queries' own lines; they are kept besides, before all others.

    Returns:
        kept keys of B * Q rows.
    """
    return topk_ranges(sel_q, sel_k, paths.start, paths.n_keys[:, None].expand(sel_q.shape[:2]), False, kappa, own)


def topk_ranges(
    sel_q: Tensor, sel_k: Tensor, start: Tensor, counts: Tensor, causal: bool, kappa: int, own: OwnLines | None
) -> KeptKeys:
    """Select the kept keys of all queries on the CPU, each of which may attend to a range of keys.

    Args:
        sel_q: [B, Q, S].
        sel_k: [B, K, S].
        start: int64 [B], first key of the ranges of an item.
        counts: int64 [B, Q], number of keys of each range.
        causal: query i sees keys 0 to i + (K - Q); other scores are not computed.
        kappa: fraction of keys to keep, in millionths.
        own: see :func:`topk_gather`.

    Returns:
        kept keys of B * Q rows.
    """
    (n_batch, n_queries, width), n_keys = sel_q.shape, sel_k.size(1)
    queries, keys = sel_q.float() * width**-0.5, sel_k.float().transpose(1, 2)
    step = max(16, BLOCK_ELEMENTS["cpu"] // n_keys)
    ranges: list[tuple[Tensor, Tensor]] = []
    for b in range(n_batch):
        for begin in range(0, n_queries, step):
            rows = slice(begin, min(begin + step, n_queries))
            seen = rows.stop + n_keys - n_queries if causal else n_keys
            scores = torch.matmul(queries[b, rows], keys[b, :, :seen])
            # an item that begins after this block has no keys in it, whatever its start
            first = start[b : b + 1].clamp(max=seen).expand(scores.size(0))
            mine = None if own is None else own.of(rows).pairs[b]
            chosen = torch.ops.fairseq_lasformer.topk_scored(scores, first, counts[b, rows].contiguous(), kappa, mine)
            ranges.append(chosen)
    most = max(slots.size(1) for slots, _ in ranges)
    slots = [F.pad(slots, (0, most - slots.size(1)), value=-1) for slots, _ in ranges]
    return KeptKeys(torch.cat(slots), torch.cat([kept for _, kept in ranges]))
