"""One attention's part of the decoding cache; shapes as in ``cache``, with H heads."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.nn.decoding.cache import ENDS, DecodingCache
from fairseq_lasformer.ops import EightBit, KeptKeys, KeyIndex, OwnLines, quantise_heads
from fairseq_lasformer.ops.reference import of_rows


class LayerCache(NamedTuple):
    """One attention's part of the cache in one decoding step."""

    cache: DecodingCache  # the cache of all layers
    name: str  # prefix of this attention's entries in it
    x: Tensor  # [R, d], the newest inputs
    memory: Tensor | None  # [N, K, d], the source, in cross-attention; otherwise None
    key_index: KeyIndex
    generated: KeyIndex  # slots of the translation's keys so far
    own: OwnLines | None = None  # positions of each hypothesis's own line, [R], for attentions that read it
    # of the lines of the newest queries, [R, 8, 2], and of the keys that are projected: the same, or [N, K, 8, 2]
    rotations: tuple[Tensor | None, Tensor | None] = (None, None)
    # what is known of the newest inputs already, see `StepProducts`
    newest: Mapping[str, Tensor] = MappingProxyType({})

    @property
    def position(self) -> Tensor:
        """Position of the newest queries, int64 [N]."""
        return self.generated.n_keys - 1

    @property
    def row_position(self) -> Tensor:
        """Position of the newest query of each hypothesis, int64 [R]."""
        return self.position.repeat_interleave(self.x.size(0) // self.position.numel())

    def project(self, what: str, projection: Callable[[Tensor], Tensor]) -> Tensor:
        """Project all keys so far, [N, C, W] by slot; only new ones are computed.

        Args:
            what: name of the projection in the cache, such as ``key``.
            projection: from [..., d] to [..., W].
        """
        if self.memory is not None:
            return self.cache.once(f"{self.name}.{what}", projection, self.memory)
        written = self.newest.get(what)
        return self.cache.append(f"{self.name}.{what}", projection(self.x)) if written is None else written

    def newest_of(self, what: str, projection: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the projection of the newest inputs, [R, W].

        Args:
            what: its name in :attr:`newest`, where it is looked up first.
        """
        known = self.newest.get(what)
        return projection(self.x) if known is None else known

    def own_slots(self) -> KeptKeys:
        """Return the slots of each hypothesis's own line."""
        assert self.own is not None
        if self.memory is None and self.cache.one_line:
            assert self.key_index.table is not None
            return KeptKeys(self.key_index.table[:, : self.cache.length].contiguous(), self.own.n_keys.int())
        table, longest = self.key_index.table, self.key_index.end if self.own.first.is_cuda else None
        in_line = self.own.slots(longest)
        if table is None:
            return in_line
        slots = table.gather(1, in_line.indices.clamp_min(0).long()).int()
        return KeptKeys(slots.masked_fill(in_line.indices < 0, -1), in_line.counts)

    def ends(self, slots: Tensor) -> Tensor:
        """Return which keys end a line, bool [R, T], by their slots [R, T]; see :meth:`DecodingCache.mark`."""
        return of_rows((self.cache.generated if self.memory is None else self.cache.source)[ENDS], slots)[..., 0] > 0

    def room(self, what: str, width: int, n_heads: int) -> EightBit:
        """Return storage for the translation's keys or values in 8 bits, [N, C, W], which a step fills.

        Args:
            what: see :meth:`project`.
            width: W.
            n_heads: H.
        """
        numbers, scale = self.x.new_empty(0, dtype=torch.int8), self.x.new_empty(0, dtype=torch.float32)
        name, slots = f"{self.name}.{what}", self.cache.slots
        return EightBit(slots(name, numbers, width), slots(f"{name}_scale", scale, n_heads))

    def of_source(self, what: str, n_heads: int, projection: Callable[[Tensor], Tensor]) -> EightBit:
        """Return the source's keys or values in 8 bits, [N, K, W]; they are projected once.

        Args:
            what, projection: see :meth:`project`.
            n_heads: H.
        """
        assert self.memory is not None
        both = functools.cache(lambda memory: quantise_heads(projection(memory), n_heads))
        name, once = f"{self.name}.{what}", self.cache.once
        return EightBit(
            once(name, lambda memory: both(memory)[0], self.memory),
            once(f"{name}_scale", lambda memory: both(memory)[1], self.memory),
        )

    def state(self, what: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a state per hypothesis, [R, *shape], reordered with the beam; see :meth:`DecodingCache.state`.

        Args:
            dtype: its type (default: that of the inputs).
        """
        return self.cache.state(f"{self.name}.{what}", self.x.to(dtype or self.x.dtype), *shape)

    def constant(self, what: str, buffer: Tensor) -> int:
        """Return an integer buffer that is constant during decoding; it is read from the device on the first step."""
        return self.cache.constant(f"{self.name}.{what}", buffer)
