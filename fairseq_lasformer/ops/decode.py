"""One decoding step: selection of cached keys, and attention over them (arXiv 2309.14174, eq 1-3).

Definitions: ``reference.topk_indices`` and ``reference.attend_kept``.
"""

from __future__ import annotations

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer.ops import reference
from fairseq_lasformer.ops.backends import backend_for, current, required_kernels
from fairseq_lasformer.ops.types import KAPPA_ONE, MIN_KEYS, KeptKeys, KeyIndex, OwnLines, OwnShift


def _rows(t: Tensor) -> Tensor:
    """Return the tensor with the rows of each outermost entry contiguous, as the kernels require."""
    return t if t.stride(-1) == 1 and (t.dim() < 3 or t.stride(1) == t.size(2)) else t.contiguous()


def _module(backend: str) -> ModuleType:
    """Return the module with a backend's ``topk_indices`` and ``attend_kept``; not for the CPU kernels."""
    return required_kernels("decode") if backend == "triton" else reference


@torch.no_grad()
def topk_indices(
    q: Tensor, keys: Tensor, paths: KeyIndex, kappa: int, backend: str = "auto", own: OwnLines | None = None
) -> KeptKeys | None:
    """Select the kept keys of one decoding step (eq 1, 2).

    Args:
        q: [R, S], the newest queries.
        keys: [N, C, S], the selector's keys by slot.
        paths: key index.
        kappa: fraction of keys to keep, in millionths.
        backend: one of :data:`BACKENDS`.
        own: positions of each row's own line; they are kept besides, before all others.

    Returns:
        the kept keys; None if every allowed key is kept.
    """
    if kappa >= KAPPA_ONE or paths.end <= MIN_KEYS:
        return None
    chosen = "reference" if keys.dtype == torch.float64 else backend_for(q.device, backend)
    q, keys = _rows(q), _rows(keys)
    if paths.table is not None:
        paths = paths._replace(table=_rows(paths.table))
    if chosen == "cpu":
        scaled = q.float().contiguous() * q.size(-1) ** -0.5
        pairs = None if own is None else own.pairs
        return KeptKeys(*torch.ops.fairseq_lasformer.topk_indices(scaled, keys, paths.table, *paths[1:3], kappa, pairs))
    with current(q):
        return _module(chosen).topk_indices(q, keys, paths, kappa, own)


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
    shift: OwnShift | None = None,
) -> Tensor:
    """Compute attention of R rows over their kept keys (eq 3).

    Args:
        q: [R, H*D].
        keys, values: [N, C, H*D], by slot.
        paths: key index; only used if ``slots`` is None.
        slots: kept keys; None attends to every allowed key of ``paths``.
        n_heads: H.
        backend: one of :data:`BACKENDS`.
        dropout_p: dropout probability of the attention weights (``--retain-dropout``); not supported by the kernels, so
            a positive value uses plain PyTorch.
        shift: what is added to the scores of a row's own line.

    Returns:
        [R, H*D] in q's dtype; 0 for rows without keys.
    """
    # the kernels have no float64
    chosen = "reference" if keys.dtype == torch.float64 else backend_for(q.device, backend)
    plain = chosen == "reference" or dropout_p > 0
    if slots is None:
        assert paths is not None
        if paths.table is None and backend != "reference":
            return _attend_source(q, keys, values, paths, n_heads, dropout_p, shift)
        if plain or paths.table is None:
            table, allowed = paths.slots(q.size(0))
            slots = KeptKeys(table.masked_fill(~allowed, -1).int(), allowed.sum(1).int())
        else:
            kept = paths.n_keys.int().repeat_interleave(q.size(0) // paths.n_keys.numel())
            slots = KeptKeys(paths.table[:, : paths.end], kept)
    if plain:
        return reference.attend_kept(q, keys, values, slots, n_heads, dropout_p, shift)
    q, slots = _rows(q), KeptKeys(_rows(slots.indices), slots.counts.contiguous())
    keys, values = _rows(keys), _rows(values)
    if chosen == "cpu":
        own = {} if shift is None else {"own": shift.lines.pairs, "shift": shift.value.contiguous()}
        out = torch.ops.fairseq_lasformer.attend_kept(q.float().contiguous(), keys, values, *slots, n_heads, **own)
        return out.to(q.dtype)
    with current(q):
        return _module(chosen).attend_kept(q, keys, values, slots, n_heads, shift)


def _attend_source(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    paths: KeyIndex,
    n_heads: int,
    dropout_p: float = 0.0,
    shift: OwnShift | None = None,
) -> Tensor:
    """Compute dense attention over the source: an item's rows are the queries of one product with its keys."""
    n_items, n_keys, width = keys.shape
    queries, k, v = (t.reshape(n_items, -1, n_heads, width // n_heads).transpose(1, 2) for t in (q, keys, values))
    mask = None  # with a mask, the GPU's fast kernels do not apply
    if not paths.full:  # of an item, or of each of several ranges of rows within it
        each = q.size(0) // paths.n_keys.numel() if paths.n_keys.numel() > n_items else 1
        mask = paths.allowed().repeat_interleave(each, 0).unflatten(0, (n_items, -1))[:, None]
    if shift is not None:
        added = (
            (shift.value[:, :, None] * shift.lines.among(n_keys)[:, None])
            .unflatten(0, (n_items, -1))
            .transpose(1, 2)
            .to(q.dtype)
        )
        mask = added if mask is None else added.masked_fill(~mask, float("-inf"))
    out = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, dropout_p=dropout_p)
    out = out.transpose(1, 2).reshape(q.shape)
    return out.masked_fill((paths.n_keys == 0).repeat_interleave(q.size(0) // paths.n_keys.numel())[:, None], 0.0)
