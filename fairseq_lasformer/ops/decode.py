"""One decoding step: which cached keys are kept, and attention over them. Definitions: ``reference.topk_indices`` and
``reference.attend_kept``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer.ops import reference
from fairseq_lasformer.ops.backends import backend_for, triton_kernels
from fairseq_lasformer.ops.types import KAPPA_ONE, MIN_KEYS, KeptKeys, KeyIndex


def _rows(t: Tensor) -> Tensor:
    """The tensor with its rows one behind the other within each outermost entry, as the kernels read them."""
    return t if t.stride(-1) == 1 and (t.dim() < 3 or t.stride(1) == t.size(2)) else t.contiguous()


def _module(backend: str) -> Any:
    """Where a backend's ``topk_indices`` and ``attend_kept`` are, but for the CPU's."""
    return triton_kernels("triton_decode") if backend == "triton" else reference


@torch.no_grad()
def topk_indices(q: Tensor, keys: Tensor, paths: KeyIndex, kappa: int, backend: str = "auto") -> KeptKeys | None:
    """The kept keys of one decoding step (eq 1, 2); None where every allowed key is kept.

    Args:
        q: [R, S], the newest queries. keys: [N, C, S], the selector's keys by slot. kappa: share kept, in millionths.
    """
    if kappa >= KAPPA_ONE or paths.end <= MIN_KEYS:
        return None
    chosen = backend_for(q.device, backend)
    q, keys = q.contiguous(), _rows(keys)
    if paths.table is not None:
        paths = paths._replace(table=_rows(paths.table))
    if chosen == "cpu":
        scaled = q.float() * q.size(-1) ** -0.5
        return KeptKeys(*torch.ops.fairseq_lasformer.topk_indices(scaled, keys, paths.table, *paths[1:3], kappa))
    return _module(chosen).topk_indices(q, keys, paths, kappa)


@torch.no_grad()
def attend_kept(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    paths: KeyIndex | None,
    slots: KeptKeys | None,
    n_heads: int,
    backend: str = "auto",
    dropout_p: float = 0.0,
) -> Tensor:
    """Attention of R rows over their kept keys (eq 3), over all allowed ones of ``paths`` where ``slots`` is None.

    Args:
        q: [R, H*D]. keys, values: [N, C, H*D], by slot.
        dropout_p: dropout on the attention weights (``--retain-dropout``), which no kernel does.

    Returns:
        [R, H*D] in q's dtype; a row that sees no key is 0.
    """
    if slots is None:
        assert paths is not None
        if paths.table is None:
            return _attend_source(q, keys, values, paths, n_heads, dropout_p)
        kept = paths.n_keys.int().repeat_interleave(q.size(0) // paths.n_keys.numel())
        slots = KeptKeys(paths.table[:, : paths.end], kept)
    if dropout_p > 0:
        return reference.attend_kept(q, keys, values, slots, n_heads, dropout_p)
    chosen = backend_for(q.device, backend)
    q, keys, values, slots = (
        q.contiguous(),
        _rows(keys),
        _rows(values),
        KeptKeys(_rows(slots.indices), slots.counts.contiguous()),
    )
    if chosen == "cpu":
        out = torch.ops.fairseq_lasformer.attend_kept(q.float(), keys, values, *slots, n_heads)
        return out.to(q.dtype)
    return _module(chosen).attend_kept(q, keys, values, slots, n_heads)


def _attend_source(
    q: Tensor, keys: Tensor, values: Tensor, paths: KeyIndex, n_heads: int, dropout_p: float = 0.0
) -> Tensor:
    """Dense attention over the source: an item's rows are queries of one product over its keys."""
    n_items, _, width = keys.shape
    queries, k, v = (t.reshape(n_items, -1, n_heads, width // n_heads).transpose(1, 2) for t in (q, keys, values))
    mask = None
    allowed = paths.allowed()
    if q.is_cuda or not bool(allowed.all()):
        mask = allowed[:, None, None]
    out = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, dropout_p=dropout_p)
    out = out.masked_fill((paths.n_keys == 0)[:, None, None, None], 0.0)
    return out.transpose(1, 2).reshape(q.shape)
