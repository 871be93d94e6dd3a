"""Argument and return types of :mod:`fairseq_lasformer.ops`. Equations: arXiv 2309.14174.

Shapes: B batch, Q queries, K keys; in decoding, R rows (hypotheses) of N items (documents), and C slots per item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

KAPPA_ONE = 1_000_000
"""kappa = 1 in millionths. An integer kappa is exact on every device and unaffected by half precision."""

MIN_KEYS = 10
"""Minimum number of keys that a query keeps, unless fewer are allowed (k_i in section 3.3)."""


class FunctionContext(FunctionCtx):
    """Context of an autograd function: what the forward pass keeps, under any name, for the backward pass."""

    if TYPE_CHECKING:
        saved_tensors: tuple[Tensor, ...]
        needs_input_grad: tuple[bool, ...]

        def save_for_backward(self, *tensors: Tensor | None) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: object) -> None: ...


class OwnLines(NamedTuple):
    """The keys of each query's own line: they follow one another, and its mask allows them."""

    first: Tensor  # int64 [B, Q], the position of the first one; in a decoding step, [R]
    n_keys: Tensor  # int64 of the same shape, their number; 0 if there are none

    @property
    def pairs(self) -> Tensor:
        """Both numbers of each query, [..., 2], as the kernels take them."""
        return torch.stack([*self], -1)

    def of(self, rows: slice | Tensor) -> OwnLines:
        """Return those of some queries, [B, rows]."""
        return OwnLines(self.first[:, rows], self.n_keys[:, rows])

    def among(self, n_keys: int) -> Tensor:
        """Return which of the first ``n_keys`` keys are those of each query's line, bool [..., n_keys]."""
        key = torch.arange(n_keys, device=self.first.device)
        return (key >= self.first[..., None]) & (key < (self.first + self.n_keys)[..., None])

    def log_others(self, n_allowed: Tensor, dtype: torch.dtype) -> Tensor:
        """Return log |R_i|, the logarithm of the number of keys outside of each query's line, [B, Q] or [R].

        Args:
            n_allowed: int64, the number of keys that each query may attend to.
        """
        # float32 logarithms differ between processors; of float64 ones, what is left after rounding does not
        return (n_allowed - self.n_keys).clamp_min(1).double().log().to(dtype)

    def in_front(self) -> OwnLines:
        """Return as many keys, before all others."""
        return OwnLines(torch.zeros_like(self.first), self.n_keys)

    def flattened(self) -> OwnLines:
        """Return those of B * Q rows, [B * Q]."""
        return OwnLines(self.first.flatten(), self.n_keys.flatten())

    def slots(self, longest: int | None = None) -> KeptKeys:
        """Return the same keys as kept keys of B * Q rows; without ``longest``, the host waits for a GPU to find it."""
        longest = max(1, int(self.n_keys.max())) if longest is None else longest
        offset = torch.arange(longest, device=self.first.device)
        slots = (self.first[..., None] + offset).masked_fill(offset >= self.n_keys[..., None], -1)
        return KeptKeys(slots.flatten(0, -2).int(), self.n_keys.flatten().int())


class AttentionMask(NamedTuple):
    """Keys that each query is allowed to attend to, before any selection.

    Attributes:
        key_padding: bool [B, K], True where the key is padding; None if there is none.
        causal: query i sees keys 0 to i + (K - Q), as in decoder self-attention.
        ends: bool [B, K], True where the key is a separator or the end of sentence, for patterns that use the lines of
            the text; None if no pattern does.
        own: the keys of the queries' own lines, for attentions that read them (``--own-lines``); otherwise None.
    """

    key_padding: Tensor | None
    causal: bool
    ends: Tensor | None = None
    own: OwnLines | None = None

    def rows(self, start: int, stop: int, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return the mask of queries start to stop - 1.

        Returns:
            bool [B or 1, stop - start, n_keys], True where allowed; None if everything is allowed.
        """
        return self.at(torch.arange(start, stop, device=device), n_queries, n_keys)

    def at(self, positions: Tensor, n_queries: int, n_keys: int) -> Tensor | None:
        """Return the mask of the queries at ``positions``, int64 [R]; see :meth:`rows`."""
        mask = None
        if self.causal:
            last = positions + (n_keys - n_queries)
            mask = (torch.arange(n_keys, device=positions.device) <= last[:, None])[None]
        if self.key_padding is not None:
            keys = ~self.key_padding[:, None, :n_keys]
            mask = keys.expand(-1, positions.numel(), -1) if mask is None else mask & keys
        return mask

    def full(self, n_batch: int, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Return the mask of all queries, bool [B, Q, K], True where allowed."""
        mask = self.rows(0, n_queries, n_queries, n_keys, device)
        if mask is None:
            mask = torch.ones(1, n_queries, n_keys, dtype=torch.bool, device=device)
        return mask.expand(n_batch, n_queries, n_keys)

    def others(self, allowed: Tensor | None, n_keys: int, rows: slice | Tensor = slice(None)) -> Tensor | None:
        """Return which keys a query may select: those allowed that are not of its own line.

        Args:
            allowed: bool [B or 1, rows, n_keys], see :meth:`rows`; None if everything is allowed.

        Returns:
            bool [B or 1, rows, n_keys]; None for every key.
        """
        if self.own is None:
            return allowed
        elsewhere = ~self.own.of(rows).among(n_keys)
        return elsewhere if allowed is None else elsewhere & allowed

    def positions(self, n_keys: int, device: torch.device) -> Tensor:
        """Return the position of each key, from 0, without padding, int64 [B or 1, K]."""
        if self.key_padding is None:
            return torch.arange(n_keys, device=device)[None]
        return (~self.key_padding).cumsum(1) - 1

    def counts(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Return the number of allowed keys of each query, int64 [B or 1, Q or 1]."""
        seen = self.positions(n_keys, device) + 1
        return seen[:, n_keys - n_queries :] if self.causal else seen[:, -1:]

    def shift(self, bias: Tensor | None, n_queries: int, n_keys: int) -> Tensor | None:
        """Return what is added to the scores of a query's own line, instead of b_h - log |R_i| to those of the others.

        A softmax is the same if a number is added to all of its scores, and an own line is short.

        Args:
            bias: b_h [H], see ``reference.line_bias``; None without own lines.

        Returns:
            log |R_i| - b_h, float32 [B, H, Q], differentiable; None without own lines.
        """
        if bias is None or self.own is None:
            return None
        dtype = torch.promote_types(bias.dtype, torch.float32)
        return self.own.log_others(self.counts(n_queries, n_keys, bias.device), dtype)[:, None] - bias[:, None]


class RowSample(NamedTuple):
    """A systematic sample of the queries of a full pass: every ``stride``-th.

    Attributes:
        offset: the first query, 0 to stride - 1.
        stride: at least 1; 1 takes all queries.
    """

    offset: int
    stride: int

    def of(self, x: Tensor, dim: int) -> Tensor:
        """Return the sampled entries of ``x`` along a dimension."""
        return x if self.stride == 1 else x[(slice(None),) * dim + (slice(self.offset, None, self.stride),)]

    def within(self, rows: slice) -> slice:
        """Return which of the queries ``rows`` are sampled, counted from the first of them."""
        return slice((self.offset - rows.start) % self.stride, rows.stop - rows.start, self.stride)


EVERY_ROW = RowSample(0, 1)


class StraightThrough(NamedTuple):
    """Path of the translation loss to a selector: the mask of kept keys M enters as M + A_s - sg(A_s).

    Attributes:
        query, key: the selector's projections, [B, Q or K, S].
        bounded: whether the weight of a key outside the selection is at most 1 in that gradient.
        sample: the queries whose gradient is computed, scaled by the stride.
    """

    query: Tensor
    key: Tensor
    bounded: bool = True
    sample: RowSample = EVERY_ROW

    def projections(self) -> tuple[Tensor, Tensor]:
        """Return the projections, which receive the gradient."""
        return self.query, self.key


class EightBit(NamedTuple):
    """Keys or values in 8 bits, with one scale per head; see ``reference.quantised_heads``."""

    numbers: Tensor  # int8 [N, C, H*D], by slot
    scale: Tensor  # float32 [N, C, H]


class DropoutMask(NamedTuple):
    """A dropout mask that the forward and the backward pass each compute; see ``dropout.factors``."""

    p: float = 0.0  # probability of 0
    seed: int | Tensor = 0  # a number; for Triton's kernels, int64 [1] on their device, which a CUDA graph redraws

    @classmethod
    def drawn(cls, p: float) -> DropoutMask:
        """Draw a seed below 2^31 from torch's generator, if it is needed."""
        return cls(p, int(torch.randint(2**31, (1,))) if p > 0 else 0)

    @classmethod
    def drawn_on(cls, device: torch.device, p: float) -> DropoutMask:
        """Draw a seed below 2^31 from a device's generator, if it is needed."""
        return cls(p, torch.randint(2**31, (1,), device=device) if p > 0 else 0)

    def seed_or(self, other: Tensor) -> Tensor:
        """Return the seed for a kernel; without dropout, any other tensor, which is not read."""
        return self.seed if isinstance(self.seed, Tensor) else other


NO_DROPOUT = DropoutMask()


class Attended(NamedTuple):
    """Inputs of the backward pass of an attention."""

    # q, k, v: [B, H, Q or K, D]
    q: Tensor
    k: Tensor
    v: Tensor
    # out, d_out: the result and its gradient, [B, H, Q, D]
    out: Tensor
    d_out: Tensor
    lse: Tensor  # log-normalisers over the kept keys, [B, H, Q]; +inf in rows without any
    shift: Tensor | None = None  # what is added to the scores of own lines, [B, H, Q]; None without them


class Teachers(NamedTuple):
    """The full attention of the layers that a selector serves, which supervises it (eq 4-6).

    Attributes:
        queries, keys: projections of the heads of each layer, [B, H, Q or K, D].
        query_padding: bool [B, Q], True for queries to ignore; None if there are none.
        kl: ``forward``, KL(attention || selector), or ``reverse``.
        target: ``live`` (the loss also trains the attention) or ``detached``.
        line_biases: b_h [H] of each layer, which do not learn from the loss; None for each without own lines.
    """

    queries: list[Tensor]
    keys: list[Tensor]
    query_padding: Tensor | None = None
    kl: str = "forward"
    target: str = "live"
    line_biases: Sequence[Tensor | None] = ()

    def detached(self) -> Teachers:
        """Return them without gradients if the target is ``detached``; of the biases, never with gradients."""
        biases = [None if bias is None else bias.detach() for bias in self.line_biases] or [None] * len(self.queries)
        own = self._replace(line_biases=biases)
        if self.target != "detached":
            return own
        return own._replace(queries=[q.detach() for q in self.queries], keys=[k.detach() for k in self.keys])


class KeyIndex(NamedTuple):
    """Slots of the keys that R decoding rows may attend to; each item has R / N consecutive rows.

    Attributes:
        table: int32 [R, >= end], the slot of each position of a row; None if position j is in slot j.
        start: int64 [N], first allowed position of each item; or of as many ranges each of an item's rows, in order.
        n_keys: int64 of the same shape, number of allowed positions, start to start + n_keys - 1.
        end: exclusive upper bound of all positions, an int known without synchronising with the device.
        full: whether it is known, without synchronising, that every item may attend to all positions up to ``end``.
    """

    table: Tensor | None
    start: Tensor
    n_keys: Tensor
    end: int
    full: bool = False

    @classmethod
    def over(cls, padding: Tensor) -> KeyIndex | None:
        """Return the index of a source with padding mask bool [N, K]; None if there is padding between keys."""
        paths = cls(None, (~padding).int().argmax(1), (~padding).sum(1), padding.size(1))
        between, any_padding = torch.stack([(paths.allowed() == padding).any(), padding.any()]).tolist()
        return None if between else paths._replace(full=not any_padding)

    def allowed(self) -> Tensor:
        """Return the allowed positions of each item, bool [N, end]."""
        position = torch.arange(self.end, device=self.start.device)
        return (position >= self.start[:, None]) & (position < (self.start + self.n_keys)[:, None])

    def slots(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """Return the slots of all positions, int64 [R, end], and which of them are allowed, bool [R, end]."""
        allowed = self.allowed().repeat_interleave(n_rows // self.start.numel(), 0)
        if self.table is not None:
            return self.table[:, : self.end].long(), allowed
        return torch.arange(self.end, device=self.start.device).expand(n_rows, -1), allowed


class KeptKeys(NamedTuple):
    """Kept keys of R rows: a top-k result whose k varies by row.

    Attributes:
        indices: int32 [R, k], slots in ascending order of position, padded with -1.
        counts: int32 [R], number of keys that each row keeps.
    """

    indices: Tensor
    counts: Tensor


class OwnShift(NamedTuple):
    """Number that is added to the scores of a row's own line in a decoding step, see :meth:`AttentionMask.shift`."""

    lines: OwnLines  # where the keys of that line stand among those that the row reads, [R]
    value: Tensor  # log |R| - b_h, float32 [R, H]

    @classmethod
    def of(cls, own: OwnLines, bias: Tensor, index: KeyIndex, chosen: bool) -> OwnShift:
        """Return the shift of a step.

        Args:
            own: positions of each row's own line.
            bias: b_h [H].
            index: the keys that the rows may attend to.
            chosen: whether the keys were selected, and so begin with the own line; otherwise, all are read in order.
        """
        n_allowed = index.n_keys.repeat_interleave(own.n_keys.numel() // index.n_keys.numel())
        value = own.log_others(n_allowed, torch.float32)[:, None] - bias.float()
        return cls(own.in_front() if chosen else own, value)


class Supervision(NamedTuple):
    """Supervision of one selector, each field a scalar sum over the valid queries.

    Attributes:
        kl: the loss (eq 4-6), float32, differentiable.
        mass: the selector's mass on the kept keys, Sum_{j kept} A_s (eq 7), times what is read outside of own lines.
        recall: the attention's own mass on the kept keys outside of own lines, Sum_{j kept} mean A_h (recall@k).
        queries: number of queries summed over.
        elsewhere: the attention's mass outside of own lines: the number of queries, if there are none.
    """

    kl: Tensor
    mass: Tensor
    recall: Tensor
    queries: Tensor
    elsewhere: Tensor
