"""Forms of a selection, one for each implementation of a full pass, and the choice between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer import ops
from fairseq_lasformer.nn.selection import Kappa, Selection, Teaching
from fairseq_lasformer.ops import (
    EVERY_ROW,
    KAPPA_ONE,
    AttentionMask,
    Choice,
    KeptKeys,
    KeyIndex,
    OwnShift,
    RowSample,
    StraightThrough,
    Supervision,
    Teachers,
    own_first,
)


class _Unsupervised:
    """A form that does not teach a learned pattern."""

    explicit: ClassVar[bool] = False
    contiguous: ClassVar[bool] = False

    def supervise(self, teachers: Teachers) -> None:
        return None

    def kept(self, every: bool = False) -> None:
        return None


@dataclass(frozen=True)
class FullSelection(_Unsupervised):
    """Every key that the mask allows: dense attention with PyTorch's fused kernel; with padding on GPUs, in tiles."""

    mask: AttentionMask

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str, bias: Tensor | None = None
    ) -> Tensor:
        mask, n_keys = self.mask, k.size(2)
        if backend == "reference":
            every = mask.full(q.size(0), q.size(2), n_keys, q.device)
            return ops.reference.selected_attention(q, k, v, every, mask, None, dropout_p, bias)
        masked = mask.key_padding is not None or bias is not None
        if masked and ops.backend_for(q.device, backend) == "triton" and ops.fits(q):
            bits = ops.allowed_bitmask(mask, q, n_keys)
            return ops.tiled_attention(q, k, v, bits, mask, None, dropout_p, bias)
        if bias is not None:
            every = mask.full(q.size(0), q.size(2), n_keys, q.device)
            return ops.selected_attention(q, k, v, every, mask, None, dropout_p, bias)
        with _without_plans(q):
            if mask.causal and mask.key_padding is None:
                return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
            allowed = mask.rows(0, q.size(2), q.size(2), n_keys, q.device)
            if allowed is None:
                return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None], dropout_p=dropout_p)
        return out.masked_fill(~allowed.any(-1)[:, None, :, None], 0.0)


@contextmanager
def _without_plans(q: Tensor) -> Iterator[None]:
    """Keep PyTorch from giving an attention to cuDNN, which plans for some 0.1 seconds for each new shape of a batch.

    In a CUDA graph, shapes repeat, and cuDNN is allowed.
    """
    switch = torch.backends.cuda
    if not q.is_cuda or torch.cuda.is_current_stream_capturing() or not switch.cudnn_sdp_enabled():
        yield
        return
    switch.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        switch.enable_cudnn_sdp(True)


@dataclass(frozen=True)
class GatheredSelection(_Unsupervised):
    """Kept keys as indices, for kernels that read only these keys (CPU inference)."""

    slots: KeptKeys  # the kept keys of B * Q rows; those of its own line come first
    mask: AttentionMask

    @classmethod
    def of_scores(cls, choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> GatheredSelection:
        assert choice.keys is not None
        return cls(ops.topk_gather(teaching.query, teaching.key, choice.keys, kappa.millionths, mask.own), mask)

    @classmethod
    def of_slots(
        cls, kept: KeptKeys, n_batch: int, n_keys: int, mask: AttentionMask, teaching: Teaching | None
    ) -> GatheredSelection:
        return cls(kept, mask)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str, bias: Tensor | None = None
    ) -> Tensor:
        queries, keys, values = _joined_heads(q, k, v)
        own, value = self.mask.own, self.mask.shift(bias, q.size(2), k.size(2))
        shift = None
        if own is not None and value is not None:
            shift = OwnShift(own.flattened().in_front(), value.transpose(1, 2).flatten(0, 1))
        out = ops.attend_kept(queries.flatten(0, 1), keys, values, None, self.slots, q.size(1), backend, shift=shift)
        return _heads(out, like=q)


@dataclass(frozen=True)
class EveryKey(_Unsupervised):
    """Every key of an item, for a kernel whose order of sums depends on the row alone (CPU inference)."""

    index: KeyIndex  # the keys of each item
    mask: AttentionMask

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str, bias: Tensor | None = None
    ) -> Tensor:
        shift = self.mask.shift(bias, q.size(2), k.size(2))
        queries, keys, values = _joined_heads(q, k, v)
        out = ops.dense_attention(queries, keys, values, self.index, q.size(1), self.mask.own, shift)
        return _heads(out, like=q)


@dataclass(frozen=True)
class MaskSelection:
    """Kept keys as a mask, used in training, with attention dropout, and for short or dense passes."""

    keep_mask: Tensor  # bool [B, Q, K], a subset of what `mask` allows
    mask: AttentionMask
    teaching: Teaching | None = None  # None for patterns that are not learned

    explicit: ClassVar[bool] = True
    contiguous: ClassVar[bool] = True

    @classmethod
    def of_scores(cls, choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> MaskSelection:
        return cls(ops.topk_mask(teaching.query, teaching.key, mask, kappa.millionths), mask, teaching)

    @classmethod
    def of_slots(
        cls, kept: KeptKeys, n_batch: int, n_keys: int, mask: AttentionMask, teaching: Teaching | None
    ) -> MaskSelection:
        return cls(ops.kept_mask(kept, n_batch, n_keys), mask, teaching)

    @classmethod
    def of_mask(cls, keep_mask: Tensor, mask: AttentionMask, teaching: Teaching | None) -> MaskSelection:
        return cls(keep_mask, mask, teaching)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str, bias: Tensor | None = None
    ) -> Tensor:
        return ops.selected_attention(q, k, v, self.keep_mask, self.mask, _through(self.teaching), dropout_p, bias)

    def supervise(self, teachers: Teachers) -> Supervision | None:
        return None if self.teaching is None else _supervise(self.teaching, teachers, self.kept(), self.mask)

    def kept(self, every: bool = False) -> Tensor:
        return _sample(self.teaching, every).of(self.keep_mask, 1)


@dataclass(frozen=True)
class ReferenceSelection(MaskSelection):
    """The same, attended to and supervised by the definitions (``--attention-backend reference``)."""

    @classmethod
    def of_scores(cls, choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> ReferenceSelection:
        return cls(ops.reference.topk_mask(teaching.query, teaching.key, mask, kappa.millionths), mask, teaching)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str, bias: Tensor | None = None
    ) -> Tensor:
        through = _through(self.teaching)
        return ops.reference.selected_attention(q, k, v, self.keep_mask, self.mask, through, dropout_p, bias)

    def supervise(self, teachers: Teachers) -> Supervision | None:
        if self.teaching is None:
            return None
        sel_q, sel_k, _, sample = self.teaching
        return ops.reference.supervise(sel_q, sel_k, teachers, self.kept(), self.mask, sample)


@dataclass(frozen=True)
class SlotSelection:
    """A few kept keys as indices, used in training (CPU)."""

    slots: KeptKeys  # the kept keys of B * Q rows
    # mask, teaching: see `MaskSelection`
    mask: AttentionMask
    # n_batch, n_keys: B and K
    n_batch: int
    n_keys: int
    teaching: Teaching | None = None

    explicit: ClassVar[bool] = True
    contiguous: ClassVar[bool] = True

    @classmethod
    def of_scores(cls, choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> SlotSelection:
        assert choice.keys is not None
        slots = ops.topk_slots(teaching.query, teaching.key, choice.keys, mask, kappa.millionths)
        return cls(slots, mask, teaching.key.size(0), teaching.key.size(1), teaching)

    @classmethod
    def of_slots(
        cls, kept: KeptKeys, n_batch: int, n_keys: int, mask: AttentionMask, teaching: Teaching | None
    ) -> SlotSelection:
        return cls(kept, mask, n_batch, n_keys, teaching)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str, bias: Tensor | None = None
    ) -> Tensor:
        return ops.gathered_attention(q, k, v, self.slots, self.mask, _through(self.teaching), dropout_p, bias)

    def supervise(self, teachers: Teachers) -> Supervision | None:
        return None if self.teaching is None else _supervise(self.teaching, teachers, self.kept(), self.mask)

    def kept(self, every: bool = False) -> Tensor:
        return ops.kept_mask(self.slots, self.n_batch, self.n_keys, _sample(self.teaching, every))


@dataclass(frozen=True)
class BitmaskSelection:
    """Kept keys as a bitmask, for Triton's tiled kernels (GPU, training and inference)."""

    bits: Tensor  # int32 [B, Q, ceil(K / 32)]
    # mask, teaching: see `MaskSelection`
    mask: AttentionMask
    n_keys: int  # number of keys (K)
    teaching: Teaching | None = None

    explicit: ClassVar[bool] = True
    contiguous: ClassVar[bool] = False

    @classmethod
    def of_scores(cls, choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> BitmaskSelection:
        bits = ops.topk_bitmask(teaching.query, teaching.key, mask, kappa.on_device)
        return cls(bits, mask, teaching.key.size(1), teaching)

    @classmethod
    def of_slots(
        cls, kept: KeptKeys, n_batch: int, n_keys: int, mask: AttentionMask, teaching: Teaching | None
    ) -> BitmaskSelection:
        return cls(ops.bitmask_of(kept, n_batch, n_keys), mask, n_keys, teaching)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str, bias: Tensor | None = None
    ) -> Tensor:
        return ops.tiled_attention(q, k, v, self.bits, self.mask, _through(self.teaching), dropout_p, bias)

    def supervise(self, teachers: Teachers) -> Supervision | None:
        if self.teaching is None:
            return None
        sel_q, sel_k, _, sample = self.teaching
        return ops.tiled_supervise(sel_q, sel_k, teachers, self.bits, self.mask, sample)

    def kept(self, every: bool = False) -> Tensor:
        return ops.mask_of(_sample(self.teaching, every).of(self.bits, 1), self.n_keys)


class _Rows:
    """Kept keys for kernels whose order of sums depends on the row alone, see :class:`EveryKey`."""

    @staticmethod
    def of_scores(choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> Selection:
        assert choice.keys is not None
        # the choice must not depend on the lengths of a batch, as the two add in different orders
        if kappa.millionths >= KAPPA_ONE:
            return EveryKey(choice.keys, mask)
        kept = ops.topk_of_rows(teaching.query, teaching.key, choice.keys, kappa.millionths, mask.own)
        return GatheredSelection(kept, mask)

    of_slots = GatheredSelection.of_slots


FORMS: Mapping[str, Any] = {
    "reference": ReferenceSelection,
    "bitmask": BitmaskSelection,
    "rows": _Rows,
    "gather": GatheredSelection,
    "slots": SlotSelection,
    "mask": MaskSelection,
}
"""The forms by their names in :data:`ops.choice.FORMS`, which knows what each rejects.

``of_scores`` makes one by scores, ``of_slots`` of slots that were found in any way, and ``of_mask``, where there is
one, of a mask.
"""


def select(choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> Selection:
    """Select the keys of a full pass by the scores of the selector's projections (eq 1, 2)."""
    selection: Selection = FORMS[choice.form].of_scores(choice, mask, teaching, kappa)
    return selection


def selected(
    choice: Choice, kept: KeptKeys, n_batch: int, n_keys: int, mask: AttentionMask, teaching: Teaching | None = None
) -> Selection:
    """Return kept keys of B * Q rows, found in any way, in the form for an implementation.

    The keys of a query's own line are kept besides, before all others.

    Args:
        teaching: paths through which a learned pattern learns.
    """
    if mask.own is not None:
        kept = own_first(kept, mask.own.slots())
    selection: Selection = FORMS[choice.form].of_slots(kept, n_batch, n_keys, mask, teaching)
    return selection


def selected_by(choice: Choice, keep_mask: Tensor, mask: AttentionMask, teaching: Teaching | None = None) -> Selection:
    """Return kept keys, bool [B, Q, K], found in any way, in the form for an implementation; see :func:`selected`."""
    form = FORMS[choice.form]
    if hasattr(form, "of_mask"):
        if mask.own is not None:
            keep_mask = keep_mask | mask.own.among(keep_mask.size(2))
        selection: Selection = form.of_mask(keep_mask, mask, teaching)
        return selection
    n_batch, _, n_keys = keep_mask.shape
    return selected(choice, ops.kept_of(keep_mask.flatten(0, 1)), n_batch, n_keys, mask, teaching)


def every(choice: Choice, mask: AttentionMask) -> Selection:
    """Return every key that the mask allows, in the form for an implementation."""
    return EveryKey(choice.keys, mask) if choice.form == "rows" and choice.keys is not None else FullSelection(mask)


def _joined_heads(*tensors: Tensor) -> list[Tensor]:
    """Reshape each [B, H, N, D] to [B, N, H * D]."""
    return [t.transpose(1, 2).flatten(2) for t in tensors]


def _heads(out: Tensor, like: Tensor) -> Tensor:
    """Reshape [..., H * D] to [B, H, Q, D], the shape of ``like``."""
    n_batch, n_heads, n_queries, width = like.shape
    return out.view(n_batch, n_queries, n_heads, width).transpose(1, 2)


def _sample(teaching: Teaching | None, every: bool) -> RowSample:
    return EVERY_ROW if every or teaching is None else teaching.sample


def _supervise(teaching: Teaching, teachers: Teachers, kept: Tensor, mask: AttentionMask) -> Supervision:
    sel_q, sel_k, _, sample = teaching
    return ops.supervise(sel_q, sel_k, teachers, kept, mask, sample)


def _through(teaching: Teaching | None) -> StraightThrough | None:
    return None if teaching is None else teaching.through()
