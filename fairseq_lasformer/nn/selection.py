"""Keys that a pattern selected for a full pass: the protocol of all forms in :mod:`nn.forms`.

A selection is made by the lowest layer of a group and used by all its layers (eq 8 of arXiv 2309.14174). All forms have
the methods of :class:`Selection`.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from fairseq_lasformer.ops import (
    RowSample,
    StraightThrough,
    Supervision,
    Teachers,
)


class Teaching(NamedTuple):
    """Paths through which a learned pattern learns."""

    # query, key: the selector's projections [B, Q or K, S], through which the supervision and the straight-through
    # gradient reach it
    query: Tensor
    key: Tensor
    gradient: str  # how the translation loss reaches it (`--select-gradient`): `bounded`, `straight-through` or `none`
    sample: RowSample  # the queries that it learns from

    def through(self) -> StraightThrough | None:
        """Return the receiver of the straight-through gradient; None if there is none."""
        if self.gradient == "none":
            return None
        return StraightThrough(self.query, self.key, self.gradient != "straight-through", self.sample)


class Kappa(NamedTuple):
    """The fraction of keys to keep, in millionths."""

    millionths: int  # as the host knows it
    on_device: Tensor  # int64 [] on the device, where a CUDA graph finds its current value


class Selection(Protocol):
    """Selected keys of a full pass."""

    @property
    def explicit(self) -> bool:
        """Return whether :meth:`kept` knows the kept keys, and the pattern may be supervised."""
        ...

    @property
    def contiguous(self) -> bool:
        """Return whether to make each head contiguous, once for attention and supervision."""
        ...

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str, bias: Tensor | None = None
    ) -> Tensor:
        """Compute attention over the kept keys.

        Args:
            q, k, v: [B, H, Q or K, D].
            dropout_p: dropout probability of the attention weights.
            backend: one of :data:`ops.BACKENDS`.
            bias: b_h [H], with own lines, see ``reference.line_bias``.

        Returns:
            [B, H, Q, D]; 0 for rows without keys.
        """
        ...

    def supervise(self, teachers: Teachers) -> Supervision | None:
        """Supervise the pattern by the full attention (eq 4-6); None if it is not learned."""
        ...

    def kept(self, every: bool = False) -> Tensor | None:
        """Return the kept keys of the queries that a pattern learns from, bool [B, R, K]; None if not explicit.

        Args:
            every: return those of every query, [B, Q, K].
        """
        ...
