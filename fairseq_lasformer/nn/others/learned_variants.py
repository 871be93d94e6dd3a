"""Variants of the learned selector that keep additional keys, or fewer, as newer selectors do.

PyTorch compares the scores of all pairs, as a mask [B, Q, K] in a full pass and [R, K] in a step. Parameters,
adaptation of kappa and saved state are those of ``learned``, so both are trained in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_lasformer import ops
from fairseq_lasformer.nn.forms import selected_by
from fairseq_lasformer.nn.others.relational import LINE, line_of
from fairseq_lasformer.nn.patterns.base import PatternCost, PatternOptions, numbers
from fairseq_lasformer.nn.patterns.learned import Selector
from fairseq_lasformer.nn.selection import Kappa, Selection, Teaching
from fairseq_lasformer.ops import MIN_KEYS, AttentionMask, Choice, KeptKeys
from fairseq_lasformer.ops.reference import keep_counts, masked_softmax, of_rows, select, selector_scores

if TYPE_CHECKING:
    from fairseq_lasformer.nn.layer_cache import LayerCache


class OwnLine(Selector):
    """The highest-scoring keys, and all keys of the query's own line (``--select-pattern learned_lines``).

    Neighbours need not compete for a place among the selected keys, as with the forced local blocks of MSA
    (arXiv 2606.13392). In cross-attention, where queries have no line among the keys, it is the same as ``learned``. A
    text without separators is one line.
    """

    name = "learned_lines"
    usage = "learned_lines"
    packable = False
    reads_ends = True

    def selection(self, choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> Selection:
        if not self.same_text:
            return super().selection(choice, mask, teaching, kappa)
        q, k = teaching.query, teaching.key
        ends = torch.zeros(1, k.size(1), dtype=torch.bool, device=k.device) if mask.ends is None else mask.ends
        line = line_of(ends)
        allowed = mask.full(q.size(0), q.size(1), k.size(1), k.device)
        kept = ops.topk_mask(q, k, mask, kappa.millionths) | (line[:, :, None] == line[:, None]) & allowed
        return selected_by(choice, kept, mask, teaching)

    def step(self, query: Tensor, keys: LayerCache) -> KeptKeys | None:
        if not self.same_text:
            return super().step(query, keys)
        scores, slots, keep = _step(self, query, keys)
        allowed = scores > float("-inf")
        ends = keys.ends(slots) & allowed
        line = line_of(ends)
        own = line == line.gather(1, keys.row_position[:, None])
        return ops.kept_of(select(scores, keep) | own & allowed, slots)

    def cost(self, length: int) -> PatternCost:
        cost = super().cost(length)
        return cost._replace(kept=min(1.0, cost.kept + LINE / length)) if self.same_text else cost


@dataclass(frozen=True)
class Mass:
    """Parameters of ``learned_top_p``.

    Attributes:
        percent: percentage of a query's scores, after softmax, that the kept keys need not exceed.
    """

    percent: int = 90

    def __post_init__(self) -> None:
        if self.percent > 99:
            raise ValueError("expected at most 99 percent, as in learned_top_p:percent=90")


class TopP(Selector):
    """The fewest keys that reach a share of the selector's mass: at least ten, at most kappa of all keys.

    ``--select-pattern learned_top_p:percent=90``. A query with concentrated scores keeps fewer keys. :meth:`cost`
    counts kappa, the most that a query keeps.
    """

    name = "learned_top_p"
    usage = "learned_top_p:percent=N"
    packable = False

    def __init__(self, mass: Mass, *options: Any) -> None:
        super().__init__(*options)
        self.mass = mass

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> TopP:
        return cls(numbers(Mass, argument, "learned_top_p:percent=90") if argument else Mass(), *options)

    def selection(self, choice: Choice, mask: AttentionMask, teaching: Teaching, kappa: Kappa) -> Selection:
        q, k = teaching.query, teaching.key
        with torch.no_grad():
            allowed = mask.full(q.size(0), q.size(1), k.size(1), k.device)
            kept = self._fewest(selector_scores(q, k, allowed), keep_counts(allowed.sum(-1), kappa.millionths))
        return selected_by(choice, kept, mask, teaching)

    def step(self, query: Tensor, keys: LayerCache) -> KeptKeys:
        scores, slots, keep = _step(self, query, keys)
        return ops.kept_of(self._fewest(scores, keep), slots)

    def _fewest(self, scores: Tensor, keep: Tensor) -> Tensor:
        """Return the fewest keys [..., K] that reach the share of the mass: at least ten, at most ``keep`` [...]."""
        mass = masked_softmax(scores, scores > float("-inf"))
        order = scores.masked_fill(scores.isnan(), float("-inf")).argsort(dim=-1, descending=True, stable=True)
        before = mass.gather(-1, order)
        before = before.cumsum(-1) - before
        rank = torch.arange(scores.size(-1), device=scores.device)
        first = (rank < keep[..., None]) & ((before < self.mass.percent / 100) | (rank < MIN_KEYS))
        return torch.zeros_like(first).scatter(-1, order, first)


def _step(selector: Selector, query: Tensor, keys: LayerCache) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores of a step's keys [R, T], -inf where not allowed; their slots; and the numbers to keep, [R]."""
    slots, allowed = keys.key_index.slots(query.size(0))
    its_keys = of_rows(keys.project("selector_key", selector.k_proj), slots)
    scores = selector_scores(selector.q_proj(query)[:, None], its_keys, allowed[:, None])[:, 0]
    return scores, slots, keep_counts(allowed.sum(-1), keys.constant("kappa", selector.kappa))
