"""Decoding state: keys and values that are written once and never moved, and the paths of the hypotheses through them.

Every step writes each hypothesis' new key and value into the next free slots of its sentence. Which slots a hypothesis
has come through stands in a table of ancestry [R, length]; reordering the beam reorders the table, a few bytes a
position, and leaves keys and values where they are. What belongs to the source is held once a sentence.

For a CUDA graph, all that a step reads or writes must stay where it is: see ``fixed`` of :class:`DecodingCache`.

R hypotheses, N sentences, ``beam`` = R / N consecutive hypotheses a sentence; C slots a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.ops import Paths

IncrementalState = dict[str, Any]

STATE = "fairseq_lasformer.cache"
FIRST_POSITIONS = 64


def regroup(sentences: Tensor, n_sentences: int) -> tuple[Tensor | None, int]:
    """Which of N sentences hypotheses of ``sentences`` int64 [R] need, one entry a run, and the length of a run.

    All runs are equally long: where they are not, every hypothesis becomes a run of its own. None instead of the
    entries where they are all N in their order, so that nothing is to be moved.
    """
    keep, runs = torch.unique_consecutive(sentences, return_counts=True)
    beam = int(runs[0])
    if not bool((runs == beam).all()):
        keep, beam = sentences, 1
    return (None if torch.equal(keep, torch.arange(n_sentences, device=keep.device)) else keep), beam


class DecodingCache:
    """Keys and values of all layers, by name, for one batch of hypotheses.

    Args:
        n_rows, n_sentences: R and N; R is a multiple of N.
        fixed: keep every tensor in its place as long as it can be, so that a step can be recorded: paths then end with
            the table instead of with the newest position, and the rows of finished sentences stay, behind the others
            and without keys, until they are half of all. ``version`` counts the times something had to move.
    """

    def __init__(self, n_rows: int, n_sentences: int, device: torch.device, fixed: bool = False) -> None:
        if n_rows % n_sentences:
            raise ValueError(f"{n_rows} hypotheses for {n_sentences} sentences: not equally many each")
        self.n_sentences = self.n_live = n_sentences
        self.beam = n_rows // n_sentences
        self.fixed = fixed
        self.version = self.length = self.used = 0
        self.capacity = FIRST_POSITIONS * self.beam
        self.table = torch.zeros(n_rows, FIRST_POSITIONS, dtype=torch.int32, device=device)
        self.newest = torch.arange(self.beam, device=device)
        self.start = torch.zeros(n_sentences, dtype=torch.int64, device=device)
        self.count = torch.zeros_like(self.start)
        self.own: dict[str, Tensor] = {}
        self.source: dict[str, Tensor] = {}
        self.memory: Paths | None = None
        self.kappas: dict[str, int] = {}

    @staticmethod
    def of(incremental_state: dict[str, Any], *args: Any) -> DecodingCache:
        """The cache of fairseq's decoding state; at the first step a new one, ``DecodingCache(*args)``."""
        if STATE not in incremental_state:
            incremental_state[STATE] = {"cache": DecodingCache(*args)}
        return incremental_state[STATE]["cache"]

    def advance(self) -> Paths:
        """Begins a step: gives every hypothesis its next slot. Returns the paths, the new position included."""
        if self.used + self.beam > self.capacity:
            self._make_room()
        if self.length == self.table.size(1):
            self.table = torch.cat([self.table, torch.zeros_like(self.table)], 1)
            self.version += 1
        torch.arange(self.used, self.used + self.beam, out=self.newest)
        self.table[:, self.length] = self.newest.repeat(self.n_sentences)
        self.used += self.beam
        self.length += 1
        self.count[: self.n_live] = self.length
        return Paths(self.table, self.start, self.count, self.table.size(1) if self.fixed else self.length)

    def append(self, name: str, new: Tensor) -> Tensor:
        """Writes this step's ``new`` [R, W]; returns all slots, [N, C, W]."""
        store = self.own.get(name)
        if store is None:
            store = self.own[name] = new.new_empty(self.n_sentences, self.capacity, new.size(-1))
        # the place comes from the device, as everything in a step that is recorded once and repeated
        return store.index_copy_(1, self.newest, new.view(self.n_sentences, self.beam, -1))

    def once(self, name: str, project: Callable[[Tensor], Tensor], memory: Tensor) -> Tensor:
        """``project(memory)`` [N, K, W], which depends on the source alone: computed at the first step."""
        if name not in self.source:
            self.source[name] = project(memory).contiguous()
        return self.source[name]

    def kappa(self, name: str, buffer: Tensor) -> int:
        """A selector's kappa, which does not change while decoding: read from the device at the first step."""
        if name not in self.kappas:
            self.kappas[name] = int(buffer)
        return self.kappas[name]

    def source_paths(self, padding: Tensor) -> Paths:
        """Paths over the source, from its padding mask bool [N, K] (padded on either side, not in between)."""
        if self.memory is None:
            self.memory = Paths.over(padding)
            if self.memory is None:
                raise ValueError("source with padding between its tokens")
        return self.memory

    def reorder(self, order: Tensor) -> None:
        """Hypothesis i goes on as what hypothesis ``order[i]`` was; sentences that no longer occur are freed.

        On a GPU, hypotheses change their sentence only where their number changes (as in fairseq's beam search): to
        look would stop the device at every step.
        """
        table = self.table.index_select(0, order)
        if order.numel() == self.n_live * self.beam and order.is_cuda:
            self._keep(table)
            return
        keep, beam = regroup(order // self.beam, self.n_live)
        self.n_live = order.numel() // beam
        if not self.fixed or beam != self.beam or 2 * self.n_live <= self.n_sentences:
            self.n_sentences = self.n_live
            self.version += 1
        if beam != self.beam:
            self.beam, self.newest = beam, self.newest[:beam].clone()
        self._keep(table)
        if keep is None:
            return
        for stores in (self.own, self.source):
            for name, store in stores.items():
                stores[name] = self._kept(store, keep)
        self.start, self.count = self._kept(self.start, keep), self._kept(self.count, keep)
        self.count[self.n_live :] = 0
        if self.memory is not None:
            start, n_keys = self._kept(self.memory.start, keep), self._kept(self.memory.n_keys, keep)
            self.memory = self.memory._replace(start=start, n_keys=n_keys)
            n_keys[self.n_live :] = 0

    def _keep(self, table: Tensor) -> None:
        """The table in a new order; in its place, if that is fixed."""
        if self.fixed and self.table.size(0) == self.n_sentences * self.beam:
            self.table[: table.size(0)] = table
        else:
            self.table = table

    def _kept(self, old: Tensor, sentences: Tensor) -> Tensor:
        """The entries of ``sentences`` alone; in their place, if that is fixed."""
        kept = old.index_select(0, sentences)
        if not self.fixed or old.size(0) != self.n_sentences:
            return kept
        old[: kept.size(0)] = kept
        return old

    def _make_room(self) -> None:
        """Closes the gaps that dropped hypotheses left; doubles the storage where more than 3/4 of it are in use."""
        n, device = self.n_live, self.table.device
        paths = self.table[: n * self.beam, : self.length].reshape(n, -1).long()
        live = torch.zeros(n, self.capacity, dtype=torch.bool, device=device).scatter_(1, paths, True)
        used = int(live.sum(1).max()) if self.length else 0
        if used > 0.75 * self.capacity - self.beam:
            self.capacity = 2 * self.capacity + self.beam
            self.version += 1
            for name, store in self.own.items():
                self.own[name] = store.new_empty(self.n_sentences, self.capacity, store.size(2))
                self.own[name][:, : self.used] = store[:, : self.used]
            return
        # live slots first, in their order; the rest of a sentence that has fewer than the others is of no account
        order = live.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :used]
        for store in self.own.values():
            for i in range(n):
                store[i, :used] = store[i].index_select(0, order[i])
        moved = (live.cumsum(1, dtype=torch.int32) - 1).gather(1, paths).int()
        self.table[: n * self.beam, : self.length] = moved.view(-1, self.length)
        self.used = used
