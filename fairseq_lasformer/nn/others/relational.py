"""Patterns defined by relations of query and key: a subclass defines one function, from which all else follows.

A full pass computes a mask [B, Q, K] and a step one of [R, K], so a long text costs as much memory as with the
definition of attention. Patterns of few positions are better written as :class:`Positional`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer import ops
from fairseq_lasformer.nn.forms import selected_by
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns.base import Numbers, Pattern, PatternCost, PatternOptions, numbers
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import KeptKeys
from fairseq_lasformer.ops.reference import of_rows

if TYPE_CHECKING:
    from fairseq_lasformer.nn.decoding.layer_cache import LayerCache

COUNTED = 512
"""Number of queries over which the cost is averaged."""

LINE = 25
"""Tokens per line that the cost assumes."""


class Places(NamedTuple):
    """Queries [..., Q, 1] or keys [..., 1, K].

    A query in cross-attention is never an end.
    """

    # int64, from 0, without padding; of a query in cross-attention, its position in the target, which may exceed the
    # source's length
    position: Tensor
    end: Tensor  # bool, whether it ends a line: a separator, or the end of sentence, which also starts a target
    line: Tensor  # int64, number of ends before it
    code: Tensor | None = None  # result of `Relational.code` for its state, [..., C]; None if there is none


class Relational(Pattern, Generic[Numbers]):
    """A pattern that decides for each pair of query and key whether the query keeps the key."""

    kind: ClassVar[type[Any]]  # dataclass of its parameters; it raises a ValueError for invalid combinations
    example: ClassVar[str]  # the pattern with parameters, for messages
    packable = True
    coded: ClassVar[bool] = False  # whether it reads states, with `code`
    reads_ends: ClassVar[bool] = False  # whether it reads where the lines of the text end (`AttentionMask.ends`)

    def __init__(self, its_numbers: Numbers, options: PatternOptions) -> None:
        super().__init__()
        self.numbers = its_numbers

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> Relational[Any]:
        return cls(numbers(cls.kind, argument, cls.example), options)

    def keeps(self, query: Places, key: Places, n_keys: Tensor) -> Tensor:
        """Return which keys the queries keep, bool [..., Q, K]; keys that are not allowed are removed afterwards.

        Args:
            n_keys: int64 [..., Q, 1], the number of keys that each query may attend to: positions 0 to n_keys - 1.
        """
        raise NotImplementedError

    def code(self, states: Tensor) -> Tensor:
        """Return codes of states, [..., d] -> [..., C], if ``coded``."""
        raise NotImplementedError

    def forward(self, full: Pass) -> Selection:
        query, key, mask = full[:3]
        n_batch, n_queries, n_keys, device = query.size(0), query.size(1), key.size(1), query.device
        position = mask.positions(n_keys, device)
        ends = torch.zeros_like(position, dtype=torch.bool) if mask.ends is None else mask.ends
        keys = Places(position, ends, line_of(ends), self.code(key) if self.coded else None)
        queries = keys
        if query is not key:
            none = torch.zeros(1, n_queries, dtype=torch.int64, device=device)
            code = self.code(query) if self.coded else None
            queries = Places(torch.arange(n_queries, device=device)[None], none.bool(), none, code)
        counts = mask.counts(n_queries, n_keys, device)[..., None]
        keep_mask = self.keeps(_each(queries, -1), _each(keys, -2), counts) & mask.full(
            n_batch, n_queries, n_keys, device
        )
        return selected_by(self.chosen(full, float(keep_mask.float().mean())), keep_mask, mask)

    def step(self, query: Tensor, keys: LayerCache) -> KeptKeys:
        index, rows = keys.key_index, query.size(0)
        slots, allowed = index.slots(rows)
        start, n_keys = (t.repeat_interleave(rows // t.numel())[:, None] for t in (index.start, index.n_keys))
        at = keys.row_position[:, None]
        position = torch.arange(index.end, device=slots.device) - start
        ends = keys.ends(slots) & allowed if self.reads_ends else torch.zeros_like(allowed)
        codes = of_rows(keys.project("code", self.code), slots)[:, None] if self.coded else None
        code = self.code(query)[:, None, None] if self.coded else None
        line = line_of(ends)
        if keys.memory is None:
            end, its_line = ends.gather(1, at), line.gather(1, at)
        else:
            end, its_line = torch.zeros_like(at, dtype=torch.bool), torch.zeros_like(at)
        queries = Places(at[:, None], end[:, None], its_line[:, None], code)
        its_keys = Places(position[:, None], ends[:, None], line[:, None], codes)
        keep_mask = self.keeps(queries, its_keys, n_keys[:, None])[:, 0] & allowed
        return ops.kept_of(keep_mask, slots)

    def cost(self, length: int) -> PatternCost:
        apart = -(-length // COUNTED)
        while math.gcd(apart, LINE) > 1:  # otherwise, all would have the same place in their lines
            apart += 1
        keys = every_line(length)
        queries = Places(keys.position[:, ::apart], keys.end[:, ::apart], keys.line[:, ::apart])
        keep_mask = self.keeps(
            _each(queries, -1), _each(keys, -2), torch.full_like(queries.position, length)[..., None]
        )
        return PatternCost(float(keep_mask.double().mean()))


def every_line(length: int) -> Places:
    """Return the places [1, length] of a text whose lines have :data:`LINE` tokens."""
    position = torch.arange(length)[None]
    return Places(position, position % LINE == LINE - 1, position // LINE)


def line_of(ends: Tensor) -> Tensor:
    """Return the line number of each key, int64 [B, K], from ends of lines, bool [B, K]; an end belongs to its line."""
    return ends.cumsum(1) - ends.long()


def near(query: Places, key: Places, n_keys: Tensor, size: int) -> Tensor:
    """Return the ``size`` keys nearest to the query, as :class:`Window` keeps them."""
    first = torch.minimum(query.position - size // 2, n_keys - size).clamp_min(0)
    return (key.position >= first) & (key.position < first + size)


def _each(places: Places, dim: int) -> Places:
    """Reshape [B, N] to [B, N, 1] for queries (``dim`` -1), [B, 1, N] for keys (-2)."""
    code = None if places.code is None else places.code.unsqueeze(dim - 1)
    return Places(places.position.unsqueeze(dim), places.end.unsqueeze(dim), places.line.unsqueeze(dim), code)
