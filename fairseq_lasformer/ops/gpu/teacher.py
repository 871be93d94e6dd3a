"""Teaching of a selector on GPUs: supervision, and the straight-through gradient of attention in tiles.

Definitions: ``reference.supervise``, and ``reference.selected_attention`` with the selector's projections. The same in
plain PyTorch: ``supervise``, ``straight_through``. Kernels: those of the same names. Nothing synchronises.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops.backends import current, required_kernels, triton_kernels
from fairseq_lasformer.ops.blocks import BLOCK_ELEMENTS, MINIMUM_ROWS
from fairseq_lasformer.ops.straight_through import through_gradient
from fairseq_lasformer.ops.supervise import supervise
from fairseq_lasformer.ops.types import (
    EVERY_ROW,
    Attended,
    AttentionMask,
    DropoutMask,
    FunctionContext,
    KeptKeys,
    RowSample,
    StraightThrough,
    Supervision,
    Teachers,
)

WORD = 32


def fits(q: Tensor) -> bool:
    """Return whether Triton's kernels support heads of this type and width."""
    kernels = triton_kernels("tiles")
    return kernels is not None and kernels.fits(q)


def mask_of(bits: Tensor, n_keys: int) -> Tensor:
    """Convert a bitmask to a mask: int32 [B, R, words] -> bool [B, R, K]."""
    lanes = torch.arange(WORD, device=bits.device)
    return ((bits[..., None] >> lanes) & 1).bool().flatten(2)[..., :n_keys]


def bitmask_of(kept: KeptKeys, n_batch: int, n_keys: int) -> Tensor:
    """Convert kept keys of B * Q rows to a bitmask, int32 [B, Q, ceil(K / 32)]; the inverse of :func:`mask_of`."""
    slots = kept.indices.view(n_batch, -1, kept.indices.size(1)).long()
    words = torch.zeros(*slots.shape[:2], -(-n_keys // WORD), dtype=torch.int64, device=slots.device)
    bits = torch.ones_like(slots).masked_fill_(slots < 0, 0) << (slots % WORD)
    return words.scatter_add_(2, slots.clamp_min(0) // WORD, bits).int()  # each key once: the sum is their union


class _Block(NamedTuple):
    """Some rows of a sample."""

    rows: slice  # their indices in the sample
    query: int  # index of the first of them among all queries
    n_seen: int  # number of leading keys that they are matched against
    first: int  # the last key that the first of them may attend to, if the mask is causal


def _blocks(
    n_batch: int, n_queries: int, n_keys: int, causal: bool, sample: RowSample, device: torch.device
) -> Iterator[_Block]:
    """Split a sample into blocks of at most ``BLOCK_ELEMENTS`` pairs (heads share them); a single one sees all keys."""
    limit = BLOCK_ELEMENTS.get(device.type, BLOCK_ELEMENTS["cpu"])
    step = max(MINIMUM_ROWS, limit // max(1, n_batch * n_keys))
    n_rows = len(range(sample.offset, n_queries, sample.stride))
    for start in range(0, n_rows, step):
        rows = slice(start, min(start + step, n_rows))
        query = sample.offset + start * sample.stride
        first = query + n_keys - n_queries
        all_keys = not causal or n_rows <= step
        seen = n_keys if all_keys else first + 1 + (rows.stop - 1 - start) * sample.stride
        yield _Block(rows, query, seen, first)


def tiled_supervise(
    sel_q: Tensor,
    sel_k: Tensor,
    teachers: Teachers,
    bits: Tensor,
    mask: AttentionMask,
    sample: RowSample = EVERY_ROW,
) -> Supervision:
    """Supervise a selector, see :func:`supervise.supervise`, with the kept keys of all queries as a bitmask.

    Args:
        sel_q, sel_k: [B, Q or K, S].
        bits: see :func:`tiles.topk_bitmask`.
        sample: the queries to learn from.
    """
    if mask.own is not None or not fits(teachers.queries[0]):
        kept = mask_of(sample.of(bits, 1), sel_k.size(1))
        return supervise(sel_q, sel_k, teachers, kept, mask, sample)
    queries, keys, query_padding, kl, *_ = teachers.detached()
    return Supervision(
        *_TiledSupervise.apply(sel_q, sel_k, bits, mask, query_padding, kl, sample, len(queries), *queries, *keys)
    )


class _TiledSupervise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionContext,
        sel_q: Tensor,
        sel_k: Tensor,
        bits: Tensor,
        mask: AttentionMask,
        query_padding: Tensor | None,
        kl: str,
        sample: RowSample,
        n_layers: int,
        *projections: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # no zeros in place of missing gradients
        teacher = _TiledTeacher(sel_q, sel_k, projections, mask, sample)
        mean, rows, sel_norm, norms = teacher.sweep(sample.of(bits, 1), query_padding, kl)
        ctx.save_for_backward(sel_q, sel_k, mask.key_padding, mean, rows, sel_norm, *norms, *projections)
        ctx.options = mask.causal, kl, sample, any(ctx.needs_input_grad[8:])
        n_batch, n_queries = sel_q.shape[:2]
        totals = rows.sum((1, 2))
        if sample.stride == 1:
            return _results(ctx, *totals, totals[3])
        if query_padding is None and mask.key_padding is None and (not mask.causal or n_queries <= sel_k.size(1)):
            n_valid = totals.new_full((), n_batch * n_queries)
            masses = totals[1:3] * (n_queries / rows.size(2))
        else:
            valid = (mask.counts(n_queries, sel_k.size(1), sel_q.device) > 0).expand(n_batch, n_queries)
            n_valid = (valid if query_padding is None else valid & ~query_padding).sum().float()
            masses = totals[1:3] * (n_valid / totals[3].clamp(min=1))
        return _results(ctx, totals[0] * sample.stride, masses[0], masses[1], n_valid, n_valid)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionContext, d_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        causal, kl, sample, live = ctx.options
        sel_q, sel_k, key_padding, mean, rows, sel_norm, *rest = ctx.saved_tensors
        n_layers = len(rest) // 3
        norms, projections = rest[:n_layers], rest[n_layers:]
        teacher = _TiledTeacher(sel_q, sel_k, (*projections,), AttentionMask(key_padding, causal), sample)
        d_sel_q, d_sel_k, *others = teacher.gradients(mean, rows, sel_norm, norms, kl, d_loss.float(), live)
        return (d_sel_q, d_sel_k, None, None, None, None, None, None, *(others or (None,) * (2 * n_layers)))


def _results(ctx: FunctionContext, loss: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    ctx.mark_non_differentiable(*others)
    return loss, *others


class _TiledTeacher:
    """The full attention of a group's layers, and the selector that learns from it."""

    def __init__(
        self, sel_q: Tensor, sel_k: Tensor, projections: tuple[Tensor, ...], mask: AttentionMask, sample: RowSample
    ) -> None:
        n_layers = len(projections) // 2
        self.sel_q, self.sel_k = sel_q[:, None], sel_k[:, None]
        self.queries, self.keys = projections[:n_layers], projections[n_layers:]
        self.mask, self.sample = mask, sample
        self.kernels = required_kernels("supervise")
        self.through = required_kernels("straight_through")
        n_batch, _, n_queries, _ = self.queries[0].shape
        self.blocks = list(_blocks(n_batch, n_queries, sel_k.size(1), mask.causal, sample, sel_q.device))

    def _own(self, x: Tensor, block: _Block) -> Tensor:
        return self.sample.of(x, 2)[:, :, block.rows]

    def sweep(
        self, bits: Tensor, query_padding: Tensor | None, kl: str
    ) -> tuple[Tensor | None, Tensor, Tensor, list[Tensor]]:
        """Compare the selector with the mean attention.

        Returns:
            the mean attention [B, R, K], if all rows fit one block; each row's contribution to the sums, and the
            log-normalisers, see ``kernels.supervise.Sums``.
        """
        sums = []
        ignored = None if query_padding is None else self.sample.of(query_padding, 1)
        for block in self.blocks:
            where = self.kernels.Rows(self.mask, block.first, self.sample.stride)
            queries = [self._own(q, block) for q in self.queries]
            keys = [k[:, :, : block.n_seen] for k in self.keys]
            with current(bits):
                mean, norms = self.kernels.mean_attention(queries, keys, None, where)
                rows, norm = self.kernels.sums(
                    self._own(self.sel_q, block), self.sel_k[:, :, : block.n_seen], mean, bits[:, block.rows],
                    None if ignored is None else ignored[:, block.rows], where, kl == "reverse",
                )  # fmt: skip
            sums.append((rows, norm, *norms))
        if len(sums) == 1:
            return mean, rows, norm, norms
        rows, norm, *norms = (torch.cat(parts, 2) for parts in zip(*sums))
        return None, rows, norm, norms

    def gradients(
        self,
        mean: Tensor | None,
        rows: Tensor,
        sel_norm: Tensor,
        norms: list[Tensor],
        kl: str,
        d_loss: Tensor,
        live: bool,
    ) -> list[Tensor]:
        """Compute the gradients of the selector's projections and, if ``live``, of the queries and keys.

        Args:
            mean: the mean attention, [B, R, K], if it was kept.
            rows, sel_norm, norms: results of :meth:`sweep`.
            kl, live: see :func:`tiled_supervise`.
        """
        # float16 can represent sums over thousands of these small gradients, but not the gradients
        dtype = torch.float32 if self.sel_q.dtype == torch.float16 else self.sel_q.dtype
        n_blocks = len(self.blocks)
        selector = _Sums(self.sel_q, self.sel_k, self.sample, n_blocks)
        heads = [_Sums(q, k, self.sample, n_blocks) for q, k in zip(self.queries, self.keys)] if live else []
        for block in self.blocks:
            where = self.kernels.Rows(self.mask, block.first, self.sample.stride)
            seen, part = slice(block.n_seen), (slice(None), slice(None), block.rows)
            queries, keys = [self._own(q, block) for q in self.queries], [k[:, :, seen] for k in self.keys]
            own = self.kernels.Sums(
                rows[part].contiguous(), sel_norm[part].contiguous(), [n[part].contiguous() for n in norms]
            )
            with current(rows):
                attention = mean
                if attention is None:
                    attention, _ = self.kernels.mean_attention(queries, keys, own.norms, where)
                d_scores, d_mean = self.kernels.targets(
                    self._own(self.sel_q, block), self.sel_k[:, :, seen], attention, own, d_loss, dtype, where,
                    kl == "reverse",
                )  # fmt: skip
                selector.add(d_scores, block)
                for layer, sums in enumerate(heads):
                    into, exact = self.through.Into(*sums.into(block)), dtype != sums.q.dtype
                    self.through.softmax_gradient(
                        queries[layer], keys[layer], own.norms[layer], d_mean, into, exact, where
                    )
        d_sel_q, d_sel_k = selector.found()
        gradients = [s.found() for s in heads]
        return [d_sel_q[:, 0], d_sel_k[:, 0], *(dq for dq, _ in gradients), *(dk for _, dk in gradients)]


class _Sums:
    """Gradients of queries and keys, block by block.

    Args:
        q, k: [B, H, Q or K, D].
        sample: the queries with gradients; the others get 0.
        blocks: number of blocks.
    """

    def __init__(self, q: Tensor, k: Tensor, sample: RowSample, blocks: int) -> None:
        self.q, self.k, self.sample = q, k, sample
        self.dq = torch.empty_like(q) if sample.stride == 1 else torch.zeros_like(q)
        self.dk = torch.empty_like(k) if blocks == 1 else torch.zeros_like(k, dtype=torch.float32)
        self.more = blocks > 1

    def into(self, block: _Block) -> tuple[Tensor, Tensor, bool]:
        """Return the destinations of the gradients of a block's queries and keys, and whether to add the latter."""
        return self._own(self.dq, block), self.dk[:, :, : block.n_seen], self.more

    def add(self, d_scores: Tensor, block: _Block) -> None:
        """Add a block's gradients, from those of its scores, [B, H, R, K]."""
        dq, dk, more = self.into(block)
        products = (d_scores, self.k[:, :, : block.n_seen]), (d_scores.transpose(2, 3), self._own(self.q, block))
        for (scores, x), to, add in zip(products, (dq, dk), (False, more)):
            x = x.to(scores.dtype)
            if not add and to.dtype == scores.dtype and to.is_contiguous():
                torch.bmm(scores.flatten(0, 1), x.flatten(0, 1), out=to.flatten(0, 1))
                continue
            product = torch.matmul(scores, x)
            to.add_(product) if add else to.copy_(product)

    def _own(self, x: Tensor, block: _Block) -> Tensor:
        return self.sample.of(x, 2)[:, :, block.rows]

    def found(self) -> tuple[Tensor, Tensor]:
        return self.dq, self.dk.to(self.k.dtype)


def tiled_through_gradient(
    attended: Attended, delta: Tensor, mask: AttentionMask, through: StraightThrough, dropout: DropoutMask
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the selector's projections, see :func:`straight_through.through_gradient`.

    Args:
        attended, mask, through, dropout: see there.
        delta: dO . O, float32 [B, H, Q].
    """
    if mask.own is not None:
        return through_gradient(attended, mask, through, dropout)
    (q, k, v, _, d_out, lse, _), (sel_q, sel_k, bounded, sample) = attended, through
    kernels = required_kernels("straight_through")
    (n_batch, _, n_queries, _), n_keys = q.shape, k.size(2)
    blocks = list(_blocks(n_batch, n_queries, n_keys, mask.causal, sample, q.device))
    selector = _Sums(sel_q[:, None], sel_k[:, None], sample, len(blocks))
    own_q, own_d, own_lse, own_delta, own_sel = (sample.of(t, 2) for t in (q, d_out, lse, delta, selector.q))
    for block in blocks:
        rows, seen = (slice(None), slice(None), block.rows), (slice(None), slice(None), slice(block.n_seen))
        where = kernels.Rows(mask, block.first, sample.stride)
        of_block = own_q[rows], own_d[rows], k[seen], v[seen], own_lse[rows], own_delta[rows]
        with current(q):
            heads = kernels.HeadRows(*of_block, block.query, n_queries)
            d_mask = kernels.mask_gradient(heads, bounded, dropout, where)
            into = kernels.Into(*selector.into(block))
            kernels.softmax_gradient(own_sel[rows], selector.k[seen], None, d_mask, into, False, where)
    d_sel_q, d_sel_k = selector.found()
    return d_sel_q[:, 0], d_sel_k[:, 0]
