"""Fixed window of keys around the query (table 4 of arXiv 2309.14174).

The query at position p of n allowed keys, not counting padding, keeps keys lo to lo + w - 1 with lo = p - floor(w / 2),
shifted so that w keys are kept if there are that many: in decoder self-attention, the last w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_lasformer.nn.options import EVERY_QUERY, RowSampling
from fairseq_lasformer.nn.patterns.base import Pattern, PatternCost, PatternOptions
from fairseq_lasformer.nn.selection import MaskSelection
from fairseq_lasformer.ops import AttentionMask, KeptKeys

if TYPE_CHECKING:
    from fairseq_lasformer.nn.cache import LayerCache


class Window(Pattern):
    """The ``size`` keys nearest to the query (``--select-pattern window:SIZE``). Nothing is learned or supervised.

    Args:
        size: number of keys to keep, at least 1.
    """

    name = "window"
    usage = "window:SIZE"

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> Window:
        if not argument.isdecimal() or int(argument) < 1:
            raise ValueError("expected the number of keys, at least 1, as in window:20")
        return cls(int(argument))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        mask: AttentionMask,
        as_mask: bool = False,
        sampling: RowSampling = EVERY_QUERY,
    ) -> MaskSelection:
        n_batch, n_queries, n_keys = query.size(0), query.size(1), key.size(1)
        position = torch.arange(n_keys, device=query.device)[None]
        if mask.key_padding is not None:
            position = (~mask.key_padding).cumsum(1) - 1
        query_position = position if query is key else torch.arange(n_queries, device=query.device)[None]
        allowed = mask.full(n_batch, n_queries, n_keys, query.device)
        first = self._first(query_position, allowed.sum(2))[..., None]
        keep_mask = allowed & (position[:, None] >= first) & (position[:, None] < first + self.size)
        return MaskSelection(keep_mask, mask)

    def step(self, query: Tensor, keys: LayerCache) -> KeptKeys:
        index = keys.key_index
        width, beam = min(self.size, index.end), query.size(0) // index.n_keys.numel()
        offset = torch.arange(width, device=query.device)
        first = index.start + self._first(keys.position, index.n_keys)
        counts = index.n_keys.clamp(max=self.size).repeat_interleave(beam)
        slots = (first[:, None] + offset).clamp(max=index.end - 1).repeat_interleave(beam, 0)
        if index.table is not None:
            slots = index.table.gather(1, slots)
        return KeptKeys(slots.int().masked_fill(offset >= counts[:, None], -1), counts.int())

    def cost(self, length: int) -> PatternCost:
        return PatternCost(min(1.0, self.size / length))

    def _load_from_state_dict(self, *args: Any) -> None:
        """A window holds nothing; checkpoints of older versions saved a selector that it never used."""

    def _first(self, position: Tensor, n_keys: Tensor) -> Tensor:
        return torch.minimum(position - self.size // 2, n_keys - self.size).clamp(min=0)
