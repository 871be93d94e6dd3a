"""The definition of everything in :mod:`fairseq_lasformer.ops`, in plain PyTorch, materialising what it needs.

Every other implementation is tested against this file, forward and backward.

Shapes: B batch, H heads, Q queries, K keys, D head width, S selector width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

KAPPA_ONE = 1_000_000
"""kappa = 1 in the integers kappa is kept in (millionths): exact on every device, untouched by half precision."""

MIN_KEYS = 10
"""No query keeps fewer keys than this, unless fewer are allowed (spec: k_i)."""

LARGEST_EXPONENT = 80.0
"""Beyond exp(80) float32 ends; the straight-through gradient goes no further."""


class Allowed(NamedTuple):
    """Which keys a query may see at all, before any selection.

    Attributes:
        key_padding: bool [B, K], True where the key is padding; None where nothing is.
        causal: query i sees keys 0..i + (K - Q), as in decoder self-attention.
    """

    key_padding: Tensor | None
    causal: bool

    def rows(self, start: int, stop: int, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Bool [B or 1, stop - start, n_keys], True where allowed; None where everything is."""
        mask = None
        if self.causal:
            last = torch.arange(start, stop, device=device) + (n_keys - n_queries)
            mask = (torch.arange(n_keys, device=device) <= last[:, None])[None]
        if self.key_padding is not None:
            keys = ~self.key_padding[:, None, :n_keys]
            mask = keys.expand(-1, stop - start, -1) if mask is None else mask & keys
        return mask

    def full(self, n_batch: int, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Bool [B, Q, K], True where allowed."""
        mask = self.rows(0, n_queries, n_queries, n_keys, device)
        if mask is None:
            mask = torch.ones(1, n_queries, n_keys, dtype=torch.bool, device=device)
        return mask.expand(n_batch, n_queries, n_keys)


class Paths(NamedTuple):
    """Where the keys are that R decoding rows may see, of N sentences; R / N consecutive rows a sentence.

    Attributes:
        table: int32 [R, >= end], the slot of each position of a row; None where position j lies in slot j.
        start, n_keys: int64 [N], the allowed positions are start .. start + n_keys - 1.
        end: no position is beyond it; an int, known without asking the device.
    """

    table: Tensor | None
    start: Tensor
    n_keys: Tensor
    end: int

    @classmethod
    def over(cls, padding: Tensor) -> Paths | None:
        """Paths over a source of padding mask bool [N, K]; None where padding stands between keys."""
        paths = cls(None, (~padding).int().argmax(1), (~padding).sum(1), padding.size(1))
        return paths if torch.equal(paths.allowed(), ~padding) else None

    def allowed(self) -> Tensor:
        """Bool [N, end], the allowed positions of each sentence."""
        position = torch.arange(self.end, device=self.start.device)
        return (position >= self.start[:, None]) & (position < (self.start + self.n_keys)[:, None])

    def slots(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """Slots int64 [R, end] of all positions, and which of them are allowed, bool [R, end]."""
        allowed = self.allowed().repeat_interleave(n_rows // self.start.numel(), 0)
        if self.table is not None:
            return self.table[:, : self.end].long(), allowed
        return torch.arange(self.end, device=self.start.device).expand(n_rows, -1), allowed


class Slots(NamedTuple):
    """The kept keys of decoding rows.

    Attributes:
        slot: int32 [R, k], slots in ascending order of position, -1 behind a row's last.
        kept: int32 [R], how many a row keeps.
    """

    slot: Tensor
    kept: Tensor


class Supervision(NamedTuple):
    """What the supervision of one selector gives, each a scalar sum over the valid queries.

    Attributes:
        kl: the loss (eq 4-6), float32, differentiable.
        mass: the selector's mass over the kept keys, Sum_{j kept} A_s.
        recall: the attention's own mass over the kept keys, Sum_{j kept} mean A_h (recall@k).
        queries: how many queries were summed over.
    """

    kl: Tensor
    mass: Tensor
    recall: Tensor
    queries: Tensor


def keep_counts(n_allowed: Tensor, kappa: Tensor | int) -> Tensor:
    """k_i = min(n_i, max(10, ceil(kappa * n_i))).

    Args:
        n_allowed: int64, allowed keys per query, any shape.
        kappa: share to keep, in millionths (:data:`KAPPA_ONE` is 1).
    """
    keep = torch.div(n_allowed * kappa + (KAPPA_ONE - 1), KAPPA_ONE, rounding_mode="floor")
    return torch.minimum(keep.clamp(min=MIN_KEYS), n_allowed)


def selector_scores(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    """S_s = Q_s K_s^T / sqrt(d_s) in float32 (eq 1), -inf where not allowed.

    Args:
        q: [B, Q, S]. k: [B, K, S]. allowed: bool [B, Q, K].
    """
    scores = torch.matmul(q.float(), k.float().transpose(1, 2)) * q.size(-1) ** -0.5
    return scores.masked_fill(~allowed, float("-inf"))


def select(scores: Tensor, keep: Tensor) -> Tensor:
    """The kept keys: the ``keep`` highest scores of each row; equal scores: the lowest index wins (eq 2).

    Args:
        scores: [..., K], -inf where not allowed; NaN ranks lowest.
        keep: int64 [...], at most the number of allowed keys of the row.

    Returns:
        bool [..., K] with ``keep`` True in each row.
    """
    order = scores.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    order = order.argsort(dim=-1, descending=True, stable=True)
    first = torch.arange(scores.size(-1), device=scores.device) < keep[..., None]
    return torch.zeros_like(first).scatter(-1, order, first)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the True keys; a row without any is 0, not NaN."""
    scores = scores.masked_fill(~mask, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top.masked_fill(top == float("-inf"), 0.0)).exp()
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def attention_scores(q: Tensor, k: Tensor) -> Tensor:
    """Q_h K_h^T / sqrt(d_h), [B, H, Q, K], from q [B, H, Q, D] and k [B, H, K, D]."""
    return torch.matmul(q, k.transpose(2, 3)) * q.size(-1) ** -0.5


def selected_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    allowed: Tensor,
    sel_q: Tensor | None = None,
    sel_k: Tensor | None = None,
    bounded: bool = True,
) -> Tensor:
    """Attention over the kept keys (eq 3), straight-through where the selector's projections are given.

    The mask enters as M + A_s - sg(A_s): the forward value is the hard mask's, the gradient reaches the selector.

    Args:
        q, k, v: [B, H, Q or K, D]. mask, allowed: bool [B, Q, K]. sel_q, sel_k: [B, Q or K, S].
        bounded: in that gradient, a key outside the selection weighs at most as much as all kept ones together. Without
            the bound, which eq 3 does not have, one that the selector has missed outweighs everything else: starting
            from a trained dense model, gradient norms of 10^5 to 10^7 were seen, and training diverged.

    Returns:
        [B, H, Q, D]; rows with no kept key are 0.
    """
    scores = attention_scores(q, k).masked_fill(~allowed[:, None], float("-inf"))
    kept = mask[:, None].to(scores.dtype)
    bound = scores.detach().masked_fill(~mask[:, None], float("-inf")).logsumexp(-1, keepdim=True)
    scores = torch.where(mask[:, None], scores, torch.minimum(scores, bound + (0.0 if bounded else LARGEST_EXPONENT)))
    # subtracting the kept keys' maximum leaves the ratio, and its gradient, as it is
    top = scores.detach().masked_fill(~mask[:, None], float("-inf")).amax(-1, keepdim=True)
    weights = (scores - top.masked_fill(top == float("-inf"), 0.0)).exp()
    if sel_q is not None and sel_k is not None:
        soft = masked_softmax(torch.matmul(sel_q, sel_k.transpose(1, 2)) * sel_q.size(-1) ** -0.5, allowed)[:, None]
        kept = kept + (soft - soft.detach()).to(scores.dtype)
    weights = weights * kept
    total = weights.sum(-1, keepdim=True)
    empty = ~mask.any(-1)[:, None, :, None]
    return torch.matmul(weights / total.masked_fill(empty, 1.0), v).masked_fill(empty, 0.0)


def supervise(
    sel_q: Tensor,
    sel_k: Tensor,
    queries: list[Tensor],
    keys: list[Tensor],
    mask: Tensor,
    allowed: Tensor,
    valid: Tensor,
    kl: str = "forward",
    target: str = "live",
) -> Supervision:
    """The selector's supervision by the full attention of the layers it serves (eq 4-6), and the kept mass (eq 7).

    Args:
        sel_q, sel_k: [B, Q or K, S]. queries, keys: one [B, H, Q or K, D] a layer.
        mask, allowed: bool [B, Q, K]. valid: bool [B, Q], False for padded queries.
        kl: ``forward`` KL(A || A_s) or ``reverse`` KL(A_s || A). target: ``live`` or ``detached``.
    """
    valid = valid & allowed.any(-1)
    log_sel = torch.matmul(sel_q, sel_k.transpose(1, 2)) * sel_q.size(-1) ** -0.5
    log_sel = log_sel.masked_fill(~allowed, -1e30).log_softmax(-1)
    sel = log_sel.exp() * allowed
    heads = [masked_softmax(attention_scores(q, k), allowed[:, None]).mean(1) for q, k in zip(queries, keys)]
    attention = torch.stack(heads).mean(0)
    if target == "detached":
        attention = attention.detach()
    log_attention = attention.clamp(min=torch.finfo(attention.dtype).tiny).log()
    terms = attention * (log_attention - log_sel) if kl == "forward" else sel * (log_sel - log_attention)
    rows = terms.masked_fill(~allowed, 0.0).sum(-1)
    return Supervision(
        kl=rows[valid].sum().to(torch.promote_types(rows.dtype, torch.float32)),
        mass=(sel * mask).sum(-1)[valid].sum().detach(),
        recall=(attention * mask).sum(-1)[valid].sum().detach(),
        queries=valid.sum(),
    )


def _of_rows(store: Tensor, slots: Tensor) -> Tensor:
    """What ``store`` [N, C, W] holds in each row's slots int64 [R, n]: [R, n, W]."""
    n_rows = slots.size(0)
    sentence = torch.arange(n_rows, device=store.device) // (n_rows // store.size(0))
    return store[sentence[:, None], slots]


def select_slots(q: Tensor, keys: Tensor, paths: Paths, kappa: Tensor | int) -> Slots:
    """The kept keys of one decoding step (eq 1, 2).

    Args:
        q: [R, S], the newest queries. keys: [N, C, S], the selector's keys by slot.
    """
    slots, allowed = paths.slots(q.size(0))
    scores = selector_scores(q[:, None], _of_rows(keys, slots), allowed[:, None])[:, 0]
    # NaN and -inf rank lowest of what is allowed, before what is not
    scores = scores.masked_fill(allowed & ~(scores > float("-inf")), torch.finfo(scores.dtype).min)
    mask = select(scores, keep_counts(allowed.sum(1), kappa))
    kept = mask.sum(1)
    order = mask.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : max(1, int(kept.max()))]
    index = slots.gather(1, order).masked_fill(~mask.gather(1, order), -1)
    return Slots(index.int(), kept.int())


def attend_slots(q: Tensor, keys: Tensor, values: Tensor, slots: Slots, n_heads: int, dropout_p: float = 0.0) -> Tensor:
    """Attention of one decoding step over the kept keys (eq 3).

    Args:
        q: [R, H*D]. keys, values: [N, C, H*D], by slot. dropout_p: dropout on the attention weights.

    Returns:
        [R, H*D]; a row that keeps no key is 0.
    """
    n_rows, width = q.shape
    index, shape = slots.slot.long(), (n_rows, slots.slot.size(1), n_heads, width // n_heads)
    k, v = (_of_rows(t, index.clamp(min=0)).view(shape).transpose(1, 2) for t in (keys, values))
    weights = attention_scores(q.view(n_rows, 1, n_heads, -1).transpose(1, 2), k).float()
    weights = masked_softmax(weights, (index >= 0)[:, None, None])
    if dropout_p > 0:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    return torch.matmul(weights.to(v.dtype), v).reshape(n_rows, width)
