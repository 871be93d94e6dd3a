"""Decoding cache: keys and values that are written once and never moved, and an index from hypotheses to slots.

Every step writes the new key and value of each hypothesis into the next free slots of its item (a batch item: a
document, or a part of one). A table [R, length] maps the positions of each hypothesis to slots, known elsewhere as
cache indirection; reordering the beam reorders the table, a few bytes per position, and moves neither keys nor values.
Keys and values of the source are stored once per item. An attention that selects nothing keeps a state per hypothesis
instead; reordering the beam moves it.

With a CUDA graph, every tensor that a step reads or writes must stay in place: see ``fixed_cache``.

Shapes: R hypotheses, N items, ``beam`` = R / N consecutive hypotheses per item; C slots per item; W width of a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.nn.lines import LineRanges, SourceLines, tokens_of_lines
from fairseq_lasformer.nn.rotary import rotations
from fairseq_lasformer.ops import KeyIndex, OwnLines, append

IncrementalState = dict[str, Any]

STATE = "fairseq_lasformer.cache"
FIRST_POSITIONS = 64

ENDS = "ends"
"""Name of the entries that are 1 at keys that end a line, [N, C or K, 1]."""

LINES = "lines"
"""Name of the state that is the line of the newest word and its place in it, int64 [R, 2]."""


def regroup(items: Tensor, n_items: int) -> tuple[Tensor | None, int]:
    """Find the items that the hypotheses still need, one entry per run of consecutive hypotheses of the same item.

    If the runs differ in length, every hypothesis becomes a separate run.

    Args:
        items: int64 [R], the item of each hypothesis.
        n_items: number of items (N).

    Returns:
        the item of each run, or None if these are all N in order and nothing needs to move; and the length of a run.
    """
    if items.numel() and items.numel() % n_items == 0:  # in most steps: no runs need to be looked for
        beam = items.numel() // n_items
        if torch.equal(items, torch.arange(items.numel(), device=items.device) // beam):
            return None, beam
    keep, runs = torch.unique_consecutive(items, return_counts=True)
    beam = int(runs[0])
    if not bool((runs == beam).all()):
        keep, beam = items, 1
    return (None if torch.equal(keep, torch.arange(n_items, device=keep.device)) else keep), beam


def _kept(stores: dict[str, Tensor], keep: Tensor, n_items: int, used: int) -> dict[str, Tensor]:
    """Move the items that are kept to the front of their storages [N, C, W], from the first that moves.

    Only the slots in use are moved: sentences of a batch end one after another, and most of the storage is free.

    Args:
        keep: int64 [n], the numbers of the items.
        n_items: N.
    """
    n = keep.numel()
    if n > n_items:  # a run for every hypothesis: items are repeated
        return {name: store.index_select(0, keep) for name, store in stores.items()}
    first = int((keep != torch.arange(n, device=keep.device)).nonzero()[:1].sum()) if n else 0
    for store in stores.values():
        store[first:n, :used] = store[:, :used].index_select(0, keep[first:])
    return {name: store[:n] for name, store in stores.items()}


class DecodingCache:
    """Keys and values of all layers, by name, for one batch of hypotheses.

    Args:
        n_rows: number of hypotheses (R), a multiple of ``n_items``.
        n_items: number of items (N).
        device: where the index is stored.

    Raises:
        ValueError: ``n_rows`` is not a multiple of ``n_items``.
    """

    one_line = False
    """Whether the positions of a hypothesis are those of a single line."""

    def __init__(self, n_rows: int, n_items: int, device: torch.device) -> None:
        if n_rows % n_items:
            raise ValueError(f"{n_rows} hypotheses for {n_items} items: not the same number for each")
        self.n_items = self.n_live = n_items
        self.beam = n_rows // n_items
        self.length = self.used = 0
        self.capacity = FIRST_POSITIONS * self.beam
        self.table = torch.zeros(n_rows, FIRST_POSITIONS, dtype=torch.int32, device=device)
        self.newest = torch.arange(self.beam, device=device)
        self.start = torch.zeros(n_items, dtype=torch.int64, device=device)
        self.count = torch.zeros_like(self.start)
        self.generated: dict[str, Tensor] = {}
        self.source: dict[str, Tensor] = {}
        self.states: dict[str, Tensor] = {}
        self.source_lines: tuple[Tensor, Tensor] | None = None  # see SourceLines
        self.source_index: KeyIndex | None = None
        self.constants: dict[str, int] = {}
        self.stores: tuple[list[Tensor], list[int]] | None = None  # of packed layers; None where one has moved

    @staticmethod
    def of(incremental_state: dict[str, Any], make: Callable[[], DecodingCache]) -> DecodingCache:
        """Return the cache in fairseq's incremental state; it is created on the first step."""
        if STATE not in incremental_state:
            incremental_state[STATE] = make()
        return incremental_state[STATE]

    def advance(self) -> KeyIndex:
        """Begin a step by assigning each hypothesis its next slot; return the key index, including the new position."""
        if self.used + self.beam > self.capacity:
            self._compact()
        if self.length == self.table.size(1):
            self._longer_table()
        torch.arange(self.used, self.used + self.beam, out=self.newest)
        self.table.unflatten(0, (self.n_items, -1))[:, :, self.length] = self.newest
        self.used += self.beam
        self.length += 1
        self.count[: self.n_live].fill_(self.length)
        return KeyIndex(self.table, self.start, self.count, self._end())

    def _end(self) -> int:
        """Return an upper bound of the positions, known to the host."""
        return self.length

    def _longer_table(self) -> None:
        self.table = torch.cat([self.table, torch.zeros_like(self.table)], 1)

    def begin_with(self, n_positions: int) -> None:
        """Start all hypotheses of an item with the same positions, whose keys and values :meth:`fill` writes."""
        assert not self.length, "only before the first step"
        self.capacity = max(self.capacity, n_positions + FIRST_POSITIONS * self.beam)
        while self.table.size(1) <= n_positions:
            self._longer_table()
        self.table[:, :n_positions] = torch.arange(n_positions, device=self.table.device)
        self.used = self.length = n_positions
        self.count[:] = n_positions

    def fill(self, name: str, values: Tensor) -> None:
        """Write the entries of the first positions, [N, P, W]."""
        self.slots(name, values)[:, : values.size(1)] = values

    def append(self, name: str, new: Tensor) -> Tensor:
        """Write this step's ``new`` [R, W]; return all slots, [N, C, W]."""
        # the slots are read on the device so that a captured step can be replayed
        return self.slots(name, new).index_copy_(1, self.newest, new.view(self.n_items, self.beam, -1))

    def append_together(self, new: Mapping[str, Tensor], backend: str = "auto") -> list[Tensor]:
        """Write this step's entries of several names, each [R, W], as :meth:`append` does; return all slots of each.

        Args:
            backend: one of :data:`ops.BACKENDS`.
        """
        stores = [self.slots(name, entries) for name, entries in new.items()]
        append([*new.values()], self.newest, stores, backend)
        return stores

    def slots(self, name: str, like: Tensor, width: int = 0) -> Tensor:
        """Return all slots, [N, C, W], with room for this step's.

        Args:
            name: name of the keys or values.
            like: a tensor of their type and, unless ``width`` is given, of their width, [..., W].
            width: W.
        """
        if name not in self.generated:
            self.generated[name] = like.new_empty(self.n_items, self.capacity, width or like.size(-1))
        return self.generated[name]

    def once(self, name: str, project: Callable[[Tensor], Tensor], memory: Tensor) -> Tensor:
        """Return ``project(memory)`` [N, K, W], which depends only on the source: computed on the first step."""
        if name not in self.source:
            self.source[name] = project(memory).contiguous()
        return self.source[name]

    def mark(self, ends: Tensor, source: Tensor, memory: Tensor) -> None:
        """Write which of the newest positions end a line, for patterns that read the lines of the text.

        Args:
            ends: bool [R].
            source: bool [N, K], the same of the source.
            memory: [N, K, d], the encoder's output, whose type the entries get.
        """
        self.append(ENDS, ends.to(memory.dtype)[:, None])
        self.mark_source(source, memory)

    def mark_source(self, ends: Tensor, memory: Tensor) -> None:
        """Write which positions of the source end a line, bool [N, K]; part of :meth:`mark`."""
        self.once(ENDS, lambda m: ends.to(m.dtype)[..., None], memory)

    def next_place(self, starts: Tensor) -> Tensor:
        """Count a step's newest words in their lines, before :meth:`advance`; return their places, int64 [R].

        Args:
            starts: bool [R], whether they start a line; the start symbol does.
        """
        lines = self.state(LINES, starts[:, None].long(), 2)  # line and place of the newest word
        if self.length:
            lines[:, 0] += starts
            lines[:, 1] = (lines[:, 1] + 1).masked_fill(starts, 0)
        return lines[:, 1]

    def own_lines(self, ends: Tensor, padding: Tensor) -> tuple[OwnLines, OwnLines]:
        """Return the positions of each hypothesis's own line, in the translation and in the source, in a step.

        Args:
            ends, padding: see :meth:`SourceLines.of`; read on the first step.
        """
        line, place = self.states[LINES].unbind(1)
        if self.source_lines is None:
            self.source_lines = SourceLines.of(ends, padding)[1:]
        first, n_tokens = self.source_lines
        of_source = tokens_of_lines(first, n_tokens, line.view(first.size(0), -1))
        return OwnLines(self.length - 1 - place, place + 1), of_source.flattened()

    def newest_lines(self) -> Tensor:
        """Return the number of each hypothesis's newest line, int64 [R]."""
        return self.states[LINES][:, 0]

    def rotation(self, frequency: Tensor) -> Tensor:
        """Return the rotations of the newest lines, [R, 8, 2], see ``rotary.rotations``."""
        return rotations(self.newest_lines(), frequency)

    def source_rotation(self, line: Tensor, frequency: Tensor, memory: Tensor) -> Tensor:
        """Return those of the lines of the source, [N, K, 8, 2], from their numbers, int64 [N, K]; computed once."""
        rotation = self.once("rotation", lambda _: rotations(line, frequency).flatten(2), memory)
        return rotation[:, : memory.size(1)].unflatten(2, (-1, 2))  # buffers of a CUDA graph are longer

    def state(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """Return a state per hypothesis, [R, *shape], which steps change in place; zeros on the first step.

        Args:
            like: [R, ...], a tensor of its type.
        """
        if name not in self.states:
            self.states[name] = like.new_zeros(like.size(0), *shape)
        return self.states[name]

    def constant(self, name: str, buffer: Tensor) -> int:
        """Return an integer that is constant during decoding; it is read from the device on the first step."""
        if name not in self.constants:
            self.constants[name] = int(buffer)
        return self.constants[name]

    def index_source(self, padding: Tensor) -> KeyIndex:
        """Return the index of the source's keys.

        Args:
            padding: bool [N, K], True at padding, which may be on either side of the tokens but not between them.

        Raises:
            ValueError: there is padding between tokens.
        """
        if self.source_index is None:
            self.source_index = KeyIndex.over(padding)
            if self.source_index is None:
                raise ValueError("the source has padding between its tokens")
        return self.source_index

    def reorder(self, order: Tensor) -> None:
        """Make hypothesis i continue ``order[i]``; items without hypotheses are released.

        On a GPU, hypotheses are assumed to change their item only if their number changes (as in fairseq's beam
        search): checking would synchronise with the device on every step.
        """
        table = self.table.index_select(0, order)
        for name, state in self.states.items():
            self.states[name] = state.index_select(0, order)
        if order.numel() == self.n_live * self.beam and order.is_cuda:
            self.table = table
            return
        keep, beam = regroup(order // self.beam, self.n_live)
        n_items, self.n_items = self.n_items, order.numel() // beam
        self.n_live = self.n_items
        if beam != self.beam:
            self.beam, self.newest = beam, self.newest[:beam].clone()
        self.table = table
        if keep is None:
            return
        self.stores = None
        self.generated = _kept(self.generated, keep, n_items, self.used)
        self.start, self.count = self.start.index_select(0, keep), self.count.index_select(0, keep)
        self._keep_sources(keep)

    def _keep_sources(self, keep: Tensor) -> None:
        """Keep the sources of some items."""
        self.source = {name: store.index_select(0, keep) for name, store in self.source.items()}
        if self.source_index is not None:
            start, n_keys = (t.index_select(0, keep) for t in self.source_index[1:3])
            self.source_index = self.source_index._replace(start=start, n_keys=n_keys)
        self._keep_lines(keep)

    def _keep_lines(self, keep: Tensor) -> None:
        if self.source_lines is not None:
            first, n_tokens = self.source_lines
            self.source_lines = first.index_select(0, keep), n_tokens.index_select(0, keep)

    def _compact(self) -> None:
        """Compact the slots of dropped hypotheses, or double the storage if more than 3/4 of it are in use."""
        n, device = self.n_live, self.table.device
        paths = self.table[: n * self.beam, : self.length].reshape(n, -1).long()
        live = torch.zeros(n, self.capacity, dtype=torch.bool, device=device).scatter_(1, paths, True)
        used = int(live.sum(1).max()) if self.length else 0
        if used > 0.75 * self.capacity - self.beam:
            self._larger(2 * self.capacity + self.beam)
            return
        # live slots first, in order; items with fewer of them are followed by slots that are ignored
        order = live.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :used]
        for store in self.generated.values():
            for i in range(n):
                store[i, :used] = store[i].index_select(0, order[i])
        moved = (live.cumsum(1, dtype=torch.int32) - 1).gather(1, paths).int()
        self.table[: n * self.beam, : self.length] = moved.view(-1, self.length)
        self.used = used

    def _larger(self, capacity: int) -> None:
        self.capacity, self.stores = capacity, None
        for name, store in self.generated.items():
            self.generated[name] = store.new_empty(self.n_items, capacity, store.size(2))
            self.generated[name][:, : self.used] = store[:, : self.used]


class LineCache(DecodingCache):
    """Keys and values of hypotheses of lines; those of the source are stored once for all, [1, K, W].

    Args:
        n_rows: number of hypotheses (R), as many for each line.
        ranges: what the lines read.
        n_keys: number of tokens of all sources (K).
        source: their keys and values by name, which the first of several searches fills.
    """

    one_line = True

    def __init__(self, n_rows: int, ranges: LineRanges, n_keys: int, source: dict[str, Tensor]) -> None:
        super().__init__(n_rows, ranges.start.numel(), ranges.start.device)
        self.ranges, self.source = ranges, source
        self.source_index = KeyIndex(None, ranges.start, ranges.n_tokens, n_keys)
        self.of_rows: LineRanges | None = None
        self.rotated: Tensor | None = None

    def next_place(self, starts: Tensor) -> Tensor:
        return self.ranges.start.new_full((self.n_items * self.beam,), self.length)

    def own_lines(self, ends: Tensor, padding: Tensor) -> tuple[OwnLines, OwnLines]:
        rows = self._rows()
        zero, length = torch.zeros_like(rows.start), torch.full_like(rows.start, self.length)
        return OwnLines(zero, length), OwnLines(rows.own_start, rows.own_tokens)

    def newest_lines(self) -> Tensor:
        return self._rows().line

    def rotation(self, frequency: Tensor) -> Tensor:
        self._rows()  # without the rotation of other hypotheses
        if self.rotated is None:
            self.rotated = super().rotation(frequency)
        return self.rotated

    def _rows(self) -> LineRanges:
        """Return what each hypothesis reads: the same in every step until items end."""
        if self.of_rows is None or self.of_rows.start.numel() != self.n_items * self.beam:
            self.of_rows, self.rotated = LineRanges(*(t.repeat_interleave(self.beam) for t in self.ranges)), None
        return self.of_rows

    def _keep_sources(self, keep: Tensor) -> None:
        self.ranges, self.of_rows = self.ranges.take(keep), None
        assert self.source_index is not None
        self.source_index = self.source_index._replace(start=self.ranges.start, n_keys=self.ranges.n_tokens)
