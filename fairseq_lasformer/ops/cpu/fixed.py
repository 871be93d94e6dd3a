"""Operators that compute each row from that row alone, independent of other rows, threads and processor (CPUs).

The order of PyTorch's sums depends on the processor's registers and, in products, on the size of the batch.
Definitions: PyTorch's.
"""

import torch
from torch import Tensor

from fairseq_lasformer.ops import cpu
from fairseq_lasformer.ops.cpu.rows import own_arguments
from fairseq_lasformer.ops.types import KeptKeys, KeyIndex, OwnLines


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Apply layer normalisation: x [..., d], weight and bias [d], float32."""
    return torch.ops.fairseq_lasformer.layer_norm(x, weight, bias, eps)


def activate(x: Tensor, activation: int) -> Tensor:
    """Apply an activation to x, float32; ``activation`` is one of those in ``packed.py``."""
    return torch.ops.fairseq_lasformer.activate(x, activation)


def log_softmax(scores: Tensor) -> Tensor:
    """Compute log probabilities of scores, float32 [..., V]."""
    return torch.ops.fairseq_lasformer.log_softmax(scores.reshape(-1, scores.size(-1))).view(scores.shape)


def topk_of_rows(sel_q: Tensor, sel_k: Tensor, index: KeyIndex, kappa: int, own: OwnLines | None = None) -> KeptKeys:
    """Select the kept keys of all queries of a full pass (eq 1, 2 of arXiv 2309.14174).

    Args:
        sel_q: float32 [B, Q, S].
        sel_k: [B, K, S].
        index: the keys of each item, without a table.
        kappa: fraction of keys to keep, in millionths.
        own: the keys of the queries' own lines; they are kept besides, before all others.

    Returns:
        kept keys of B * Q rows.
    """
    queries = sel_q.flatten(0, 1) * sel_q.size(-1) ** -0.5
    mine = None if own is None else own.flattened().pairs
    where = sel_k, None, index.start, index.n_keys
    return KeptKeys(*torch.ops.fairseq_lasformer.topk_indices(queries, *where, kappa, mine))


def dense_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    index: KeyIndex,
    n_heads: int,
    own: OwnLines | None = None,
    shift: Tensor | None = None,
) -> Tensor:
    """Compute attention of all queries over all keys of their item.

    Args:
        q: float32 [B, Q, H*D].
        keys, values: [B, K, H*D].
        index: the keys of each item, without a table.
        n_heads: H.
        own, shift: the keys of the queries' own lines, and what is added to their scores, float32 [B, H, Q].

    Returns:
        [B, Q, H*D]; 0 for items without keys.
    """
    where = index.start, index.n_keys, n_heads
    return torch.ops.fairseq_lasformer.dense_attention(q, keys, values, *where, *own_arguments(own, shift))


def fuse_multiply_adds() -> None:
    """Compute fused multiply-adds in software on a processor that lacks them, in this process from now on.

    Such a processor rounds once more in each of them, so its results differ from those of others.
    """
    if cpu.instructions_in_use() == "plain" and "plain_fused" in cpu.instruction_sets():
        cpu.use_instructions("plain_fused")
