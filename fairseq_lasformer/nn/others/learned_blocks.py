"""A selector of whole blocks of keys, as tensor cores like to read them, and one of keys within chosen blocks.

A tile of queries shares its blocks. In self-attention, tiles and blocks are ``size`` positions; in cross-attention, a
tile is a line of the translation and a block is a line of the source. Blocks are scored by the selector's mean key; a
tile by its mean query in the encoder, and in the decoder by its first query, which knows nothing of what follows: no
later word can leak. The own block and its neighbours are always kept. PyTorch computes all of this with a mask
[B, Q, K]; there is no kernel. Results: docs/patterns.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer import ops
from fairseq_lasformer.nn.forms import selected_by
from fairseq_lasformer.nn.others.relational import LINE, line_of
from fairseq_lasformer.nn.patterns.base import PatternCost, PatternOptions, numbers
from fairseq_lasformer.nn.patterns.learned import Selector
from fairseq_lasformer.nn.selection import Kappa, Selection, Teaching
from fairseq_lasformer.ops import KAPPA_ONE, AttentionMask, Choice, KeptKeys, Supervision, Teachers
from fairseq_lasformer.ops.reference import keep_counts, of_rows, select, selector_scores

if TYPE_CHECKING:
    from fairseq_lasformer.nn.layer_cache import LayerCache

NEAR = 1
"""Number of neighbouring blocks on each side that are always kept."""


@dataclass(frozen=True)
class Blocks:
    """Parameters of ``learned_blocks``.

    Attributes:
        size: number of positions of a tile, and of a block, in self-attention.
        percent: share of the blocks that a tile keeps if keys are chosen within them; 0 if blocks are kept whole, of
            which kappa is the share.
    """

    size: int = 64
    percent: int = 0

    def __post_init__(self) -> None:
        if self.percent > 100:
            raise ValueError("expected at most 100 percent, as in learned_blocks:size=64,percent=25")


class Tiling(NamedTuple):
    """Tiles of queries and blocks of keys of a full pass.

    Attributes:
        of_query: int64 [B, Q], the tile of each query.
        of_key: int64 [B, K], the block of each key.
        queries: bool [B, Q], the queries by whose mean a tile chooses.
        keys: bool [B, K], the keys by whose mean a block is chosen.
    """

    of_query: Tensor
    of_key: Tensor
    queries: Tensor
    keys: Tensor

    @classmethod
    def of_positions(cls, mask: AttentionMask, keys: Tensor, size: int) -> Tiling:
        """Return those of self-attention: ``size`` positions each; ``keys``: [B, K, S]."""
        position = mask.positions(keys.size(1), keys.device).clamp_min(0)
        valid = torch.ones_like(position, dtype=torch.bool) if mask.key_padding is None else ~mask.key_padding
        asking = valid & (position % size == 0) if mask.causal else valid
        tile, asking, valid = (t.expand(keys.shape[:2]) for t in (position // size, asking, valid))
        return cls(tile, tile, asking, valid)

    @classmethod
    def of_lines(cls, mask: AttentionMask, queries: Tensor, keys: Tensor) -> Tiling:
        """Return those of cross-attention: lines of both texts; ``queries``, ``keys``: [B, Q or K, S]."""
        one = torch.zeros(1, 1, dtype=torch.long, device=keys.device)
        line = (one if mask.query_line is None else mask.query_line).expand(queries.shape[:2])
        block = (one if mask.ends is None else line_of(mask.ends)).expand(keys.shape[:2])
        asking = torch.ones_like(line, dtype=torch.bool)
        asking[:, 1:] = line[:, 1:] != line[:, :-1]
        valid = torch.ones_like(block, dtype=torch.bool) if mask.key_padding is None else ~mask.key_padding
        return cls(line, block, asking, valid)

    def spread(self, chosen: Tensor) -> Tensor:
        """Return the kept blocks [B, T, N] of tiles as the kept keys of queries, bool [B, Q, K]."""
        rows = chosen.gather(1, self.of_query[..., None].expand(-1, -1, chosen.size(2)))
        return rows.gather(2, self.of_key[:, None].expand(-1, rows.size(1), -1))


def choose_blocks(query: Tensor, key: Tensor, tile: Tensor, there: Tensor, share: int, causal: bool) -> Tensor:
    """Return the blocks that each tile keeps, bool [B, T, N].

    Args:
        query: mean queries [B, T, S].
        key: mean keys [B, N, S].
        tile: int64 [B or 1, T], the number of each tile.
        there: bool [B, N], the blocks that have keys.
        share: share of the blocks that a tile may choose among, in millionths, rounded up to whole blocks.
        causal: whether a tile chooses among the blocks up to its own.
    """
    last = there.sum(1, keepdim=True).clamp_min(1) - 1
    own = torch.minimum(tile, last)  # a translation may have more lines than its source
    apart = own[..., None] - torch.arange(key.size(1), device=key.device)
    allowed = there[:, None] & (apart >= 0) if causal else there[:, None].expand_as(apart)
    near = (apart.abs() <= NEAR) & allowed
    scores = selector_scores(query, key, allowed).masked_fill(near, float("inf"))
    keep = torch.div(allowed.sum(-1) * share + (KAPPA_ONE - 1), KAPPA_ONE, rounding_mode="floor")
    return select(scores, torch.maximum(keep, near.sum(-1)))


def _means(x: Tensor, group: Tensor, among: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
    """Return the mean of x [B, N, S] over the members of each group, and which groups have any.

    They are [B, n_groups, S], 0 for a group without members, and bool [B, n_groups].

    Args:
        group: int64 [B, N].
        among: bool [B, N], the members that count.
    """
    weight = among[..., None].to(torch.promote_types(x.dtype, torch.float32))  # bfloat16 cannot count to 257
    sums = weight.new_zeros(x.size(0), n_groups, x.size(2)).scatter_add(1, group[..., None].expand_as(x), x * weight)
    counts = weight.new_zeros(x.size(0), n_groups, 1).scatter_add(1, group[..., None], weight)
    return (sums / counts.clamp_min(1)).to(x.dtype), counts[..., 0] > 0


def _each(x: Tensor, group: Tensor) -> Tensor:
    """Return x [B, G, S] for each member of its groups [B, N]: [B, N, S]."""
    return x.gather(1, group[..., None].expand(-1, -1, x.size(2)))


class _ByBlock(NamedTuple):
    """A selection whose selector also, or only, scores whole blocks.

    The cross-entropy of equal scores in a block with the full attention is that with the attention summed by block,
    plus a constant. It is constant for the selector alone, so the attention is not trained by it.

    Attributes:
        blocks: the kept keys, with the scores of their blocks.
        within: the kept keys with scores of their own; None if blocks are kept whole.
    """

    blocks: Any
    within: Any = None

    @property
    def explicit(self) -> bool:
        return bool(self.blocks.explicit)

    @property
    def contiguous(self) -> bool:
        return bool(self.blocks.contiguous)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        attended = self.blocks if self.within is None else self.within
        out: Tensor = attended.attend(q, k, v, dropout_p, backend)
        return out

    def supervise(self, teachers: Teachers) -> Supervision | None:
        by_block: Supervision | None = self.blocks.supervise(teachers._replace(target="detached").detached())
        if self.within is None or by_block is None:
            return by_block
        own: Supervision = self.within.supervise(teachers)
        return own._replace(kl=own.kl + by_block.kl)

    def kept(self, every: bool = False) -> Tensor | None:
        kept: Tensor | None = self.blocks.kept(every)
        return kept


class LearnedBlocks(Selector):
    """The highest-scoring blocks, and those around the query's own (``--select-pattern learned_blocks:size=64``).

    With ``percent=25``, a tile keeps a quarter of the blocks, and each query the highest-scoring keys in them (kappa of
    all keys). The selector's parameters are those of ``learned``. It is supervised by the full attention summed by
    block, which is not trained by that, and with ``percent`` also as ``learned`` is. A text without separators is one
    line.
    """

    name = "learned_blocks"
    usage = "learned_blocks[:size=N[,percent=N]]"
    packable = False
    reads_ends = True

    def __init__(self, its_numbers: Blocks, *options: Any) -> None:
        super().__init__(*options)
        self.numbers = its_numbers

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> LearnedBlocks:
        example = "learned_blocks:size=64,percent=25"
        return cls(numbers(Blocks, argument, example) if argument else Blocks(), *options)

    def selection(self, choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> Selection:
        q, k = teaching.query, teaching.key
        size = self.numbers.size
        tiling = Tiling.of_positions(mask, k, size) if self.same_text else Tiling.of_lines(mask, q, k)
        n_tiles, n_blocks = (int(t.max()) + 1 for t in (tiling.of_query, tiling.of_key))
        query, _ = _means(q, tiling.of_query, tiling.queries, n_tiles)
        key, there = _means(k, tiling.of_key, tiling.keys, n_blocks)
        tile = torch.arange(n_tiles, device=q.device)[None]
        with torch.no_grad():
            chosen = choose_blocks(query, key, tile, there, self._of_blocks(kappa.millionths), mask.causal)
            allowed = mask.full(q.size(0), q.size(1), k.size(1), k.device)
            kept = tiling.spread(chosen) & allowed
            if self.numbers.percent:
                kept = _best(selector_scores(q, k, kept), allowed.sum(-1), kappa.millionths)
        by_block = teaching._replace(query=_each(query, tiling.of_query), key=_each(key, tiling.of_key))
        within = selected_by(choice, kept, mask, teaching) if self.numbers.percent else None
        return _ByBlock(selected_by(choice, kept, mask, by_block), within)

    def step(self, query: Tensor, keys: LayerCache) -> KeptKeys:
        slots, allowed = keys.key_index.slots(query.size(0))
        its_keys = of_rows(keys.project("selector_key", self.k_proj), slots)
        queries, kappa = keys.queries("selector_query", self.q_proj), keys.constant("kappa", self.kappa)
        if self.same_text:
            size, position = self.numbers.size, keys.row_position[:, None]
            tile, first = position // size, position // size * size
            block = (torch.arange(slots.size(1), device=slots.device) // size).expand_as(slots)
        else:
            tile, first = keys.newest_line()
            block = line_of(keys.ends(slots) & allowed)
        asking = of_rows(queries, keys.generated.slots(query.size(0))[0].gather(1, first))
        means, there = _means(its_keys, block, allowed, int(block.max()) + 1)
        chosen = choose_blocks(asking, means, tile, there, self._of_blocks(kappa), self.same_text)
        kept = chosen[:, 0].gather(1, block) & allowed
        if self.numbers.percent:
            scores = selector_scores(self.q_proj(query)[:, None], its_keys, kept[:, None])[:, 0]
            kept = _best(scores, allowed.sum(-1), kappa)
        return ops.kept_of(kept, slots)

    def _of_blocks(self, kappa: int) -> int:
        """Return the share of the blocks to keep, in millionths."""
        return self.numbers.percent * (KAPPA_ONE // 100) or kappa

    def cost(self, length: int) -> PatternCost:
        cost, size = super().cost(length), self.numbers.size if self.same_text else LINE
        n_blocks = -(-length // size)
        least = min(1.0, (2 * NEAR + 1) / n_blocks)
        blocks = float(n_blocks) ** 2 * self.q_proj.out_features
        if not self.numbers.percent:
            return cost._replace(kept=max(cost.kept, least), scores=blocks)
        share = max(least, self.numbers.percent / 100)
        return cost._replace(kept=min(cost.kept, share), scores=blocks + share * cost.scores)


def _best(scores: Tensor, n_allowed: Tensor, kappa: int) -> Tensor:
    """Return the highest-scoring keys, bool [..., K]: kappa of all allowed ones, at most those with a score."""
    there = (scores > float("-inf")).sum(-1)
    return select(scores, torch.minimum(keep_counts(n_allowed, kappa), there))
