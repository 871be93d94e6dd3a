"""Learned pattern: a lightweight selector and the fraction of keys it keeps (eq 1, 2, 7 of arXiv 2309.14174)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.forms import select
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns.base import Pattern, PatternCost, PatternOptions
from fairseq_lasformer.nn.rotary import start_near
from fairseq_lasformer.nn.selection import Kappa, Selection, Teaching
from fairseq_lasformer.nn.sparsity import SparsityRule
from fairseq_lasformer.ops import (
    KAPPA_ONE,
    MIN_KEYS,
    AttentionMask,
    Choice,
    KeptKeys,
    PassShape,
    rotate,
    rotate_heads,
)

if TYPE_CHECKING:
    from fairseq_lasformer.nn.decoding.layer_cache import LayerCache


class Selector(Pattern):
    """Lightweight attention of one group of one attention module: W_Q and W_K of one narrow head, and kappa.

    ``kappa`` is an int64 buffer in millionths: it is saved with the model, unaffected by half precision, and changed
    only by :meth:`adapt`, between updates.

    Args:
        query_dim: width of the states that queries are projected from (d).
        key_dim: width of the states that keys are projected from.
        select_dim: width of the selector's head (d_s).
        gradient: how the translation loss reaches the selector (``--select-gradient``).
        backend: backend for inference (``--attention-backend``).
        live: whether gradients reach the states that are projected (``--select-input``).
        same_text: whether queries and keys are of the same text: self-attention.
        own_lines: whether it selects lines near to the query's at the start, see ``nn.rotary``.
    """

    name = "learned"
    usage = "learned"
    supervised = True
    adaptive = True
    packable = True
    kappa: Tensor

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        select_dim: int,
        rule: SparsityRule,
        gradient: str = "bounded",
        backend: str = "auto",
        live: bool = True,
        same_text: bool = True,
        own_lines: bool = False,
    ) -> None:
        super().__init__()
        self.q_proj = nn.Linear(query_dim, select_dim, bias=own_lines)
        self.k_proj = nn.Linear(key_dim, select_dim, bias=own_lines)
        for projection in (self.q_proj, self.k_proj):
            nn.init.xavier_uniform_(projection.weight)
            if own_lines:
                nn.init.zeros_(projection.bias)
        if own_lines:
            start_near(self.q_proj, self.k_proj, 1)
        self.rule = rule
        self.gradient = gradient
        self.backend, self.live, self.same_text = backend, live, same_text
        self.register_buffer("kappa", torch.tensor(KAPPA_ONE, dtype=torch.int64))
        self._seen: tuple[tuple[int, int], int] | None = None

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> Selector:
        if argument:
            raise ValueError(f"{cls.name} takes no argument; its options are --select-dim, --sparsity-threshold, ...")
        return cls(*options)

    def forward(self, full: Pass) -> Selection:
        query, key, mask, as_mask, sampling, rotations = full
        if not self.live:
            query, key = query.detach(), key.detach()
        q, k = rotate(self.q_proj(query), rotations[0]), rotate(self.k_proj(key), rotations[1])
        share = self.millionths / KAPPA_ONE
        teaching = Teaching(q, k, self.gradient, sampling.sample(q.size(0), q.size(1), share))
        teaches = torch.is_grad_enabled() or as_mask
        shape = PassShape(q, q.size(1), k.size(1), share, mask, self.backend, teaches, as_mask, bool(sampling.rows))
        shape = shape._replace(reproducible=self.reproducible and full.fixes_sums)
        return self.selection(ops.choose(shape), mask, teaching, Kappa(self.millionths, self.kappa))

    def selection(self, choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> Selection:
        """Select the keys of a full pass by their scores; for the arguments see :func:`nn.forms.select`."""
        return select(choice, mask, teaching, kappa)

    def step(self, query: Tensor, keys: LayerCache) -> KeptKeys | None:
        of_query, of_key = keys.rotations
        selector_keys = keys.project("selector_key", lambda x: rotate_heads(self.k_proj(x), 1, of_key, self.backend))
        kappa = keys.constant("kappa", self.kappa)  # reading the buffer on every step would synchronise with the GPU
        newest = keys.newest_of("selector_query", lambda x: rotate_heads(self.q_proj(x), 1, of_query, self.backend))
        return ops.topk_indices(newest, selector_keys, keys.key_index, kappa, self.backend, keys.own)

    def step_keys(self, query: Tensor, keys: LayerCache) -> KeptKeys | None:
        return self.step(query, keys)  # which scores other keys alone

    def cost(self, length: int) -> PatternCost:
        scores = float(length) ** 2 * self.q_proj.out_features
        projections = float(length) * (self.q_proj.weight.numel() + self.k_proj.weight.numel())
        return PatternCost(min(1.0, max(self.share, MIN_KEYS / length)), scores, projections)

    def scorers(self) -> tuple[nn.Linear, nn.Linear]:
        return self.q_proj, self.k_proj

    def set_share(self, share: float) -> None:
        """Set kappa to a share of the keys, outside of training."""
        self.kappa.fill_(round(share * KAPPA_ONE))

    def adapt(self, mass: float) -> None:
        """Update kappa by eq 7, after an update with an average ``mass`` on the kept keys of valid queries."""
        kappa = self.rule.next(self.millionths, mass)
        self.kappa.fill_(kappa)
        self._seen = self._written, kappa

    @property
    def millionths(self) -> int:
        """kappa on the host; after a change, the buffer is read, which synchronises with the device."""
        if self._seen is None or self._seen[0] != self._written:
            self._seen = self._written, int(self.kappa)
        return self._seen[1]

    @property
    def _written(self) -> tuple[int, int]:
        return self.kappa.data_ptr(), self.kappa._version

    @property
    def share(self) -> float:
        """kappa as a fraction of the keys, 0 to 1."""
        return self.millionths / KAPPA_ONE

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        kappa = state_dict.get(prefix + "kappa")
        if kappa is not None and (kappa.is_floating_point() or not 0 < int(kappa) <= KAPPA_ONE):
            raise InputError(f"{prefix}kappa is {float(kappa) / KAPPA_ONE:g}; expected a share in (0, 1]")
        for name, projection in (("q_proj", self.q_proj), ("k_proj", self.k_proj)):
            if projection.bias is not None and f"{prefix}{name}.weight" in state_dict:  # earlier versions had none
                state_dict.setdefault(f"{prefix}{name}.bias", torch.zeros_like(projection.bias))
        super()._load_from_state_dict(state_dict, prefix, *args)


def learned(patterns: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, Selector]]:
    """Iterate over the learned patterns among named ones, whose kappa adapts."""
    return ((name, pattern) for name, pattern in patterns if isinstance(pattern, Selector))
