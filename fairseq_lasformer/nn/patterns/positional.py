"""Patterns that depend on positions alone: a subclass defines one function, from which all else follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.nn.forms import selected
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns.base import Numbers, Pattern, PatternCost, PatternOptions, numbers
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import KeptKeys

if TYPE_CHECKING:
    from fairseq_lasformer.nn.decoding.layer_cache import LayerCache


NOWHERE = 2**62
"""A number after all positions."""

COUNTED = 4096
"""Number of queries over which the cost is averaged."""


class KeptPositions(NamedTuple):
    """Positions of the kept keys of some queries."""

    positions: Tensor  # int64 [..., M], ascending, each once; -1 after the last
    counts: Tensor  # int64 [...], the number of positions


class Positional(Pattern):
    """A pattern whose kept keys depend only on the position of the query and the number of keys."""

    packable = True

    def positions(self, query: Tensor, n_keys: Tensor, longest: int) -> Tensor:
        """Return the positions of the keys that queries keep.

        Args:
            query: int64 [...], the position of each query, from 0, without padding; in cross-attention, its position in
                the target, which may exceed the source's length.
            n_keys: int64 [...], the number of keys that each may attend to: those at positions 0 to n_keys - 1.
            longest: maximum of ``n_keys``.

        Returns:
            int64 [..., M] in any order; repeated, negative or too large (>= ``n_keys``) ones are ignored.
        """
        raise NotImplementedError

    def kept(self, query: Tensor, n_keys: Tensor, longest: int) -> KeptPositions:
        """Return :meth:`positions` in order, each once, without ignored ones."""
        positions = self.positions(query, n_keys, longest)
        inside = (positions >= 0) & (positions < n_keys[..., None])
        positions = positions.masked_fill(~inside, NOWHERE)
        following, before = positions[..., 1:], positions[..., :-1]
        in_order = (following > before) | ((following == NOWHERE) & (before == NOWHERE))
        if positions.is_cuda or not bool(in_order.all()):  # checking would make the host wait for a GPU
            positions = positions.sort(-1).values
            positions[..., 1:].masked_fill_(positions[..., 1:] == positions[..., :-1], NOWHERE)
            positions = positions.sort(-1).values
        unused = positions == NOWHERE
        return KeptPositions(positions.masked_fill(unused, -1), (~unused).sum(-1))

    def forward(self, full: Pass) -> Selection:
        query, key, mask = full[:3]
        n_batch, n_queries, n_keys, device = query.size(0), query.size(1), key.size(1), query.device
        position = mask.positions(n_keys, device) if query is key else torch.arange(n_queries, device=device)[None]
        counts = mask.counts(n_queries, n_keys, device)
        rows = (max(position.size(0), counts.size(0)), n_queries)
        keys = self.kept(position.expand(rows), counts.expand(rows), n_keys)
        slots = keys.positions
        if mask.key_padding is not None:  # from positions to indices: tokens come first, in order
            places = mask.key_padding.int().argsort(dim=1, stable=True)
            slots = places.gather(1, slots.clamp_min(0).flatten(1)).view(slots.shape).masked_fill(slots < 0, -1)
        most = slots.size(2)
        slots = slots.expand(n_batch, -1, -1).reshape(-1, most).int()
        kept = KeptKeys(slots, keys.counts.expand(n_batch, -1).reshape(-1).int())
        return selected(self.chosen(full, most / n_keys), kept, n_batch, n_keys, mask)

    def step(self, query: Tensor, keys: LayerCache) -> KeptKeys:
        index, position = keys.key_index, keys.position
        beam, of_item = query.size(0) // position.numel(), position.numel() // index.n_keys.numel()
        n_keys, start = (t.repeat_interleave(of_item) for t in (index.n_keys, index.start))
        kept = self.kept(position, n_keys, index.end)
        unused = (kept.positions < 0).repeat_interleave(beam, 0)
        slots = (start[:, None] + kept.positions).clamp(0, index.end - 1).repeat_interleave(beam, 0)
        if index.table is not None:
            slots = index.table.gather(1, slots)
        return KeptKeys(slots.int().masked_fill(unused, -1), kept.counts.int().repeat_interleave(beam))

    def cost(self, length: int) -> PatternCost:
        query = torch.arange(0, length, -(-length // COUNTED))
        counts = self.kept(query, torch.full_like(query, length), length).counts
        return PatternCost(float(counts.double().mean()) / length)


class Numbered(Positional, Generic[Numbers]):
    """A pattern of positions with numeric parameters: ``--select-pattern NAME:NUMBER=N,NUMBER=N``."""

    kind: ClassVar[type[Any]]  # dataclass of the parameters; it raises a ValueError for invalid combinations
    example: ClassVar[str]  # the pattern with parameters, for messages

    def __init__(self, its_numbers: Numbers) -> None:
        super().__init__()
        self.numbers = its_numbers

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> Numbered[Any]:
        return cls(numbers(cls.kind, argument, cls.example))


class OwnLine(Positional):
    """Nothing besides the own line that ``--own-lines`` reads in any case."""

    name = "own-line"
    usage = "own-line"

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> OwnLine:
        if argument:
            raise ValueError("own-line takes no argument")
        return cls()

    def positions(self, query: Tensor, n_keys: Tensor, longest: int) -> Tensor:
        return torch.full((*query.shape, 1), -1, device=query.device)

    def step_keys(self, query: Tensor, keys: LayerCache) -> KeptKeys | None:
        return keys.own_slots()


class Window(Positional):
    """The ``size`` keys nearest to the query (``--select-pattern window:SIZE``; table 4 of arXiv 2309.14174).

    The query at position p of n allowed keys, not counting padding, keeps keys lo to lo + w - 1 with
    lo = p - floor(w / 2), shifted so that w keys are kept if there are that many: in the decoder itself, the last w.

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

    def positions(self, query: Tensor, n_keys: Tensor, longest: int) -> Tensor:
        first = torch.minimum(query - self.size // 2, n_keys - self.size).clamp(min=0)
        return first[..., None] + torch.arange(min(self.size, longest), device=query.device)

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load nothing: a window has no state; older versions saved a selector that it never used."""
