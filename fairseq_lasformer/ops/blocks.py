"""Query rows in blocks: the loop that keeps [B, H, Q, K] from ever existing whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops.types import AttentionMask

# Elements of one [B, H, rows, K] block: 4 MiB in float32 stays in a core's share of the cache (measured best of
# 2^18 .. 2^23 by python -m benchmarks training); a GPU wants large launches instead.
BLOCK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}


class Block(NamedTuple):
    """Query rows ``rows`` against the first ``n_keys`` keys; ``allowed`` is None where they may see all of them."""

    rows: slice
    n_keys: int
    allowed: Tensor | None


def query_blocks(
    n_heads: int, q_shape: torch.Size, n_keys: int, allowed: AttentionMask, device: torch.device
) -> Iterator[Block]:
    """Blocks over the query rows of [B, Q, *] against ``n_keys`` keys; causal blocks stop at their last key."""
    n_batch, n_queries = q_shape[0], q_shape[1]
    limit = BLOCK_ELEMENTS.get(device.type, BLOCK_ELEMENTS["cpu"])
    step = max(16, limit // max(1, n_batch * n_heads * n_keys))
    for start in range(0, n_queries, step):
        stop = min(start + step, n_queries)
        seen = stop + n_keys - n_queries if allowed.causal else n_keys
        whole = allowed.rows(start, stop, n_queries, n_keys, device)
        yield Block(slice(start, stop), seen, whole if whole is None else whole[..., :seen])


def fill_disallowed(x: Tensor, allowed: Tensor | None, value: float) -> Tensor:
    """``x`` [B, rows, K] or [B, H, rows, K] with ``value`` where not allowed, in place."""
    if allowed is None:
        return x
    return x.masked_fill_(~(allowed if x.dim() == 3 else allowed[:, None]), value)


def softmax_(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax in place of scores that hold -inf where masked; rows of nothing but -inf become 0.

    Returns:
        the weights, and the log of their normaliser [..., 1] (+inf for empty rows, so that exp(s - lse) is 0 there).
    """
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill_(top == float("-inf"), 0.0)
    total = scores.sub_(top).exp_().sum(-1, keepdim=True)
    lse = top + total.log()
    lse.masked_fill_(total == 0, float("inf"))
    return scores.div_(total.masked_fill(total == 0, 1.0)), lse
