"""Decoding state: keys and values that are written once and never moved, and the paths of the hypotheses through them.

Every step writes each hypothesis' new key and value into the next free slots of its sentence. Which slots a hypothesis
has come through stands in a table of ancestry [R, length]; reordering the beam reorders the table, a few bytes a
position, and leaves keys and values where they are. What belongs to the source is held once a sentence.

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
    """

    def __init__(self, n_rows: int, n_sentences: int, device: torch.device) -> None:
        if n_rows % n_sentences:
            raise ValueError(f"{n_rows} hypotheses for {n_sentences} sentences: not equally many each")
        self.n_sentences, self.beam = n_sentences, n_rows // n_sentences
        self.length = self.used = 0
        self.capacity = FIRST_POSITIONS * self.beam
        self.table = torch.zeros(n_rows, FIRST_POSITIONS, dtype=torch.int32, device=device)
        self.own: dict[str, Tensor] = {}
        self.source: dict[str, Tensor] = {}
        self.memory: Paths | None = None
        self.kappas: dict[str, int] = {}

    @staticmethod
    def of(incremental_state: dict[str, Any], n_rows: int, n_sentences: int, device: torch.device) -> DecodingCache:
        """The cache of fairseq's decoding state; a new one at the first step."""
        if STATE not in incremental_state:
            incremental_state[STATE] = {"cache": DecodingCache(n_rows, n_sentences, device)}
        return incremental_state[STATE]["cache"]

    def advance(self) -> Paths:
        """Begins a step: gives every hypothesis its next slot. Returns the paths, the new position included."""
        if self.used + self.beam > self.capacity:
            self._make_room()
        if self.length == self.table.size(1):
            self.table = torch.cat([self.table, torch.zeros_like(self.table)], 1)
        slots = self.used + torch.arange(self.beam, dtype=torch.int32, device=self.table.device)
        self.table[:, self.length] = slots.repeat(self.n_sentences)
        self.used += self.beam
        self.length += 1
        count = torch.full((self.n_sentences,), self.length, device=self.table.device)
        return Paths(self.table, torch.zeros_like(count), count, self.length)

    def append(self, name: str, new: Tensor) -> Tensor:
        """Writes this step's ``new`` [R, W]; returns all slots, [N, C, W]."""
        store = self.own.get(name)
        if store is None:
            store = self.own[name] = new.new_empty(self.n_sentences, self.capacity, new.size(-1))
        store[:, self.used - self.beam : self.used] = new.view(self.n_sentences, self.beam, -1)
        return store

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
        self.table = self.table.index_select(0, order)
        if order.numel() == self.n_sentences * self.beam and order.is_cuda:
            return
        keep, self.beam = regroup(order // self.beam, self.n_sentences)
        if keep is not None:
            self.n_sentences = keep.numel()
            for stores in (self.own, self.source):
                for name in stores:
                    stores[name] = stores[name].index_select(0, keep)
            if self.memory is not None:
                self.memory = self.memory._replace(start=self.memory.start[keep], n_keys=self.memory.n_keys[keep])

    def _make_room(self) -> None:
        """Closes the gaps that dropped hypotheses left; doubles the storage where more than 3/4 of it are in use."""
        n, device = self.n_sentences, self.table.device
        paths = self.table[:, : self.length].reshape(n, -1).long()
        live = torch.zeros(n, self.capacity, dtype=torch.bool, device=device).scatter_(1, paths, True)
        used = int(live.sum(1).max()) if self.length else 0
        if used > 0.75 * self.capacity - self.beam:
            self.capacity = 2 * self.capacity + self.beam
            for name, store in self.own.items():
                self.own[name] = store.new_empty(n, self.capacity, store.size(2))
                self.own[name][:, : self.used] = store[:, : self.used]
            return
        # live slots first, in their order; the rest of a sentence that has fewer than the others is of no account
        order = live.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :used]
        for store in self.own.values():
            for i in range(n):
                store[i, :used] = store[i].index_select(0, order[i])
        moved = (live.cumsum(1, dtype=torch.int32) - 1).gather(1, paths).int()
        self.table[:, : self.length] = moved.view(self.table.size(0), self.length)
        self.used = used
