"""Decoding cache of lines that are searched side by side: items are lines, which share the keys of their documents."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_lasformer.nn.cache import DecodingCache
from fairseq_lasformer.nn.lines import LineRanges
from fairseq_lasformer.ops import KeyIndex, OwnLines


class LineCache(DecodingCache):
    """Keys and values of hypotheses of lines; those of the source are stored once for all, [1, K, W].

    Args:
        n_rows: number of hypotheses (R), as many for each line.
        ranges: what the lines read.
        n_keys: number of tokens of all sources (K).
        source: their keys and values by name, which the first of several searches fills.
    """

    def __init__(self, n_rows: int, ranges: LineRanges, n_keys: int, source: dict[str, Tensor]) -> None:
        super().__init__(n_rows, ranges.start.numel(), ranges.start.device)
        self.ranges, self.source = ranges, source
        self.source_index = KeyIndex(None, ranges.start, ranges.n_tokens, n_keys)

    def own_lines(self, ends: Tensor, padding: Tensor) -> tuple[OwnLines, OwnLines]:
        of_rows = (t.repeat_interleave(self.beam) for t in (self.ranges.own_start, self.ranges.own_tokens))
        length = self.ranges.start.new_full((self.n_items * self.beam,), self.length)
        return OwnLines(torch.zeros_like(length), length), OwnLines(*of_rows)

    def _keep_sources(self, keep: Tensor) -> None:
        self.ranges = self.ranges.take(keep)
        assert self.source_index is not None
        self.source_index = self.source_index._replace(start=self.ranges.start, n_keys=self.ranges.n_tokens)
