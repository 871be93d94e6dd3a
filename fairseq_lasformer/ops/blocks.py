"""Iteration over blocks of query rows, so that no complete [B, H, Q, K] tensor is ever allocated."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops.types import EVERY_ROW, AttentionMask, RowSample

# Elements of one [B, H, rows, K] block: 4 MiB in float32 fits a core's share of the cache (fastest of 2^18 to 2^23 in
# python -m benchmarks training); GPUs need large launches instead. Kernels count a block's elements in 32 bits.
BLOCK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26, "meta": 1 << 26}

# Minimum rows of a block: products with fewer are slow, and every block reads all keys (benchmarks training).
MINIMUM_ROWS = 64


class QueryBlock(NamedTuple):
    """A block of query rows."""

    rows: slice  # the query rows; of a sample, their numbers within it
    n_keys: int  # number of leading keys that they are matched against
    # bool [B or 1, rows, n_keys], True where attention is allowed; None if all these keys are allowed
    allowed: Tensor | None


def query_blocks(
    n_heads: int,
    q_shape: torch.Size,
    n_keys: int,
    allowed: AttentionMask,
    device: torch.device,
    sample: RowSample = EVERY_ROW,
) -> Iterator[QueryBlock]:
    """Iterate over blocks of query rows; with a causal mask, each block stops at the last key its rows can see.

    Args:
        n_heads: number of heads whose scores are in memory at a time.
        q_shape: shape of the queries, [B, Q, ...].
        n_keys: number of keys (K).
        device: determines the block size, see :data:`BLOCK_ELEMENTS`.
        sample: the rows to iterate over; default: all.
    """
    n_batch, n_queries = q_shape[0], q_shape[1]
    limit = BLOCK_ELEMENTS.get(device.type, BLOCK_ELEMENTS["cpu"])
    step = max(MINIMUM_ROWS, limit // max(1, n_batch * n_heads * n_keys))
    positions = torch.arange(sample.offset, n_queries, sample.stride, device=device)
    for start in range(0, positions.numel(), step):
        stop = min(start + step, positions.numel())
        last = sample.offset + (stop - 1) * sample.stride
        seen = last + 1 + n_keys - n_queries if allowed.causal else n_keys
        whole = allowed.at(positions[start:stop], n_queries, n_keys)
        yield QueryBlock(slice(start, stop), seen, whole if whole is None else whole[..., :seen])


def fill_disallowed(x: Tensor, allowed: Tensor | None, value: float) -> Tensor:
    """Fill ``x`` [B, rows, K] or [B, H, rows, K] with ``value`` where not allowed, in place."""
    if allowed is None:
        return x
    return x.masked_fill_(~(allowed if x.dim() == 3 else allowed[:, None]), value)


def add_product_(total: Tensor, left: Tensor, right: Tensor, unit: Tensor | float = 1.0) -> None:
    """Add ``left`` transposed times ``right``, times ``unit``, to ``total`` in place.

    Args:
        total: [..., n, D], leading rows of a contiguous tensor [..., K, D].
        left: [..., rows, n].
        right: [..., rows, D].
    """
    if isinstance(unit, Tensor) or total.dtype != left.dtype:
        total += torch.matmul(left.transpose(-1, -2), right) * unit
        return
    left, right = (t.reshape(-1, *t.shape[-2:]) for t in (left, right))
    total.view(-1, *total.shape[-2:]).baddbmm_(left.transpose(1, 2), right, alpha=unit)


def softmax_(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Apply softmax in place to scores that are -inf where masked; fully masked rows become 0.

    Returns:
        the weights, and the log of their normaliser [..., 1] (+inf for fully masked rows, so that exp(s - lse) is 0).
    """
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill_(top == float("-inf"), 0.0)
    total = scores.sub_(top).exp_().sum(-1, keepdim=True)
    lse = top + total.log()
    lse.masked_fill_(total == 0, float("inf"))
    return scores.div_(total.masked_fill(total == 0, 1.0)), lse
