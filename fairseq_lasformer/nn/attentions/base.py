"""Interface of a layer's attentions.

An attention that selects no keys (linear attention, say) is one subclass of :class:`Attention` in a module of
``nn.others``; see CONTRIBUTING.md. Attention over the keys of a pattern is :class:`SelectedAttention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor, nn

from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns import Pattern, PatternCost
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import KeptKeys

if TYPE_CHECKING:
    from fairseq_lasformer.nn.decoding.layer_cache import LayerCache

ATTENTIONS: dict[str, type[Attention]] = {}
"""Attentions that select nothing, by their names in ``--select-pattern``."""


class AttentionOptions(NamedTuple):
    """Options that an attention is built from.

    Attributes:
        embed_dim: width of the attention, all heads together (H * D).
        num_heads: number of heads (H).
        query_dim, key_dim: width of the states that queries, and keys, are projected from.
        dropout: dropout probability of the attention weights.
        backend: one of :data:`ops.BACKENDS`.
        own_lines: whether a query also reads its own line, see :class:`SelectedAttention`.
    """

    embed_dim: int
    num_heads: int
    query_dim: int
    key_dim: int
    out_dim: int
    dropout: float = 0.0
    backend: str = "auto"
    own_lines: bool = False


class AttentionOutput(NamedTuple):
    """Output of an attention layer.

    Attributes:
        out: [B, Q, d]; [R, d] in a decoding step.
        selection: for the layers above in the group. In a full pass, a :class:`Selection`, or None if the attention
            selects nothing; in a decoding step, the kept keys, or None if every key is kept.
        query, key: projections of the heads, [B, H, Q or K, D], of a full pass whose selection is explicit, for the
            supervision; otherwise None.
        bias: b_h of its heads, [H], with own lines; see ``ops.reference.line_bias``.
    """

    out: Tensor
    selection: Selection | KeptKeys | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    bias: Tensor | None = None


class Attention(nn.Module):
    """An attention of a layer.

    Attributes:
        name: its name in ``--select-pattern NAME[:ARGUMENT]``, if it selects nothing.
        packable: whether the fast decoder supports it.
        own_lines: whether a query also reads its own line.
        backend: backend for inference, one of :data:`ops.BACKENDS`. It is also that of its layer's norms.
        causal: whether it can be the decoder's self-attention, where a query must not see later keys.
        selector: the group's pattern in the lowest layer of the group; None in the layers above, and without patterns.
    """

    name: ClassVar[str]
    usage: ClassVar[str]
    packable: ClassVar[bool] = False
    causal: ClassVar[bool] = True
    own_lines: bool = False
    backend: str = "auto"
    selector: Pattern | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:
            ATTENTIONS[cls.name] = cls

    def __init__(self) -> None:
        super().__init__()
        self.selector = None

    @classmethod
    def build(cls, argument: str, options: AttentionOptions) -> Attention:
        """Build the attention from ``--select-pattern NAME:ARGUMENT``.

        Raises:
            ValueError: invalid argument; the message says what is expected.
        """
        raise NotImplementedError

    def forward(self, full: Pass, selection: Selection | None = None) -> AttentionOutput:
        """Attend from the queries to the keys.

        Args:
            selection: the group's selection, for a layer without its own pattern.
        """
        raise NotImplementedError

    def step(self, x: Tensor, keys: LayerCache, kept: KeptKeys | None = None) -> AttentionOutput:
        """Run one decoding step: attend from the newest positions to the cache.

        Args:
            x: [R, d].
            keys: this layer's part of the cache: keys by slot, or a state per hypothesis.
            kept: the group's kept keys, for a layer without its own pattern.
        """
        raise NotImplementedError

    def step_layers(self, of_itself: bool) -> dict[str, nn.Module]:
        """Return the layers that read a step's newest inputs, by the name of their result; none if it reads others.

        Args:
            of_itself: whether keys and values are those of the newest inputs, as in self-attention.
        """
        return {}

    def cost(self, length: int) -> PatternCost:
        """Return the cost for ``length`` queries and as many keys: ``kept`` as if keys were attended to one by one."""
        raise NotImplementedError

    @property
    def share(self) -> float | None:
        """kappa as a fraction of the keys, 0 to 1; None if there is none."""
        return None
