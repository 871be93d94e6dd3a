"""Decoding cache with tensors that stay in place, so that a step can be captured in a CUDA graph and replayed.

All tensors of a size are :class:`GraphBuffers`, which keep the graph that was captured with them. When a batch outgrows
its buffers, or half of its items are finished, its contents move to others. When it ends, its buffers are kept for
later batches of the same sizes, which replay the same graphs.

Shapes as in ``cache``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.base.cannot import refuse
from fairseq_lasformer.nn.decoding.cache import LINES, DecodingCache, regroup
from fairseq_lasformer.nn.decoding.cuda_graph import CudaGraphStep
from fairseq_lasformer.ops import PAIRS, KeyIndex, OwnLines

FIRST_POSITIONS = 512
KEPT_BUFFERS = 8
"""Number of buffers that are kept between batches."""


class Size(NamedTuple):
    """Properties that a captured step depends on, besides the contents of its tensors."""

    # n_items, beam: numbers of items, and of rows per item
    n_items: int
    beam: int
    positions: int  # length of the table of slots
    capacity: int  # slots per item
    source: int
    dtype: torch.dtype
    device: torch.device
    constants: tuple[int, ...]  # numbers that a step has read from the model, such as every kappa

    @classmethod
    def first(cls, n_rows: int, n_items: int, source: int, like: Tensor, constants: tuple[int, ...] = ()) -> Size:
        """Return a batch's initial size; the source is rounded up to a power of two, or to a multiple of 512."""
        beam = n_rows // n_items
        padded = max(16, 1 << (source - 1).bit_length()) if source <= 512 else -(-source // 512) * 512
        positions = FIRST_POSITIONS
        return cls(n_items, beam, positions, positions * beam, padded, like.dtype, like.device, constants)


class GraphBuffers:
    """Tensors of one size, and the step that was captured with them.

    Attributes:
        table, newest, start, count, generated, source: see :class:`DecodingCache`.
        source_index: index of the source's keys.
        own: own lines of all rows, in the translation and in the source.
        rotation: rotations of the newest lines of all rows.
    """

    def __init__(self, size: Size) -> None:
        self.size = size
        numbers: dict[str, Any] = {"dtype": torch.int64, "device": size.device}
        self.table = torch.zeros(size.n_items * size.beam, size.positions, dtype=torch.int32, device=size.device)
        self.newest = torch.arange(size.beam, device=size.device)
        self.start, self.count = torch.zeros(size.n_items, **numbers), torch.zeros(size.n_items, **numbers)
        first, n_keys = torch.zeros(size.n_items, **numbers), torch.zeros(size.n_items, **numbers)
        self.source_index = KeyIndex(None, first, n_keys, size.source)
        ranges = torch.zeros(4, size.n_items * size.beam, **numbers)
        self.own = OwnLines(ranges[0], ranges[1]), OwnLines(ranges[2], ranges[3])
        self.rotation = torch.zeros(size.n_items * size.beam, PAIRS, 2, device=size.device)
        self.generated: dict[str, Tensor] = {}
        self.source: dict[str, Tensor] = {}
        self.step = CudaGraphStep()

    def of_source(self, name: str, width: int, like: Tensor) -> Tensor:
        """Return the buffer for entries of the source, [N, K, W], in the type of ``like``."""
        if name not in self.source:
            self.source[name] = like.new_zeros(self.size.n_items, self.size.source, width)
        return self.source[name]

    def of_generated(self, name: str, width: int, like: Tensor) -> Tensor:
        """Return the buffer for entries of the translation, [N, C, W], in the type of ``like``."""
        if name not in self.generated:
            self.generated[name] = like.new_empty(self.size.n_items, self.size.capacity, width)
        return self.generated[name]


class BufferPool:
    """Buffers that no batch uses; the most recently returned are last."""

    def __init__(self) -> None:
        self.free: list[GraphBuffers] = []

    def take(self, size: Size) -> GraphBuffers:
        """Return buffers of a size for the caller's exclusive use."""
        for buffers in reversed([*self.free]):  # a copy: other threads take some, and give some back
            if buffers.size == size:
                with suppress(ValueError):  # taken by another thread
                    self.free.remove(buffers)
                    return buffers
        return GraphBuffers(size)

    def give(self, used: list[GraphBuffers]) -> None:
        """Take buffers back; discard the oldest."""
        self.free += used
        used.clear()
        del self.free[:-KEPT_BUFFERS]

    def __deepcopy__(self, memo: Any) -> BufferPool:
        return BufferPool()

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()


class FixedCache(DecodingCache):
    """A :class:`DecodingCache` in buffers.

    Indices extend to the end of the table instead of the newest position. The rows of finished items stay, after the
    others and without keys, until they are half of all rows.

    Args:
        pool: pool that buffers are taken from and returned to.
    """

    def __init__(self, size: Size, pool: BufferPool) -> None:
        super().__init__(size.n_items * size.beam, size.n_items, size.device)
        self.pool, self.filled, self.source_length = pool, set[str](), 0
        self.held: list[GraphBuffers] = []
        weakref.finalize(self, pool.give, self.held).atexit = False
        self._enter(pool.take(size))
        self.count.zero_()

    @property
    def buffers(self) -> GraphBuffers:
        """Buffers that the cache uses now."""
        return self.held[0]

    def _enter(self, buffers: GraphBuffers) -> None:
        self.held[:] = [buffers]
        self.n_items, self.beam, _, self.capacity, *_ = buffers.size
        self.table, self.newest, self.start, self.count = buffers.table, buffers.newest, buffers.start, buffers.count
        self.generated, self.source = buffers.generated, buffers.source

    def _move(self, items: Tensor | None = None, table: Tensor | None = None, **changes: Any) -> None:
        """Move to other buffers.

        Args:
            items: int64 [N'], the items that move; default: the first ones.
            table: the reordered rows of the table; default: the first ones.
            changes: changed fields of its size.
        """
        old, n_items = self.buffers, changes.get("n_items", self.n_items)
        new = self.pool.take(old.size._replace(**changes))
        n = min(n_items, self.n_items) if items is None else items.numel()

        def taken(x: Tensor) -> Tensor:
            return x[:n] if items is None else x.index_select(0, items)

        for name, store in old.generated.items():
            new.of_generated(name, store.size(2), store)[:n, : self.used] = taken(store[:, : self.used])
        for name in self.filled:
            store = old.source[name]
            new.of_source(name, store.size(2), store)[:n] = taken(store)
        for ours, theirs in (
            (new.start, old.start),
            (new.count, old.count),
            (new.source_index.start, old.source_index.start),
            (new.source_index.n_keys, old.source_index.n_keys),
        ):
            ours.zero_()
            ours[:n] = taken(theirs)
        rows = self.table[: new.table.size(0)] if table is None else table
        new.table[: rows.size(0), : self.length] = rows[:, : self.length]
        self.pool.give(self.held)
        self._enter(new)
        if self.source_index is not None:
            self.source_index = new.source_index

    def _end(self) -> int:
        return self.table.size(1)

    def _longer_table(self) -> None:
        self._move(positions=2 * self.table.size(1))

    def _larger(self, capacity: int) -> None:
        self._move(capacity=capacity)

    def slots(self, name: str, like: Tensor, width: int = 0) -> Tensor:
        return self.buffers.of_generated(name, width or like.size(-1), like)

    def once(self, name: str, project: Callable[[Tensor], Tensor], memory: Tensor) -> Tensor:
        if name not in self.filled:
            projected = project(memory)
            if projected.size(1) != memory.size(1):
                refuse("--cuda-graph", {"an attention that summarises the source": True})
            self.buffers.of_source(name, projected.size(-1), projected)[:, : projected.size(1)] = projected
            self.filled.add(name)
        return self.source[name]

    def own_lines(self, ends: Tensor, padding: Tensor) -> tuple[OwnLines, OwnLines]:
        for ours, its in zip(self.buffers.own, super().own_lines(ends, padding)):
            ours.n_keys.zero_()  # of the rows of finished items
            for to, numbers in zip(ours, its):
                to[: numbers.numel()] = numbers
        return self.buffers.own

    def rotation(self, frequency: Tensor) -> Tensor:
        rotation = super().rotation(frequency)
        self.buffers.rotation[: rotation.size(0)] = rotation
        return self.buffers.rotation

    def state(self, name: str, like: Tensor, *shape: int) -> Tensor:
        if name == LINES:  # not read by the captured step, see own_lines
            return super().state(name, like, *shape)
        refuse("--cuda-graph", {"an attention that keeps a state per hypothesis": True})
        raise AssertionError("refused")

    def index_source(self, padding: Tensor) -> KeyIndex:
        if self.source_index is None:
            index, own = super().index_source(padding), self.buffers.source_index
            own.start.copy_(index.start)
            own.n_keys.copy_(index.n_keys)
            self.source_index = own  # never full: it extends to the end of the buffers
        return self.source_index

    def reorder(self, order: Tensor) -> None:
        table = self.table.index_select(0, order)
        self.states = {name: state.index_select(0, order) for name, state in self.states.items()}
        if order.numel() == self.n_live * self.beam and order.is_cuda:
            self.table[: table.size(0)] = table
            return
        keep, beam = regroup(order // self.beam, self.n_live)
        n_live = order.numel() // beam
        if keep is not None:
            self._keep_lines(keep)
        if beam != self.beam:
            items = torch.arange(self.n_live, device=order.device) if keep is None else keep
            self._move(items, table, n_items=n_live, beam=beam)
            self.n_live = n_live
            return
        self.n_live = n_live
        self.table[: table.size(0)] = table
        if keep is None:
            return
        index = self.buffers.source_index
        for store in (*self.generated.values(), *(self.source[name] for name in self.filled), self.start, self.count):
            store[:n_live] = store.index_select(0, keep)
        for numbers in (index.start, index.n_keys):
            numbers[:n_live] = numbers.index_select(0, keep)
        self.count[n_live:] = 0
        index.n_keys[n_live:] = 0
        n_items = self.n_items
        while 2 * n_live <= n_items:
            n_items = -(-n_items // 2)
        if n_items < self.n_items:
            self._move(n_items=n_items)
